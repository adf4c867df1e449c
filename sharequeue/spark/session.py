"""How is a Spark session made that can read our topics, without any access to the network at its start?

The connector's jars are given by path: they were fetched once, at set-up, because `spark.jars.packages` asks a
repository at every start. Python workers run this very interpreter, so that they have the same packages. The JVM
writes to `<home>/logs/spark.log`, so that its output does not hide the messages for the user.
"""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession

from sharequeue import traces
from sharequeue.jvm.jar_sets import fetch_command, folder_of
from sharequeue.jvm.java import launchers_home
from sharequeue.settings import Settings
from sharequeue.spark.interrupts import interruptible, kept_handlers

CONNECTOR = "kafka"
ON_S3 = {
    # Tasks upload to the final place, and the job's commit makes it visible. Spark's default copies each file twice.
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol",
    "spark.sql.parquet.output.committer.class": "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter",
    "spark.hadoop.fs.s3a.committer.name": "magic",
    # A task keeps in memory what its commit needs. As small objects that is five requests more for each file.
    "spark.hadoop.fs.s3a.committer.magic.track.commits.in.memory.enabled": "true",
    # What a killed write has uploaded goes when its folder is swept.
    "spark.hadoop.fs.s3a.directory.operations.purge.uploads": "true",
}
"""What a session with the set `s3a` has."""
EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
"""What a session has for a set of jars, beside the jars."""
RUNS_DEFAULTS = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
"""What a local session sets in the environment where nobody else has. Workers would run `python3`, whatever Spark's
settings say; and a host whose own name does not resolve would not start a JVM, which reads the address from here."""
LOG_TAIL_BYTES = 2000
_DESCRIPTION = "spark.job.description"
TRACE_TAG = "traceparent-"
"""With the trace of a run behind it, a tag of its Spark jobs."""
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


class SparkNotReady(Exception):
    """Spark cannot be started; the message says what is missing and what to do."""


