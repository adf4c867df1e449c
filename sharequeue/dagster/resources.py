"""What do assets, checks and sensors share: settings, the queue's state, and Spark?

Each resource opens what it stands for when a run first needs it and closes it when the run ends. Spark takes
seconds to start, so its session is made at the first touch: a run that finds nothing to do never pays for it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field, PrivateAttr

from sharequeue.dagster.connections import keep_connections
from sharequeue.database import Database
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.state.reports import Reports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SettingsResource(dg.ConfigurableResource[Any]):
    """Where everything is: environment, then the data folder's ``stack.json``, then defaults."""

    home: str | None = Field(
        default=None, description="The data folder; SHAREQUEUE_HOME or .sharequeue if not given."
    )

    def load(self) -> Settings:
        """The settings as of now; a missing address raises when it is asked for, with what to set."""
        return Settings.load(self.home)


class StateResource(dg.ConfigurableResource[Any]):
    """The share groups' state in Postgres, and the reports on it, over one pool per run."""

    settings: dg.ResourceDependency[SettingsResource]
    _in_use: bool = PrivateAttr(default=False)
    _database: Database | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Make no pool yet: where an address is missing, whoever asks for it says so in a way of its own. A run keeps
        its connections to Dagster's database.
        """
        self._in_use = True
        if context.run is not None and context.instance is not None:
            keep_connections(context.instance)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close the pool."""
        self._in_use = False
        if self._database is not None:
            self._database.close()
            self._database = None

    @property
    def database(self) -> Database:
        """The pool of this run, made at the first touch; it connects at the first question.

        Raises SettingMissing when the settings have no address.
        """
        if not self._in_use:
            raise RuntimeError("the state resource is used outside of a run")
        if self._database is None:
            self._database = Database.open(self.settings.load())
        return self._database

    @property
    def state(self) -> State:
        """What happened to which record."""
        return State(self.database)

    @property
    def reports(self) -> Reports:
        """The history of SPSO, lag and delivery counts."""
        return Reports(self.database)


class SparkResource(dg.ConfigurableResource[Any]):
    """One Spark session per run, made at the first touch, stopped at the end of the run.

    A session that the process has already is used, and left as it is.

    `conf` is Spark's own (memory, packages, credentials by `dg.EnvVar`) and wins over ours; `master` is the settings'
    when None.
    """

    settings: dg.ResourceDependency[SettingsResource]
    master: str | None = Field(
        default=None, description="Spark's master, such as `local[2]`; as the settings say if not given."
    )
    conf: dict[str, str] = Field(
        default={}, description="Spark's own configuration, such as `spark.driver.memory: 2g`."
    )
    _session: Any = PrivateAttr(default=None)
    _ours: bool = PrivateAttr(default=False)

    def session(self, app_name: str) -> "SparkSession":
        """The run's session; ``app_name`` counts at the first call."""
        if self._session is None:
            from pyspark.sql import SparkSession as Session

            from sharequeue.spark.session import spark_session

            self._ours = Session._instantiatedSession is None
            settings = self.settings.load()
            if self.master is not None:
                settings = settings.replace(spark_master=self.master)
            self._session = spark_session(settings, app_name, self.conf)
        session: SparkSession = self._session
        return session

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session when this run has made one."""
        if self._session is not None and self._ours:
            self._session.stop()
        self._session = None


def share_group_resources(
    *, home: str | None = None, master: str | None = None, conf: Mapping[str, str] | None = None
) -> dg.Definitions:
    """What the definitions of share groups take, for a whole code location; `conf` and `master` are Spark's.

    All steps of a run share one process, and so one Spark session: also when somebody materializes assets in the UI.
    """
    settings = SettingsResource(home=home)
    return dg.Definitions(
        resources={
            "settings": settings,
            "queue": StateResource(settings=settings),
            "spark": SparkResource(settings=settings, master=master, conf=dict(conf or {})),
        },
        executor=dg.in_process_executor,
    )
