"""A cluster whose executors share no disk with the driver: the output is on S3, or on HDFS. Whatever is killed, the
output and the ledger are the same; what the executors open towards Postgres is bounded."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.local import optional_jars
from sharequeue.local.stack import StackInfo
from sharequeue.outputs.manifest import read_manifest
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.run import run_rounds
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from tests.fixtures.cluster import HOSTS, RECORDS, Cluster, cluster_on, executor_of
from tests.fixtures.object_stores import S3
from tests.fixtures.pipelines import Assigned, Holder, MakeTable, Produce, all_accepted, job_of
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.timeout(900)

SHORT_LOCK_MS = 5000
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.scheduler.minRegisteredResourcesRatio": "0",
}
CONNECTIONS = 3
TASKS = 200


@pytest.fixture(scope="module", params=["s3a", "hdfs"])
def cluster(
    stack: StackInfo, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Give a cluster whose output is in a store, and whose executors get one module by `spark.submit.pyFiles`."""
    archive = tmp_path_factory.mktemp("archive") / "rules.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("only_in_the_archive.py", 'OUTCOME = "accept"\n')
    conf = {"spark.submit.pyFiles": str(archive)}
    if request.param == "s3a":
        s3: S3 = request.getfixturevalue("s3")
        optional_jars.ensure(Settings.load(stack.home), ["s3a"], print)
        output = f"s3a://{s3.bucket()}/out"
        conf |= {f"spark.hadoop.{name}": value for name, value in s3.conf.items()}
    else:
        output = f"{request.getfixturevalue('hdfs')}/cluster/out"
    with cluster_on(stack, output, conf) as made:
        yield made


@pytest.fixture
def own_settings(settings: Settings, cluster: Cluster, spark: SparkSession) -> Iterator[Settings]:
    """Give the settings with the cluster's output; the session of the tests reaches it meanwhile."""
    known = {
        name.removeprefix("spark.hadoop."): value
        for name, value in cluster.conf.items()
        if name.startswith("spark.hadoop.")
    }
    for name, value in known.items():
        spark.conf.set(name, value)
    yield settings.replace(output=str(cluster.output))
    for name in known:
        spark.conf.unset(name)


def ledger(state: State, spark: SparkSession, group: str) -> set[tuple[int, int]]:
    """Nothing is held, nothing lags, every record is in the output once: partitions and attempts are given."""
    statuses = state.figures.describe(group)
    assert [(status.spso, status.lag, status.acquired) for status in statuses] == [(RECORDS, 0, 0)] * 2
    assert state.figures.leases(group) == []
    assert state.figures.verify(group) == []
    rows = read_output(spark, state, group, f"sink-{group}").collect()
    assert Counter((row["partition"], row["offset"]) for row in rows) == {
        (p, n): 1 for p in range(2) for n in range(RECORDS)
    }
    return {(row["partition"], row["attempt"]) for row in rows if "attempt" in row}


def test_executors_have_what_the_archive_brings(
    group: str, filled: str, cluster: Cluster, state: State, spark: SparkSession, own_settings: Settings
) -> None:
    """The handler's own module is in `spark.submit.pyFiles` only. No executor has a package of this project."""
    cluster.begin(group, filled, packaged=True)
    report = cluster.end()
    assert (report.get("accepted"), report.get("error")) == (2 * RECORDS, None)
    ledger(state, spark, group)


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "twice"])
def test_a_task_that_runs_twice_counts_once(
    group: str,
    filled: str,
    cluster: Cluster,
    state: State,
    spark: SparkSession,
    own_settings: Settings,
    fails: bool,
) -> None:
    """A task fails half-way, or is overtaken by a second attempt and then goes on: the store shows one attempt."""
    signals = cluster.begin(group, filled, held=[0], fails=fails)
    report = cluster.end()
    assert (report.get("accepted"), report.get("error")) == (2 * RECORDS, None)
    assert ledger(state, spark, group) == {(0, 1), (1, 0)}
    # The first attempt, if it is there still, goes on and ends.
    (signals / "go").touch()
    assert sweep_outputs(spark, own_settings, state, job_of(group, filled, all_accepted)) == []
    assert ledger(state, spark, group) == {(0, 1), (1, 0)}


def test_a_killed_worker_loses_no_record(
    group: str, filled: str, cluster: Cluster, state: State, spark: SparkSession, own_settings: Settings
) -> None:
    """A worker dies with its executor half-way through a task: the other worker does all."""
    signals = cluster.begin(group, filled, held=[0, 1])
    for task in range(2):
        executor_of(signals, task)
    cluster.kill_worker(HOSTS[1])
    (signals / "go").touch()
    report = cluster.end()
    cluster.start_worker(HOSTS[1])
    assert (report.get("accepted"), report.get("error")) == (2 * RECORDS, None)
    ledger(state, spark, group)


