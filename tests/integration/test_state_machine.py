"""Random histories, driven through the SQL functions and the model side by side, compared after every
step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sharequeue.database import Database
from sharequeue.errors import InvalidRecordState
from sharequeue.offsets import OffsetSet
from sharequeue.state import AcknowledgeType, Lease, SharePartition, State
from tests.model import Model, Refused

STATES = ("available", "acquired", "acknowledged", "archiving", "archived")
EXAMPLES = int(os.environ.get("SHAREQUEUE_TEST_HISTORIES", "100"))
STEPS = 40
LOCK_SECONDS = 30.0
reached: set[tuple[str, str]] = set()

members = st.sampled_from(["m1", "m'2", "m3"])
answers = st.sampled_from(["accept", "release", "release", "reject", "gap", "leave"])


def offsets_of(chosen: list[int]) -> OffsetSet:
    return OffsetSet.of(*((offset, offset + 1) for offset in chosen))


class Histories(RuleBasedStateMachine):
    """One share-partition, three members, time jumps, a moving log, dead letters, repeated calls."""

    database: Database

    def __init__(self) -> None:
        super().__init__()
        self.state = State(self.database)
        self.at = SharePartition(f"g-{uuid4().hex[:12]}", "t", 0)
        self.leases: dict[int, Lease] = {}
        self.last: tuple[str, UUID, object] | None = None

    @initialize(limit=st.integers(2, 5), end=st.integers(0, 30), max_locks=st.integers(100, 120))
    def start(self, limit: int, end: int, max_locks: int) -> None:
        self.model = Model(limit=limit, lock=LOCK_SECONDS, max_locks=max_locks, log_end=end)
        configs = {
            "share.delivery.count.limit": str(limit),
            "share.partition.max.record.locks": str(max_locks),
            "errors.deadletterqueue.topic.name": "dlq.t",
        }
        with self.database.transaction() as connection:
            connection.execute(sa.text("select sharequeue.set_clock_offset(interval '0')"))
            connection.execute(
                sa.text("insert into sharequeue.share_groups (group_id) values (:group)"),
                {"group": self.at.group_id},
            )
            for name, value in configs.items():
                connection.execute(
                    sa.text("insert into sharequeue.group_configs values (:group, :name, :value)"),
                    {"group": self.at.group_id, "name": name, "value": value},
                )
        assert self.state.initialize(self.at, "id", 0, 2)
        self.observe(0)

    def observe(self, log_start: int) -> None:
        self.state.observe(self.at, "id", log_start, self.model.log_end, self.model.log_end)

    @rule(more=st.integers(1, 40))
    def produce(self, more: int) -> None:
        self.model.log_end += more
        self.observe(min(self.model.spso, self.model.log_end))

    @rule(member=members, most=st.integers(0, 25), again=st.booleans())
    def acquire(self, member: str, most: int, again: bool) -> None:
        request_id = uuid4()
        lease = self.state.acquire(self.at, member, None, most, request_id=request_id)
        number = lease.lease_id if lease else -1
        expected = self.model.acquire(number, member, most)
        got = (
            {o: d.delivery_count for d in lease.deliveries for o in d.offsets.iter_offsets()} if lease else {}
        )
        assert got == expected
        if lease:
            self.leases[number] = lease
            if again:
                repeated = self.state.acquire(self.at, member, None, most, request_id=request_id)
                assert repeated == lease

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), again=st.booleans())
    def acknowledge(self, data: st.DataObject, again: bool) -> None:
        lease = self.leases[data.draw(st.sampled_from(sorted(self.leases)), label="lease")]
        chosen = {offset: data.draw(answers) for offset in lease.offsets.iter_offsets()}
        if data.draw(st.integers(0, 9)) == 0:
            chosen[lease.offsets.end + 3] = "accept"
        given = {offset: answer for offset, answer in chosen.items() if answer != "leave"}
        outcomes = {
            AcknowledgeType[answer.upper()]: offsets_of([o for o, a in given.items() if a == answer])
            for answer in ("accept", "release", "reject", "gap")
        }
        try:
            self.model.acknowledge(lease.lease_id, lease.member_id, given)
        except Refused:
            with pytest.raises(InvalidRecordState):
                self.state.acknowledge(lease, outcomes)
            note("refused")
            return
        request_id = uuid4()
        answer = self.state.acknowledge(lease, outcomes, request_id=request_id)
        assert answer.spso == self.model.spso
        if again:
            assert self.state.acknowledge(lease, outcomes, request_id=request_id) == answer

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        lease = self.leases[data.draw(st.sampled_from(sorted(self.leases)), label="lease")]
        try:
            self.model.renew(lease.lease_id, lease.member_id)
        except Refused:
            with pytest.raises(InvalidRecordState):
                self.state.renew(lease)
        else:
            self.state.renew(lease)

    @rule(member=members)
    def release(self, member: str) -> None:
        self.state.release(self.at.group_id, member)
        self.model.release(member)

    @rule(seconds=st.sampled_from([1.0, 10.0, 45.0]))
    def pass_time(self, seconds: float) -> None:
        self.model.now += seconds
        with self.database.transaction() as connection:
            connection.execute(
                sa.text("select sharequeue.set_clock_offset(:offset)"),
                {"offset": timedelta(seconds=self.model.now)},
            )

    @rule()
    def sweep(self) -> None:
        self.state.sweep()
        self.model.sweep()

    @rule(data=st.data())
    def retention(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, self.model.log_end), label="log start")
        self.model.log_start(start)
        self.observe(start)

    @rule(most=st.integers(1, 10), written=st.booleans())
    def dead_letters(self, most: int, written: bool) -> None:
        batch = self.state.open_dead_letters(self.at, most)
        offsets = sorted(o for run in batch.letters for o in run.offsets.iter_offsets()) if batch else []
        assert offsets == self.model.open_dead_letters(most)
        if batch and written:
            assert self.state.close_dead_letters(self.at, batch.sequence) == len(offsets)
            assert self.state.close_dead_letters(self.at, batch.sequence) == 0
            self.model.close_dead_letters()

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "model"):
            return
        with self.database.transaction() as connection:
            rows = connection.execute(
                sa.text(
                    "select f.state, f.delivery_count, f.lease_id, f.isolate, f.offsets"
                    " from sharequeue.in_flight_offsets f"
                    " join sharequeue.share_partitions sp using (share_partition_id) where sp.group_id = :group"
                ),
                {"group": self.at.group_id},
            ).all()
        engine = {
            offset: (STATES[row.state], row.delivery_count, row.lease_id, row.isolate)
            for row in rows
            for offset in OffsetSet.parse(row.offsets).iter_offsets()
            # A batch that SPSO has entered keeps what is finished in it until SPSO leaves it.
            if row.state in (0, 1, 3) or offset >= self.model.spso
        }
        assert engine == {o: (r.state, r.count, r.lease, r.isolate) for o, r in self.model.records.items()}
        status = self.state.describe(self.at.group_id)[0]
        assert (status.spso, status.speo, status.lost_records) == (
            self.model.spso,
            self.model.speo,
            self.model.lost,
        )
        assert status.delivery_complete_count == self.model.complete()
        assert status.lag == max(0, self.model.log_end - self.model.spso - self.model.complete())
        counts = {
            (c.outcome, c.delivery_count): c.records for c in self.state.delivery_counts(self.at.group_id)
        }
        assert counts == self.model.counts
        assert self.state.verify(self.at.group_id) == []

    def teardown(self) -> None:
        """Every history ends with its dead letters written, so that none stops short of ARCHIVED."""
        if not hasattr(self, "model"):
            return
        while batch := self.state.open_dead_letters(self.at, 1000):
            assert sorted(o for run in batch.letters for o in run.offsets.iter_offsets()) == (
                self.model.open_dead_letters(1000)
            )
            self.state.close_dead_letters(self.at, batch.sequence)
            self.model.close_dead_letters()
        self.agree()
        reached.update(self.model.transitions)


@contextmanager
def real_time(database: Database) -> Iterator[None]:
    """Leaves the database's clock at real time again."""
    try:
        yield
    finally:
        with database.transaction() as connection:
            connection.execute(sa.text("select sharequeue.set_clock_offset(interval '0')"))


def test_random_histories_leave_engine_and_model_in_the_same_state(private_database: Database) -> None:
    """Whatever members do, in whatever order, every offset's state, count, lease, SPSO and lag are the
    model's."""
    reached.clear()
    machine = type("Machine", (Histories,), {"database": private_database})
    with real_time(private_database):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
    assert reached == {
        ("available", "acquired"),
        ("acquired", "available"),
        ("acquired", "acknowledged"),
        ("acquired", "archiving"),
        ("acquired", "archived"),
        ("archiving", "archived"),
    }
