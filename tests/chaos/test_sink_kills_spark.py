"""A driver with Spark killed at its sink: what comes of each record when the next run has finished."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Lease
from sharequeue.spark.sinks.at_least_once import AtLeastOnce
from sharequeue.spark.sinks.postgres.sink import PostgresTable
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, MakeTable, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic
from tests.killed import run_killed
from tests.waiting import pass_time, wait_until

pytestmark = pytest.mark.slow

RECORDS = 100
"""By partition, of two."""
LOCK_SECONDS = 600
"""The lock duration that `assigned` gives a group."""

KILLED = textwrap.dedent(
    """
    import os, sys, threading
    from pathlib import Path
    from sharequeue.spark import AtLeastOnce, PostgresTable, spark_session
    from sharequeue.spark.run import run_rounds
    from sharequeue.database import Database
    from sharequeue.domain.settings import Settings
    from sharequeue.domain.values import SharePartition
    from sharequeue.state import State
    from sharequeue.kafka.topics import Topics
    from tests.fixtures.pipelines import Holder, all_accepted, job_of

    home, output, url, group, topic, kind, where, delay_ms = sys.argv[1:]
    settings = Settings.load(home, output=output, database_url=url)

    def die():
        os.kill(os.getpid(), 9)

    def die_at(wanted):
        def on_step(step):
            if step == wanted and int(delay_ms):
                threading.Timer(int(delay_ms) / 1000, die).start()
            elif step == wanted:
                die()
        return on_step

    def write(rows, lease):
        die_at(kind)("writing")
        text = rows.select("partition", "offset").toPandas().to_csv(index=False)
        Path(where, str(lease.lease_id)).write_text(text)
        die_at(kind)("written")

    sink = AtLeastOnce(write) if kind in ("writing", "written") else PostgresTable(where, on_step=die_at(kind))
    job = job_of(group, topic, all_accepted, destination=sink)
    holder = Holder([SharePartition(group, topic, partition) for partition in range(2)], "killed")
    state, spark = State(Database.open(settings)), spark_session(settings, "killed")
    run_rounds(settings, job, membership=holder, state=state, topics=Topics(settings), spark=spark)
    """
)


@pytest.fixture
def database(private_database: Database) -> Database:
    """Give a database of this test alone, whose clock it moves."""
    return private_database


@pytest.fixture
def settings(settings: Settings, database: Database) -> Settings:
    """Give the settings of the stack with that database."""
    return settings.replace(database_url=database.engine.url.render_as_string(hide_password=False))


@pytest.fixture
def filled(make_topic: MakeTopic, produce: Produce) -> str:
    """Give a topic of two partitions with records."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, range(RECORDS))
    return topic


@pytest.fixture
def table(make_table: MakeTable) -> str:
    """Give a table for what is accepted."""
    return make_table('partition int, "offset" bigint, lease_id bigint')


def kill(settings: Settings, group: str, topic: str, kind: str, where: str, delay_ms: int = 0) -> None:
    """Run until the process kills itself at this step of its first lease, or so long after it."""
    addresses = (settings.home, settings.output, settings.database_url)
    run_killed(KILLED, *addresses, group, topic, kind, where, delay_ms, may_end=delay_ms > 0)


def locks_lapse(state: State, group: str) -> None:
    """The killed run's locks lapse, and a sweep ends them, once Postgres has noticed that the process is gone: until
    then its open transaction holds a share-partition."""
    pass_time(state.database, LOCK_SECONDS + 1)

    def lapsed() -> bool:
        state.sweep()
        return not state.figures.leases(group)

    wait_until(lapsed)


@pytest.mark.deep
def test_a_driver_killed_before_its_commit_writes_each_record_exactly_once(
    group: str,
    filled: str,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    database: Database,
    table: str,
    output_settings: Settings,
) -> None:
    """Rows inserted and acknowledged, but not committed, are not in the table; the next run and the sweep leave each
    record there once, no staging table and no file."""
    holder = assigned(filled)
    kill(output_settings, group, filled, "acknowledged", table)
    count = sa.text(f"select count(*) as rows from {table}")  # noqa: S608 - a name of this test's
    assert database.rows(count)[0]["rows"] == 0
    locks_lapse(state, group)
    job = job_of(group, filled, all_accepted, destination=PostgresTable(table))
    assert run_job(job, holder).accepted == 2 * RECORDS
    found = database.rows(sa.text(f'select partition, "offset" from {table}'))  # noqa: S608 - the same
    assert Counter((row["partition"], row["offset"]) for row in found) == {
        (partition, n): 1 for partition in range(2) for n in range(RECORDS)
    }
    assert sweep_outputs(spark, output_settings, state, job)
    assert sweep_outputs(spark, output_settings, state, job) == []
    assert not list((output_settings.local_output / job.sink).glob("leases=*"))
    assert state.figures.verify(group) == []


@pytest.mark.deep
def test_a_driver_killed_after_the_users_writer_writes_again(
    group: str,
    filled: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    output_settings: Settings,
    tmp_path: Path,
) -> None:
    """At least once, and no more is promised: what the writer had written comes again under another lease; nothing is
    left out."""
    holder = assigned(filled)
    kill(output_settings, group, filled, "written", str(tmp_path))
    (before,) = tmp_path.glob("[0-9]*")
    written = Counter(before.read_text().split()[1:])
    assert len(written) == RECORDS
    locks_lapse(state, group)

    def write(rows: DataFrame, lease: Lease) -> None:
        written.update(f"{row['partition']},{row['offset']}" for row in rows.collect())

    assert (
        run_job(job_of(group, filled, all_accepted, destination=AtLeastOnce(write)), holder).accepted
        == 2 * RECORDS
    )
    assert sorted(written.values()) == [1] * RECORDS + [2] * RECORDS
