"""On a cluster whatever dies or is done twice, the output and the ledger are the same: a master, two workers, and a
driver, each a process of its own."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.outputs.manifest import read_manifest
from sharequeue.spark.sinks.interface import SinkContext
from sharequeue.spark.sinks.postgres.sink import PostgresTable
from sharequeue.state import State
from tests.fixtures.cluster import RECORDS, Cluster, executor_of
from tests.fixtures.pipelines import Holder, MakeTable, RunJob, all_accepted, job_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow]

DEEP = pytest.mark.deep
SHORT_LOCK_MS = 5000


def ledger(state: State, group: str) -> pa.Table:
    """Nothing is held, nothing lags, every record is in the output once: the output that counts is given."""
    statuses = state.figures.describe(group)
    assert [(status.spso, status.lag, status.acquired) for status in statuses] == [(RECORDS, 0, 0)] * 2
    assert state.figures.leases(group) == []
    assert state.figures.verify(group) == []
    folders = read_manifest(state, group, f"sink-{group}")
    tables = [pq.read_table(file) for folder in folders for file in Path(folder).glob("*.parquet")]
    output = pa.concat_tables(tables, promote_options="default")
    offsets = Counter(zip(output["partition"].to_pylist(), output["offset"].to_pylist(), strict=True))
    assert offsets == {(p, n): 1 for p in range(2) for n in range(RECORDS)}
    return output


@DEEP
def test_a_failed_task_is_repeated_with_the_same_records(
    group: str, filled: str, cluster: Cluster, state: State
) -> None:
    """The first attempt at each task fails once its first batch is written: the second reads and writes the same."""
    cluster.begin(group, filled, held=[0, 1], fails=True)
    report = cluster.end()
    assert (report["accepted"], report["rounds"]) == (2 * RECORDS, 1)
    # The second one may be overtaken before it fails.
    assert report["failed_tasks"] in (1, 2)
    assert set(ledger(state, group)["attempt"].to_pylist()) == {1}


@pytest.mark.deep
def test_a_speculative_task_counts_once(group: str, filled: str, cluster: Cluster, state: State) -> None:
    """One of two tasks does not get on: Spark does it a second time beside it, and that output is the output."""
    cluster.begin(group, filled, held=[0])
    report = cluster.end()
    assert (report["accepted"], report["rounds"], report["failed_tasks"]) == (2 * RECORDS, 1, 0)
    output = ledger(state, group)
    assert set(zip(output["partition"].to_pylist(), output["attempt"].to_pylist(), strict=True)) == {
        (0, 1),
        (1, 0),
    }


@DEEP
def test_a_killed_executor_loses_no_record(group: str, filled: str, cluster: Cluster, state: State) -> None:
    """SIGKILL of an executor half-way through its task: the task is done again on another."""
    signals = cluster.begin(group, filled, held=[0, 1])
    executor_of(signals, 1)
    executor_of(signals, 0).kill()
    (signals / "go").touch()
    report = cluster.end()
    assert (report["accepted"], report["rounds"], report["failed_tasks"]) == (2 * RECORDS, 1, 1)
    ledger(state, group)


@DEEP
def test_a_lost_shuffle_is_read_again_from_the_topic(
    group: str, filled: str, cluster: Cluster, state: State
) -> None:
    """The handler shuffles, and an executor is killed with its half of the shuffled records: Spark reads those from
    the topic once more, and they are the same."""
    signals = cluster.begin(group, filled, held=[0, 1], shuffled=True)
    executor_of(signals, 1)
    executor_of(signals, 0).kill()
    (signals / "go").touch()
    report = cluster.end()
    assert (report["accepted"], report["rounds"]) == (2 * RECORDS, 1)
    assert report["stages_again"] > 0
    ledger(state, group)


@pytest.mark.parametrize(
    ("unshared", "said"),
    [
        ("untold", "set SHAREQUEUE_OUTPUT_SHARED=true"),
        ("all", f"the tasks wrote {2 * RECORDS} rows of .*, and the driver reads 0"),
        ("partly", "does not find|the driver reads"),
    ],
)
def test_an_output_that_is_not_shared_loses_nothing(
    group: str, filled: str, cluster: Cluster, state: State, unshared: str, said: str
) -> None:
    """Each process has another folder under the output's name: refused at once, unless the user says otherwise, and
    then as soon as the driver does not read what the tasks wrote. Nothing is acknowledged, and nothing
    is suspect."""
    (cluster.begin(group, filled, unshared=unshared) / "go").touch()
    error = cluster.end()["error"]
    assert error.startswith("OutputNotShared: ")
    assert re.search(said, error)
    statuses = state.figures.describe(group)
    assert [(status.spso, status.acquired, status.archiving) for status in statuses] == [(0, 0, 0)] * 2
    assert (
        state.outputs.counted(group, f"sink-{group}")
        == state.outputs.counted(group, f"sink-{group}-exceptions")
        == []
    )
    assert state.figures.leases(group) == []


@pytest.fixture
def table(make_table: MakeTable) -> str:
    """Give a table for what is accepted."""
    return make_table('partition int, "offset" bigint, attempt int')


@DEEP
@pytest.mark.parametrize("what", ["fails", "twice", "killed"])
def test_a_repeated_copy_into_postgres_counts_once(
    group: str,
    filled: str,
    cluster: Cluster,
    state: State,
    database: Database,
    table: str,
    what: str,
    output_settings: Settings,
) -> None:
    """Half of a lease's rows are copied when the task fails, is overtaken by a second one, or loses its executor: the
    table has each record once, and no staging table stays."""
    held = {"fails": [0, 1], "twice": [0], "killed": [0, 1]}[what]
    signals = cluster.begin(group, filled, held=held, fails=what == "fails", table=table)
    if what == "killed":
        executor_of(signals, 1)
        executor_of(signals, 0).kill()
        (signals / "go").touch()
    report = cluster.end()
    assert (report["accepted"], report["rounds"]) == (2 * RECORDS, 1)
    assert report["failed_tasks"] in {"fails": (1, 2), "twice": (0,), "killed": (1,)}[what]
    rows = database.rows(sa.text(f'select partition, "offset" from {table}'))  # noqa: S608
    assert Counter((row["partition"], row["offset"]) for row in rows) == {
        (p, n): 1 for p in range(2) for n in range(RECORDS)
    }
    assert state.figures.leases(group) == []
    assert state.figures.verify(group) == []
    # Which a task that was overtaken still holds, until it ends: then the next run drops it.
    (signals / "go").touch()
    no_spark: Any = None
    context = SinkContext(output_settings, state, no_spark, job_of(group, filled, all_accepted).names)
    left = sa.text(
        "select tablename from pg_tables where schemaname = :schema and tablename like 'sharequeue_staging%'"
    )

    def none_left() -> bool:
        with PostgresTable(table).open(context):
            return not database.rows(left, schema=table.partition(".")[0])

    wait_until(none_left, otherwise="a staging table stays")


@pytest.mark.deep
def test_the_next_run_processes_the_records_of_a_killed_driver(
    group: str, filled: str, cluster: Cluster, state: State, run_job: RunJob
) -> None:
    """SIGKILL of the driver while its executors write: nobody sees what they wrote, the locks lapse, the next run,
    on another Spark altogether, processes each record."""
    alter_group_configs(state.database, group, {"share.record.lock.duration.ms": SHORT_LOCK_MS})
    signals = cluster.begin(group, filled, held=[0, 1])
    executors = [executor_of(signals, task) for task in range(2)]
    cluster.kill_driver()
    assert read_manifest(state, group, f"sink-{group}") == ()
    assert sum(row.records for row in state.figures.leases(group)) == 2 * RECORDS

    def lapsed() -> bool:
        state.sweep()
        return not state.figures.leases(group)

    wait_until(lapsed, otherwise="the locks of a dead driver do not lapse")
    wait_until(
        lambda: not any(executor.is_running() for executor in executors),
        otherwise="an executor lives on",
    )
    holder = Holder([SharePartition(group, filled, partition) for partition in range(2)])
    assert run_job(job_of(group, filled, all_accepted), holder).accepted == 2 * RECORDS
    ledger(state, group)