def spark_session(settings: Settings, app_name: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of this process, made at the first call. `conf` wins over everything set here. A session
    that is there already, whoever made it, is returned as it is.

    Raises SparkNotReady when the connector's jars are not there or the JVM does not start.
    """
    # The active session is this thread's only. A builder with settings would set them on the session of the process.
    there = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if there is not None and there.sparkContext._jsc is not None:
        return there
    refuse_connect()
    chosen = {**configuration(settings, app_name), **(conf or {})}
    spark_conf = SparkConf(loadDefaults=False)
    for name, value in chosen.items():
        spark_conf.set(name, value)
    for name, value in RUNS_DEFAULTS.items():
        if name == "PYSPARK_PYTHON" or _is_local(settings.spark_master):
            os.environ.setdefault(name, value)
    if SparkContext._gateway is None:
        with kept_handlers():
            SparkContext(conf=spark_conf, gateway=_gateway(settings, spark_conf))
    with kept_handlers():
        return SparkSession.builder.config(conf=spark_conf).getOrCreate()


def connector_jars(settings: Settings) -> list[Path]:
    """Return the jars of Spark's Kafka connector. Raises SparkNotReady when there are none."""
    folder = settings.jars / "spark"
    jars = sorted(folder.glob("*.jar"))
    if not any(jar.name.startswith("spark-sql-kafka") for jar in jars):
        raise SparkNotReady(
            f"Spark's Kafka connector is not in {folder}: run `sharequeue up`, which fetches it once."
        )
    return jars


def optional_jars(settings: Settings) -> dict[str, list[Path]]:
    """Return the jars that a session gets beside the connector's, by set: of those that SHAREQUEUE_SPARK_JARS names,
    and of `s3a` where the output is on it and the set was fetched. Otherwise Spark has a client of its own, or the
    output is refused before anything is leased.

    Raises SparkNotReady for a set that is named and was not fetched.
    """
    found = {name: sorted(folder_of(settings.jars, name).glob("*.jar")) for name in settings.spark_jars}
    missing = [name for name, jars in found.items() if not jars]
    if missing:
        raise SparkNotReady(
            f"SHAREQUEUE_SPARK_JARS names {', '.join(missing)}, whose jars are not in "
            f"{folder_of(settings.jars, missing[0])}: run {fetch_command(*missing)}, which fetches them once."
        )
    if settings.output.startswith("s3a:") and "s3a" not in found:
        found["s3a"] = sorted(folder_of(settings.jars, "s3a").glob("*.jar"))
    return found


def refuse_connect(spark: SparkSession | None = None) -> None:
    """Raise SparkNotReady when a session is Spark Connect's; without one, when the environment asks for Connect."""
    if spark is not None:
        asked = "this session is Spark Connect's" if ".connect." in f"{type(spark).__module__}." else None
    else:
        names = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
        asked = next((f"{name} asks for Spark Connect" for name in names if os.environ.get(name)), None)
    if asked is not None:
        raise SparkNotReady(
            f"{asked}: a lease needs a classic session, because the driver reaches its jobs and files through the "
            "JVM. Unset SPARK_REMOTE, or make the session with `SparkSession.builder.master(...)` or "
            "`sharequeue.spark.spark_session`. Nothing was leased."
        )


def refuse_without_connector(spark: SparkSession) -> None:
    """Raise SparkNotReady when a session, which may be the user's own, cannot read topics."""
    refuse_connect(spark)
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    try:
        jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(
            CONNECTOR, session.sessionState().conf()
        )
    except Exception as error:
        version = spark.version
        raise SparkNotReady(
            f"this Spark session has no Kafka connector: make it with `sharequeue.spark.spark_session`, or with "
            f"spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{version}. Nothing was leased."
        ) from error


JVM_GONE = (Py4JError, ConnectionError)
"""What a call to the JVM raises where it has ended; Py4JError also where it has not."""


def session_lives(spark: SparkSession) -> bool:
    """Return whether the session's context can still run a job."""
    context = spark.sparkContext
    try:
        return context._jsc is not None and not context._jsc.sc().isStopped()
    except JVM_GONE:
        return False


@contextmanager
def ended_session_is_named(spark: SparkSession, whose: str) -> Iterator[None]:
    """Raise SparkNotReady for whatever a block raised of Spark's because the session has ended under it."""
    try:
        yield
    except (PySparkException, *JVM_GONE) as error:
        if session_lives(spark):
            raise
        raise SparkNotReady(
            f"the Spark session of {whose} has ended under its work, and cannot be made again in this process: its "
            "JVM was stopped, killed or out of memory. Start it again. What was leased is given back, or comes again "
            "when its locks have lapsed."
        ) from error


class Jobs:
    """The Spark jobs of a block, and no others: they carry a tag. Calling it cancels them, from any thread."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self.tag = f"sharequeue-{uuid.uuid4().hex[:12]}"

    def __call__(self) -> None:
        """Cancel them."""
        self._context.cancelJobsWithTag(self.tag)

    def describe(self, text: str | None) -> None:
        """Say what the next jobs of this thread are for: Spark's UI shows it beside each; None says nothing."""
        # By the property: `setJobDescription` takes no None.
        self._context.setLocalProperty(_DESCRIPTION, text)  # type: ignore[arg-type]

    @contextmanager
    def of_round(self, number: int) -> Iterator[None]:
        """Count the jobs of this block as those of a round: of this thread, and of threads that inherit its tags."""
        tag = self._tag_of(number)
        self._context.addJobTag(tag)
        try:
            yield
        except Exception:
            self._context.removeJobTag(tag)
            raise
        # After an interrupt the connection to the JVM may be broken, and the thread that had the tag is gone.
        self._context.removeJobTag(tag)

    def tasks_ran(self, number: int) -> bool:
        """Return whether a task of a round has run: only then can a record have done any harm."""
        try:
            tracker = self._tracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForTag(self._tag_of(number))]
            stages = [stage for job in jobs if job.isDefined() for stage in job.get().stageIds()]
            infos = [tracker.getStageInfo(stage) for stage in stages]
        except Py4JError:
            return True  # a JVM that cannot say it any more
        return any(
            info.get().numActiveTasks() + info.get().numCompletedTasks() + info.get().numFailedTasks()
            for info in infos
            if info.isDefined()
        )

    def _tag_of(self, number: int) -> str:
        return f"{self.tag}-{number}"

    def _tracker(self) -> Any:
        context: Any = self._context._jsc.sc()
        # The tracker learns of jobs by events, a moment later.
        context.listenerBus().waitUntilEmpty()
        return context.statusTracker()


@contextmanager
def cancellable(spark: SparkSession) -> Iterator[Jobs]:
    """Give the Spark jobs of this block, so that another thread can cancel them. A signal ends it by an exception."""
    context, process = spark.sparkContext, os.getpid()
    jobs = Jobs(context)
    before = context.getLocalProperty(_DESCRIPTION)
    trace = traces.current()
    context.addJobTag(jobs.tag)
    if trace is not None:
        context.addJobTag(TRACE_TAG + trace)
    context.setInterruptOnCancel(True)
    try:
        with interruptible():
            yield jobs
    finally:
        if os.getpid() == process:  # and no forked child, whose way to the JVM is its parent's
            # After an interrupt the connection to the JVM may be broken, and the thread that had the tag is gone.
            with suppress(*JVM_GONE):
                context.removeJobTag(jobs.tag)
                if trace is not None:
                    context.removeJobTag(TRACE_TAG + trace)
                jobs.describe(before)


