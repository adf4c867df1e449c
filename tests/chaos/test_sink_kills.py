"""A run that writes into a table, killed at any moment: the table has every accepted record exactly once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.local.stack import StackInfo
from sharequeue.spark.sinks.interface import SinkContext
from sharequeue.spark.sinks.postgres.sink import Step
from sharequeue.state import State
from tests import single
from tests.chaos.drain_to_postgres import drain, job_of, rejected
from tests.chaos.forked_processes import INTO_POSTGRES, in_fork
from tests.servers.cutting_proxy import CuttingProxy

RECORDS = 900
"""Six leases: the second is killed, and others follow."""
LEASE_RECORDS = 150
STEPS: tuple[Step, ...] = get_args(Step)
Forked = Callable[..., int]


class Filled:
    """A share-partition with records, a table, and what drains the one into the other."""

    def __init__(
        self, database: Database, settings: Settings, group: str, topic: str, records: int = RECORDS
    ) -> None:
        url = database.engine.url.render_as_string(hide_password=False)
        self.database, self.group, self.topic, self.records = database, group, topic, records
        self.settings = settings.replace(database_url=url)
        self.state = State(database)
        configs = {"share.partition.max.record.locks": str(2**31 - 1), "share.delivery.count.limit": "10"}
        alter_group_configs(database, group, configs | {"sharequeue.retry.backoff.ms": "0"})
        at = SharePartition(group, topic, 0)
        self.state.initialize(at, "id", 0, 1)
        single.observe(self.state, at, "id", 0, records, records)
        self.run(
            'create table public.accepted (topic text, partition int, "offset" bigint, lease_id bigint, text text)'
        )

    def run(self, statement: str) -> None:
        with self.database.transaction() as connection:
            connection.exec_driver_sql(statement)

    def start(self, forked: Forked, step: str, nth: int, delay_ms: int = 0) -> int:
        """Drain in a process of its own that is killed at this step; return its exit code."""
        at = (self.settings.database_url, self.group, self.topic, "public.accepted")
        return forked(*at, LEASE_RECORDS, step, nth, delay_ms)

    def lapse(self) -> None:
        """More time passes than any lock lasts: those of the dead lapse."""
        self.run(
            "select sharequeue.set_clock_offset("
            "(select amount from sharequeue.clock_offset) + interval '61 s')"
        )

    def finish(self) -> None:
        """What is left comes again, until it is done."""
        self.lapse()
        drain(self.settings, self.state, self.group, self.topic, "public.accepted", LEASE_RECORDS)

    def assert_each_accepted_record_is_there_once(self) -> None:
        rows = self.database.rows(sa.text('select "offset", text from public.accepted order by "offset"'))
        expected = [n for n in range(self.records) if not rejected(n)]
        assert [row["offset"] for row in rows] == expected
        assert all(row["text"] == f'record "of"\n{row["offset"]}' for row in rows)
        (status,) = self.state.figures.describe(self.group)
        assert (status.spso, status.leases) == (self.records, 0)
        counted = sum(row.records for row in self.state.outputs.counted(self.group, "table"))
        assert counted == len(expected)
        assert self.state.figures.verify(self.group) == []
        job = job_of(self.group, self.topic, "public.accepted")
        assert job.destination is not None
        no_spark: Any = None
        with job.destination.open(SinkContext(self.settings, self.state, no_spark, job.names)):
            pass
        left = "select relname from pg_class where relname like 'sharequeue_staging%'"
        assert self.database.rows(sa.text(left)) == []


@pytest.fixture
def filled(private_database: Database, settings: Settings, group: str, topic: str) -> Filled:
    """Give records to drain, in a database of this test alone."""
    return Filled(private_database, settings, group, topic)


@pytest.fixture(scope="module")
def forked(stack: StackInfo) -> Iterator[Forked]:
    """Give a function that drains in a process of its own."""
    with in_fork(stack.home, module=INTO_POSTGRES) as drain:
        yield drain


@pytest.mark.parametrize("step", STEPS)
def test_a_run_killed_at_any_step_writes_each_record_once(filled: Filled, forked: Forked, step: Step) -> None:
    """Dead there, the second lease's rows are in the table exactly if its acknowledgement was committed; the next
    run brings the rest, each record once."""
    assert filled.start(forked, step, 2) == -signal.SIGKILL
    committed = step in ("committed", "dropped")
    in_table = filled.database.rows(sa.text("select count(distinct lease_id) as leases from public.accepted"))
    assert in_table[0]["leases"] == (2 if committed else 1)
    assert len(filled.state.outputs.counted(filled.group, "table")) == (2 if committed else 1)
    filled.finish()
    filled.assert_each_accepted_record_is_there_once()


@pytest.mark.parametrize("after", [0, pytest.param(3, marks=pytest.mark.deep)])
def test_a_commit_with_a_lost_reply_is_not_repeated(filled: Filled, after: int) -> None:
    """The connection is cut in the reply to the commit: the transaction is repeated, sees that it was committed, and
    writes nothing more."""
    url = filled.database.engine.url
    with CuttingProxy(str(url.host), int(url.port or 0)) as proxy:
        through = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        armed = False

        def cut(step: str) -> None:
            nonlocal armed
            if step == "acknowledged" and not armed:
                armed = True
                proxy.arm("COMMIT", after)

        settings = filled.settings.replace(database_url=through)
        with Database(through) as database:
            drain(
                settings, State(database), filled.group, filled.topic, "public.accepted", LEASE_RECORDS, cut
            )
        assert proxy.cuts == 1
    filled.assert_each_accepted_record_is_there_once()
