"""Make a Spark session that can read topics and needs no network at its start.

The connector's jars are given by path: they were fetched once, at set-up, because `spark.jars.packages` contacts a
repository at every start. Python workers run the same interpreter, so that they have the same packages. The JVM
writes to `<home>/logs/spark.log`, so that its output does not hide the messages for the user.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

import psutil
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from sharequeue.domain.errors import PipelineError
from sharequeue.domain.java import launchers_home
from sharequeue.domain.settings import Settings, jar_sets
from sharequeue.domain.settings.jar_sets import JarSetMissing, fetch_command, folder_of
from sharequeue.spark.class_archive import class_archive
from sharequeue.spark.signals import kept_handlers
from sharequeue.spark.submitted import is_submitted, submitted_session
from sharequeue.spark.waits import named_wait

CONNECTOR = "kafka"
ON_S3 = {
    # Tasks upload to the final location, and the job's commit makes the files visible. Spark's default copies each
    # file twice.
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol",
    "spark.sql.parquet.output.committer.class": "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter",
    "spark.hadoop.fs.s3a.committer.name": "magic",
    # A task keeps its commit data in memory. Storing them as small objects would take five more requests for each
    # file.
    "spark.hadoop.fs.s3a.committer.magic.track.commits.in.memory.enabled": "true",
    # The uploads of a killed write are removed when its folder is swept.
    "spark.hadoop.fs.s3a.directory.operations.purge.uploads": "true",
}
"""The configuration of a session with the jar set `s3a`."""
EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
"""The configuration of a session for a set of jars."""
AVRO_LIMITS = {
    "org.apache.avro.limits.bytes.maxLength": 64 * 2**20,
    "org.apache.avro.limits.string.maxLength": 64 * 2**20,
    "org.apache.avro.limits.collectionItems.maxLength": 10_000_000,
}
"""Properties of a JVM that decodes Avro. Ten bytes may claim a text of 2 GiB, or billions of items without
bytes: the decoder reserves memory for a length before it reads.
"""
RUNS_DEFAULTS = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
"""Environment variables that a local session sets if they are not set. Without them, workers would run `python3`
regardless of Spark's settings, and on a host whose own name does not resolve the JVM, which reads its address from
here, would not start.
"""
DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
LOG_TAIL_BYTES = 2000
_METASPACE = " -XX:MetaspaceSize=256m"
"""Spark's classes would fill the default several times, with a full collection each time."""
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


class SparkNotReady(PipelineError):
    """Spark cannot be started; the message has what is missing and what to do."""

    retriable = True  # for example, there was not enough memory


class JarsDoNotFit(SparkNotReady):
    """The jars of this session were made for different versions; the message has what is missing and what to do."""

    retriable = False