def uncache(frame: DataFrame, of: DataFrame | None = None) -> None:
    """Remove from Spark's cache what a handler has cached on the way to this DataFrame: of the topic, or of `of`.

    It belongs to this round alone; what the handler has cached of other data stays.
    """
    session: Any = frame.sparkSession._jsparkSession
    manager = session.sharedState().cacheManager()
    if manager.isEmpty():
        return
    source = "kafka"
    if of is not None:
        source = str(of._jdf.queryExecution().analyzed().collectLeaves().apply(0)).lower()
    plans: list[Any] = [frame._jdf.queryExecution().analyzed()]
    while plans:
        plan = plans.pop()
        if source not in str(plan.collectLeaves()).lower():
            continue
        if manager.lookupCachedData(session, plan).isDefined():
            manager.uncacheQuery(session, plan, False, False)
        children = plan.children()
        plans += [children.apply(at) for at in range(children.size())]


def uncache_all(records: DataFrame) -> None:
    """Remove from Spark's cache these records, and whatever was made of them."""
    session: Any = records.sparkSession._jsparkSession
    manager = session.sharedState().cacheManager()
    if not manager.isEmpty():
        manager.uncacheQuery(session, records._jdf.queryExecution().analyzed(), True, False)


def configuration(settings: Settings, app_name: str) -> dict[str, str]:
    """Return what Spark is configured with, by its own names. Raises SparkNotReady where jars are missing."""
    log4j2 = Path(str(resources.files("sharequeue.spark") / "log4j2.properties")).as_uri()
    cores = os.cpu_count() or 2
    optional = optional_jars(settings)
    jars = [*connector_jars(settings), *(jar for of_set in optional.values() for jar in of_set)]
    conf = {
        "spark.app.name": app_name,
        "spark.master": settings.spark_master,
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j2}{_collector()}",
        "spark.driver.memory": _driver_memory(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # A lease is a handful of ranges; what is shuffled is bitmaps of offsets and summaries, never the records.
        "spark.sql.shuffle.partitions": str(min(8, max(2, cores))),
        # One open file per lease and kind instead of a sort of every record by its lease.
        "spark.sql.maxConcurrentOutputFileWriters": "256",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        **(ON_S3 if optional.get("s3a") else {}),
    }
    extensions = [EXTENSIONS[name] for name in optional if name in EXTENSIONS]
    if extensions:
        conf["spark.sql.extensions"] = ",".join(extensions)
    if "delta" in optional:
        conf["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        # Delta reads its log with 50 tasks by default, at each append.
        conf["spark.databricks.delta.snapshotPartitions"] = "2"
    if _is_local(settings.spark_master):
        conf.update({"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"})
    return conf


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _collector() -> str:
    """Return the option for the parallel collector; none if the environment chooses one: a JVM with two does not
    start.

    A batch job needs throughput; nobody waits for its pauses.
    """
    chosen = (os.environ.get(name, "") for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"))
    return "" if any(_COLLECTOR.search(options) for options in chosen) else " -XX:+UseParallelGC"


def _driver_memory() -> str:
    """Return a quarter of the machine, from 1 to 4 GiB: in local mode the driver is also the executor."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(4, max(1, total // 4 // 2**30))}g"


def _gateway(settings: Settings, conf: SparkConf) -> Any:
    """Start a JVM by Spark's own launcher, and return PySpark's gateway to it. What it prints goes to its log."""
    path = settings.home / "logs" / "spark.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log, launchers_home() as home:
        before = os.environ.get("JAVA_HOME")
        try:
            # PySpark gives its own environment to the launcher.
            if home is not None:
                os.environ["JAVA_HOME"] = str(home)
            return launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
        except Exception as error:
            raise SparkNotReady(
                f"Spark's JVM did not start ({error}). {path} ends with:\n{_tail(path)}"
            ) from error
        finally:
            if before is None:
                os.environ.pop("JAVA_HOME", None)
            else:
                os.environ["JAVA_HOME"] = before


def _tail(path: Path) -> str:
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
        return log.read().decode(errors="replace")