@pytest.mark.parametrize("worker", [False, True], ids=["driver", "driver and worker"])
def test_the_next_run_processes_the_records_of_a_killed_driver(
    group: str,
    filled: str,
    cluster: Cluster,
    state: State,
    topics: Topics,
    spark: SparkSession,
    own_settings: Settings,
    worker: bool,
) -> None:
    """Killed while its executors write, alone or with a worker: nobody sees what they wrote, the locks lapse, the
    next run processes each record, and the sweep removes what is left."""
    alter_group_configs(state.database, group, {"share.record.lock.duration.ms": SHORT_LOCK_MS})
    signals = cluster.begin(group, filled, held=[0, 1])
    executors = [executor_of(signals, task) for task in range(2)]
    if worker:
        cluster.kill_worker(HOSTS[1])
    cluster.kill_driver()
    if worker:
        cluster.start_worker(HOSTS[1])
    assert read_manifest(state, group, f"sink-{group}") == ()

    def lapsed() -> bool:
        state.sweep()
        return not state.figures.leases(group)

    wait_until(lapsed, otherwise="the locks of a dead driver do not lapse")
    wait_until(
        lambda: not any(executor.is_running() for executor in executors), otherwise="an executor lives on"
    )
    job = job_of(group, filled, all_accepted)
    holder = Holder([SharePartition(group, filled, partition) for partition in range(2)])
    report = run_rounds(own_settings, job, membership=holder, state=state, topics=topics, spark=spark)
    assert report.accepted == 2 * RECORDS
    sweep_outputs(spark, own_settings, state, job)
    assert sweep_outputs(spark, own_settings, state, job) == []
    ledger(state, spark, group)


def test_executors_that_come_and_go_lose_nothing(
    group: str, filled: str, cluster: Cluster, state: State, spark: SparkSession, own_settings: Settings
) -> None:
    """Dynamic allocation starts with no executor; one is killed half-way through its task, after a shuffle."""
    cluster.stop_driver()
    usual = cluster.conf
    cluster.conf = {**usual, **DYNAMIC}
    try:
        signals = cluster.begin(group, filled, held=[0], shuffled=True, executors=0)
        executor_of(signals, 0).kill()
        (signals / "go").touch()
        report = cluster.end()
    finally:
        cluster.stop_driver()
        cluster.conf = usual
    assert (report.get("accepted"), report.get("error")) == (2 * RECORDS, None)
    ledger(state, spark, group)


def test_executors_read_by_offset_what_cannot_be_scanned(
    group: str,
    make_topic: MakeTopic,
    assigned: Assigned,
    cluster: Cluster,
    state: State,
    spark: SparkSession,
    own_settings: Settings,
) -> None:
    """Timestamps in nanoseconds, which Spark's connector cannot represent."""
    topic = make_topic(2, message_timestamp_after_max_ms=str(2**63 - 1))
    producer = Producer(client_config(own_settings))
    for number in range(2 * RECORDS):
        producer.produce(topic, b"a", timestamp=1_700_000_000_000_000_000, partition=number % 2)
    assert producer.flush(PATIENCE_S) == 0
    assigned(topic)
    cluster.begin(group, topic)
    report = cluster.end()
    assert (report.get("accepted"), report.get("error")) == (2 * RECORDS, None)
    ledger(state, spark, group)


def test_connections_of_executors_to_postgres_are_bounded(
    group: str,
    filled: str,
    stack: StackInfo,
    state: State,
    database: Database,
    settings: Settings,
    make_table: MakeTable,
    produce: Produce,
    tmp_path: Path,
) -> None:
    """A handler has 200 tasks, and there is room for 16 at once: with a login that may have three connections, and
    three named, all rows are copied. Each task keeps its connection until it is told to go on: with 16 named Postgres
    refuses some, which is an error, and nothing is acknowledged."""
    table = make_table('partition int, "offset" bigint, attempt int')
    role = f"copies_{group.replace('-', '_')}"
    with database.transaction() as connection:
        connection.execute(
            sa.text(f"create role {role} login password 'copies' connection limit {CONNECTIONS}")
        )
        connection.execute(sa.text(f"grant usage, create on schema {table.partition('.')[0]} to {role}"))
        connection.execute(sa.text(f"alter default privileges grant select, insert on tables to {role}"))
    url = sa.make_url(settings.database_url).set(username=role, password="copies")
    alone = Cluster(stack.home, tmp_path, "local[16]", tmp_path / "output", {"spark.driver.memory": "1g"})
    asked = {
        "tasks": TASKS,
        "held": range(TASKS),
        "shuffled": True,
        "table": table,
        "url": url.render_as_string(hide_password=False),
        "executors": 0,
    }
    try:
        signals = alone.begin(group, filled, connections=CONNECTIONS, **asked)  # type: ignore[arg-type]
        wait_until(lambda: (signals / str(CONNECTIONS - 1)).exists(), 240, "the tasks do not copy")
        opened = database.rows(
            sa.text("select count(*) as opened from pg_stat_activity where usename = :role"), role=role
        )
        (signals / "go").touch()
        report = alone.end()
        produce(filled, 0, range(RECORDS))
        alone.begin(group, filled, connections=16, **asked)  # type: ignore[arg-type]
        refused = alone.end()
    finally:
        alone.stop_driver()
        with database.transaction() as connection:
            connection.execute(sa.text(f"drop owned by {role}"))
            connection.execute(
                sa.text(f"alter default privileges revoke select, insert on tables from {role}")
            )
            connection.execute(sa.text(f"drop role {role}"))
    assert (report.get("accepted"), report.get("error")) == (2 * RECORDS, None)
    assert opened[0]["opened"] <= CONNECTIONS
    assert "too many connections" in refused["error"]
    assert {status.spso for status in state.figures.describe(group)} == {RECORDS}
    rows = database.rows(sa.text(f'select partition, "offset" from {table}'))  # noqa: S608
    assert Counter((row["partition"], row["offset"]) for row in rows) == {
        (p, n): 1 for p in range(2) for n in range(RECORDS)
    }
