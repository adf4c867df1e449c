"""The resources that assets, checks and sensors share: settings, the queue's state, and Spark.

Each resource opens its connection or session when a run first needs it, and closes it when the run ends. Spark takes
seconds to start, so its session is created on first use: a run that finds nothing to do does not need it.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field, PrivateAttr

from sharequeue.dagster.instance import keep_connections
from sharequeue.dagster.references import own_modules, packed
from sharequeue.dagster.retries import forget_parent
from sharequeue.dagster.signs_of_life import SignsOfLife
from sharequeue.database import Database
from sharequeue.domain.modules import own_path
from sharequeue.domain.settings import Settings
from sharequeue.reports.history import Reports
from sharequeue.state import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS, STATE, SPARK = "sharequeue_settings", "sharequeue_state", "sharequeue_spark"
IO_MANAGER = "sharequeue_io_manager"
"""The keys of the resources. The functions of assets, checks and sensors have arguments of these names."""


class SettingsResource(dg.ConfigurableResource[Any]):
    """The settings: environment, then the data folder's ``stack.json``, then defaults."""

    home: str | None = Field(
        default=None, description="The data folder; SHAREQUEUE_HOME or .sharequeue if not given."
    )

    def load(self) -> Settings:
        """Load the current settings; a missing address raises when it is read, with what to set."""
        return Settings.load(self.home)


class StateResource(dg.ConfigurableResource[Any]):
    """The share groups' state in Postgres, and its reports, with one pool per run."""

    settings: dg.ResourceDependency[SettingsResource]
    _in_use: bool = PrivateAttr(default=False)
    _database: Database | None = PrivateAttr(default=None)
    _signs: SignsOfLife | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Create no pool yet: if an address is missing, the code that uses it reports that.

        The run keeps its connections to Dagster's database, has no tags of the run that it repeats, and shows that
        it is alive.
        """
        self._in_use = True
        if context.run is not None and context.instance is not None:
            keep_connections(context.instance)
            forget_parent(context.instance, context.run)
            self._signs = SignsOfLife(context.instance, context.run)
            self._signs.begin()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close the pool."""
        self._in_use = False
        if self._signs is not None:
            self._signs.end()
            self._signs = None
        if self._database is not None:
            self._database.close()
            self._database = None

    @property
    def database(self) -> Database:
        """The pool of this run, created on first use; it connects with the first query.

        Raises SettingMissing if the settings have no address.
        """
        if not self._in_use:
            raise RuntimeError("the state resource is used outside of a run")
        if self._database is None:
            self._database = Database.open(self.settings.load())
        return self._database

    @property
    def state(self) -> State:
        """The state of the share groups."""
        return State(self.database)

    @property
    def reports(self) -> Reports:
        """The history of SPSO, lag and delivery counts."""
        return Reports(self.database)


class SparkResource(dg.ConfigurableResource[Any]):
    """One Spark session per run, created on first use, stopped at the end of the run.

    If the process already has a session, that one is used, and is not stopped.

    `conf` is Spark's own configuration (memory, packages, credentials with `dg.EnvVar`) and overrides ours; `master`
    of None is the settings' master.

    Spark's workers can import the modules of the pipelines. On this machine they have Python's path of the run. On a
    cluster they get the Python files of the pipelines' modules and packages that are not installed.
    """

    settings: dg.ResourceDependency[SettingsResource]
    master: str | None = Field(
        default=None, description="Spark's master, such as `local[2]`; default: the settings' master."
    )
    conf: dict[str, str] = Field(
        default={}, description="Spark's own configuration, such as `spark.driver.memory: 2g`."
    )
    _session: Any = PrivateAttr(default=None)
    _ours: bool = PrivateAttr(default=False)
    _sent: Any = PrivateAttr(default=None)

    def session(self, app_name: str) -> "SparkSession":
        """Return the run's session; ``app_name`` is used at the first call."""
        if self._session is None:
            from pyspark.sql import SparkSession as Session

            from sharequeue.spark.session import spark_session

            self._ours = Session._instantiatedSession is None
            settings = self.settings.load()
            if self.master is not None:
                settings = settings.replace(spark_master=self.master)
            if settings.spark_master.startswith("local"):
                conf = {"spark.executorEnv.PYTHONPATH": os.pathsep.join(own_path()), **self.conf}
                self._session = spark_session(settings, app_name, conf)
            else:
                self._session = spark_session(settings, app_name, self.conf)
                self._send()
        session: SparkSession = self._session
        return session

    def _send(self) -> None:
        """Send the modules of the pipelines to the workers; the files are needed until the session ends."""
        modules = own_modules()
        if modules:
            self._sent = TemporaryDirectory()
            for file in packed(modules, Path(self._sent.name)):
                self._session.sparkContext.addPyFile(str(file))

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session if this run has created it.

        A run that was cancelled may have been interrupted in a call to the JVM anywhere, also before it held a lease.
        """
        if self._session is not None and self._ours:
            from sharequeue.spark.signals import forget_interrupted_call

            forget_interrupted_call()
            self._session.stop()
        self._session = None
        if self._sent is not None:
            self._sent.cleanup()
            self._sent = None
