"""Kafka and the coordinator service killed under a sink: what comes of each record once they are back."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Lease
from sharequeue.groups.membership import Membership
from sharequeue.local import processes
from sharequeue.local.home import Home
from sharequeue.local.stack import StackInfo
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.sinks.at_least_once import AtLeastOnce
from sharequeue.spark.sinks.postgres.sink import PostgresTable
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, MakeTable, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic, has_share_bounds, start_service
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow]

RECORDS = 300
ROUND_RECORDS = 100
MOST_RUNS = 5


class Servers:
    """The stack's broker and service, killed once, and started again beside whoever works."""

    def __init__(self, stack: StackInfo) -> None:
        self.home, self.starting = (
            stack.home,
            threading.Thread(target=start_service, args=(stack.home,)),
        )
        self.killed = False

    def kill(self) -> None:
        """SIGKILL to both, the first time this is called."""
        if self.killed:
            return
        self.killed = True
        for name in ("kafka", "service"):
            found = processes.find(Home.at(self.home), name)
            assert found is not None
            os.kill(found.pid, signal.SIGKILL)
        self.starting.start()


@pytest.fixture
def drained(
    stack: StackInfo,
    service: str,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    settings: Settings,
) -> Callable[[Callable[[str, Servers], ShareGroupJob]], None]:
    """Give a function that runs the job, which kills the servers in its first round, as often as it takes."""

    def drain(make: Callable[[str, Servers], ShareGroupJob]) -> None:
        topic, servers = make_topic(1), Servers(stack)
        produce(topic, 0, range(RECORDS))
        assigned(topic)
        job = make(topic, servers)
        for _ in range(MOST_RUNS):
            try:
                with Membership(service, group, [topic]) as member:
                    member.join(timeout=PATIENCE_S)
                    report = run_job(job, member, max_records=ROUND_RECORDS)
                if report.drained:
                    break
            except Exception as error:
                print(f"a run ended by {type(error).__name__}: {error}")
            if servers.killed:
                servers.starting.join()
        assert servers.killed
        assert has_share_bounds(settings)  # the broker of later tests is the one that was asked for
        (status,) = state.figures.describe(group)
        assert (status.spso, status.lag, status.leases) == (RECORDS, 0, 0)
        assert state.figures.verify(group) == []

    return drain


def test_a_table_has_each_record_exactly_once(
    drained: Callable[[Callable[[str, Servers], ShareGroupJob]], None],
    group: str,
    database: Database,
    make_table: MakeTable,
) -> None:
    """Killed while the first lease's rows are staged."""
    table = make_table('"offset" bigint')

    def make(topic: str, servers: Servers) -> ShareGroupJob:
        def on_step(step: str) -> None:
            if step == "staged":
                servers.kill()

        return job_of(group, topic, all_accepted, destination=PostgresTable(table, on_step=on_step))

    drained(make)
    rows = database.rows(sa.text(f'select "offset" from {table} order by 1'))  # noqa: S608
    assert [row["offset"] for row in rows] == list(range(RECORDS))


@pytest.mark.deep
def test_a_writer_of_the_users_gets_each_record_at_least_once(
    drained: Callable[[Callable[[str, Servers], ShareGroupJob]], None], group: str
) -> None:
    """Killed while it writes the first lease."""
    written: Counter[int] = Counter()

    def make(topic: str, servers: Servers) -> ShareGroupJob:
        def write(rows: DataFrame, lease: Lease) -> None:
            servers.kill()
            written.update(row["offset"] for row in rows.select("offset").collect())

        return job_of(group, topic, all_accepted, destination=AtLeastOnce(write))

    drained(make)
    assert sorted(written) == list(range(RECORDS))