def spark_session(settings: Settings, app_name: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of this process, made at the first call. `conf` overrides everything set here. An existing
    session of any origin is returned as it is; in a process of `spark-submit`, the session has its configuration.

    Raises SparkNotReady when the connector's jars are missing or the JVM does not start.
    """
    # The active session belongs to this thread only. A builder with settings would set them on the session of the
    # process.
    there = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if there is not None and there.sparkContext._jsc is not None:
        return there
    refuse_connect()
    if is_submitted():
        session = submitted_session(app_name, conf or {})
        refuse_connect(session)
        return session
    chosen = {**configuration(settings, app_name), **(conf or {})}
    spark_conf = SparkConf(loadDefaults=False)
    for name, value in chosen.items():
        spark_conf.set(name, value)
    for name, value in RUNS_DEFAULTS.items():
        if name == "PYSPARK_PYTHON" or _is_local(settings.spark_master):
            os.environ.setdefault(name, value)
    if SparkContext._gateway is None:
        with kept_handlers(), named_wait("Spark to start"):
            SparkContext(conf=spark_conf, gateway=_gateway(settings, spark_conf))
    with kept_handlers():
        return SparkSession.builder.config(conf=spark_conf).getOrCreate()


def connector_jars(settings: Settings) -> list[Path]:
    """Return the jars of Spark's Kafka connector. Raises SparkNotReady when there are none."""
    try:
        folder = folder_of(settings.jars, jar_sets.CONNECTOR)
    except JarSetMissing as error:
        raise SparkNotReady(str(error)) from None
    jars = sorted(folder.glob("*.jar"))
    if not any(jar.name.startswith("spark-sql-kafka") for jar in jars):
        raise SparkNotReady(
            f"Spark's Kafka connector is not in {folder}: run `sharequeue up`, which fetches it once."
        )
    return jars


def optional_jars(settings: Settings) -> dict[str, list[Path]]:
    """Return the jars of a session in addition to the connector's, by set: the sets named in SHAREQUEUE_SPARK_JARS,
    and `s3a` if the output is on it and the set was fetched. Otherwise Spark has its own client, or the output is
    refused before anything is leased.

    Raises SparkNotReady for a named set that was not fetched, or that does not exist for this Spark.
    """
    try:
        found = {name: sorted(folder_of(settings.jars, name).glob("*.jar")) for name in settings.spark_jars}
    except JarSetMissing as error:
        raise SparkNotReady(f"SHAREQUEUE_SPARK_JARS={','.join(settings.spark_jars)}: {error}") from None
    missing = [name for name, jars in found.items() if not jars]
    if missing:
        raise SparkNotReady(
            f"SHAREQUEUE_SPARK_JARS names {', '.join(missing)}, whose jars are not in "
            f"{folder_of(settings.jars, missing[0])}: run {fetch_command(*missing)}, which fetches them once."
        )
    if settings.output.startswith("s3a:") and "s3a" not in found:
        with suppress(JarSetMissing):
            found["s3a"] = sorted(folder_of(settings.jars, "s3a").glob("*.jar"))
    return found


def refuse_connect(spark: SparkSession | None = None) -> None:
    """Raise SparkNotReady if a session is a Spark Connect session; without a session, if the environment selects
    Connect.
    """
    if spark is not None:
        asked = "this session is Spark Connect's" if ".connect." in f"{type(spark).__module__}." else None
    else:
        names = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
        asked = next((f"{name} selects Spark Connect" for name in names if os.environ.get(name)), None)
    if asked is not None:
        raise SparkNotReady(
            f"{asked}: a lease needs a classic session, because the driver reaches its jobs and files through the "
            "JVM. Unset SPARK_REMOTE, or create the session with `SparkSession.builder.master(...)` or "
            "`sharequeue.spark.spark_session`. Nothing was leased."
        )


def refuse_without_connector(spark: SparkSession) -> None:
    """Raise SparkNotReady when a session, which may be the user's own, cannot read topics."""
    refuse_connect(spark)
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    try:
        sources = getattr(jvm, "org.apache.spark.sql.execution.datasources.DataSource")
        sources.lookupDataSource(CONNECTOR, session.sessionState().conf())
    except Exception as error:
        version = spark.version
        raise SparkNotReady(
            f"this Spark session has no Kafka connector: make it with `sharequeue.spark.spark_session`, or with "
            f"spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{version}. Nothing was leased."
        ) from error


def configuration(settings: Settings, app_name: str) -> dict[str, str]:
    """Return the configuration of Spark, by its own names. Raises SparkNotReady if jars are missing."""
    log4j2 = Path(str(resources.files("sharequeue.spark") / "log4j2.properties")).as_uri()
    cores = os.cpu_count() or 2
    optional = optional_jars(settings)
    jars = [*connector_jars(settings), *(jar for of_set in optional.values() for jar in of_set)]
    limits = "".join(f" -D{name}={most}" for name, most in AVRO_LIMITS.items()) if "avro" in optional else ""
    conf = {
        "spark.app.name": app_name,
        "spark.master": settings.spark_master,
        "spark.jars": ",".join(map(str, jars)),
        DRIVER_OPTIONS: f"-Dlog4j2.configurationFile={log4j2}{_METASPACE}{_collector()}{limits}",
        "spark.driver.memory": _driver_memory(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Shuffles have bitmaps of offsets and summaries; only `ordering` shuffles records, to as many tasks as cores.
        "spark.sql.shuffle.partitions": str(min(8, max(2, cores))),
        # One open file per lease and kind instead of a sort of every record by its lease.
        "spark.sql.maxConcurrentOutputFileWriters": "256",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        **(ON_S3 if optional.get("s3a") else {}),
        **({"spark.executor.extraJavaOptions": limits.strip()} if limits else {}),
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
    """Return the option for the parallel collector, or none if the environment chooses one, because a JVM with two
    does not start.

    A batch job needs throughput; its pauses do not matter.
    """
    chosen = (os.environ.get(name, "") for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"))
    return "" if any(_COLLECTOR.search(options) for options in chosen) else " -XX:+UseParallelGC"


def _driver_memory() -> str:
    """Return a quarter of the machine's memory, from 1 to 4 GiB: in local mode the driver is also the executor."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(4, max(1, total // 4 // 2**30))}g"


def _gateway(settings: Settings, conf: SparkConf) -> Any:
    """Start a JVM, with the archive of its classes if it can have one, and return PySpark's gateway to it."""
    archive = class_archive(settings.jars, dict(conf.getAll()))
    if archive is None:
        return _launched(settings, conf)
    options = " ".join(filter(None, (conf.get(DRIVER_OPTIONS), archive.options)))
    archived = SparkConf(loadDefaults=False).setAll(conf.getAll()).set(DRIVER_OPTIONS, options)
    try:
        return _launched(settings, archived)
    except SparkNotReady:
        gateway = _launched(settings, conf)
        # It starts without.
        archive.give_up()
        return gateway


def _launched(settings: Settings, conf: SparkConf) -> Any:
    """Start a JVM by Spark's own launcher, and return PySpark's gateway to it. Its output goes to its log."""
    path = settings.home / "logs" / "spark.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log, launchers_home() as home:
        before = os.environ.get("JAVA_HOME")
        if home is None and before and not os.access(Path(before) / "bin" / "java", os.X_OK):
            raise SparkNotReady(
                f"JAVA_HOME={before} has no bin/java: set it to an installation of Java 17 or 21, or unset it."
            )
        try:
            # PySpark passes its own environment to the launcher.
            if home is not None:
                os.environ["JAVA_HOME"] = str(home)
            with ended_with_the_block():
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


@contextmanager
def ended_with_the_block() -> Iterator[None]:
    """End the processes started in a block if it raises: a JVM whose launcher was interrupted would wait forever."""
    this = psutil.Process()
    before = set(this.children(recursive=True))
    try:
        yield
    except BaseException:
        started = [each for each in this.children(recursive=True) if each not in before]
        for each in started:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(started, timeout=5)
        raise


def _tail(path: Path) -> str:
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
        return log.read().decode(errors="replace")
