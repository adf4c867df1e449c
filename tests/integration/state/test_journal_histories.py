"""The journal says what the state is: replayed from any snapshot it gives every table of the state, bit by bit."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from sharequeue.database import Database
from sharequeue.domain.errors import ShareError, UnknownTopicId
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, Lease, SharePartition
from sharequeue.state import State
from sharequeue.state.journal import Journal
from tests import single

EXAMPLES = max(1, int(os.environ.get("SHAREQUEUE_TEST_HISTORIES", "100")) // 10)
STEPS = 40

members = st.sampled_from(["m1", "m'2"])
OUTCOMES = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT, AcknowledgeType.GAP)


class Histories(RuleBasedStateMachine):
    """One share-partition, two members, every operation that changes state, snapshots in between."""

    database: Database

    def __init__(self) -> None:
        super().__init__()
        self.state = State(self.database)
        self.journal = Journal(self.database)
        self.at = SharePartition(f"g-{uuid4().hex[:12]}", "t", 0)
        self.leases: list[Lease] = []
        self.log_end = 0
        self.seconds = 0.0

    def run(self, query: str, **parameters: object) -> list[sa.RowMapping]:
        return self.database.rows(sa.text(query), group_id=self.at.group_id, **parameters)

    @initialize(end=st.integers(10, 60), limit=st.integers(2, 5), dead_letters=st.booleans())
    def start(self, end: int, limit: int, dead_letters: bool) -> None:
        self.run("select sharequeue.set_clock_offset(interval '0') where :group_id <> ''")
        self.run("insert into sharequeue.share_groups (group_id) values (:group_id) returning 1")
        configs = {"share.delivery.count.limit": str(limit), "share.partition.max.record.locks": "100"}
        if dead_letters:
            configs["errors.deadletterqueue.topic.name"] = "dlq.t"
        for name, value in configs.items():
            self.run(
                "insert into sharequeue.group_configs values (:group_id, :name, :value) returning 1",
                name=name,
                value=value,
            )
        self.topic_id = "id"
        assert self.state.initialize(self.at, self.topic_id, 0, 2)
        self.log_end = end
        self.observe(0)

    def observe(self, log_start: int) -> None:
        single.observe(self.state, self.at, self.topic_id, log_start, self.log_end, self.log_end)

    @rule(more=st.integers(1, 40))
    def produce(self, more: int) -> None:
        self.log_end += more
        self.observe(0)

    @rule(
        member=members,
        most=st.integers(1, 25),
        redelivery=st.sampled_from(["kafka", "fan_out"]),
        mode=st.sampled_from(["batch_optimized", "record_limit"]),
        width=st.integers(0, 12),
    )
    def acquire(self, member: str, most: int, redelivery: str, mode: str, width: int) -> None:
        batches = [(o, o + width - 1) for o in range(0, self.log_end, width)] if width else None
        with suppress(UnknownTopicId):
            lease = single.acquire_of_log(
                self.state,
                self.at,
                member,
                most,
                redelivery=redelivery,
                mode=mode,
                log_batches=batches,
            )
            if lease:
                self.leases.append(lease)

    @rule(data=st.data(), wait=st.booleans())
    def acknowledge(self, data: st.DataObject, wait: bool) -> None:
        if not self.leases:
            return
        lease = self.leases[data.draw(st.integers(0, len(self.leases) - 1))]
        outcomes: dict[AcknowledgeType, list[tuple[int, int]]] = {}
        for offset in lease.offsets.iter_offsets():
            result = data.draw(st.sampled_from((*OUTCOMES, AcknowledgeType.RELEASE, None)))
            if result is not None:
                outcomes.setdefault(result, []).append((offset, offset + 1))
        try:
            single.acknowledge(
                self.state,
                lease,
                {result: OffsetSet.of(*pairs) for result, pairs in outcomes.items()},
                not_before=self.state.now() + timedelta(seconds=5) if wait else None,
            )
        except ShareError:
            self.leases.remove(lease)

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        if not self.leases:
            return
        lease = self.leases[data.draw(st.integers(0, len(self.leases) - 1))]
        half = [o for o in lease.offsets.iter_offsets() if o % 2]
        for query, parameters in (
            (
                "select * from sharequeue.acknowledge_batches(:group_id, 't', 0, null, :member_id, null, null, null,"
                " cast(:firsts as bigint[]), cast(:firsts as bigint[]), cast(:types as smallint[]))",
                {"firsts": half, "types": [4] * len(half), "member_id": lease.member_id},
            ),
            (
                "select * from sharequeue.renew(:group_id, 't', 0, null, :member_id, null, cast(:token as uuid))",
                {"token": str(lease.token), "member_id": lease.member_id},
            ),
        ):
            self.run(query, **parameters)

    @rule(member=members)
    def release(self, member: str) -> None:
        self.state.release_member(self.at.group_id, member)

    @rule(seconds=st.sampled_from([1.0, 10.0, 45.0, 100_000.0]))
    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds
        self.run(
            "select sharequeue.set_clock_offset(:amount) where :group_id <> ''",
            amount=timedelta(seconds=self.seconds),
        )

    @rule()
    def sweep(self) -> None:
        self.state.sweep()

    @rule(data=st.data())
    def retention(self, data: st.DataObject) -> None:
        self.observe(data.draw(st.integers(0, self.log_end)))

    @rule(most=st.integers(1, 10), dropped=st.booleans())
    def dead_letters(self, most: int, dropped: bool) -> None:
        batch = self.state.dead_letters.open(self.at, most)
        if batch:
            self.agree()
            self.state.dead_letters.close(batch, dropped=dropped)

    @rule(
        act=st.sampled_from(
            [
                "select sharequeue.pause(:group_id, 'why', 't', 0)",
                "select sharequeue.pause(:group_id, null, 't', 0)",
                "select sharequeue.pause(:group_id, 'why')",
                "select sharequeue.pause(:group_id, null)",
                "select sharequeue.raise_state_epochs() where :group_id <> ''",
                "select sharequeue.extend_locks(interval '7 s') where :group_id <> ''",
                "select sharequeue.observe(:group_id, 't', 0, 'other id', 0, 10, 10)",
            ]
        )
    )
    def administer(self, act: str) -> None:
        self.run(act)

    @rule(to=st.integers(0, 60), made_again=st.booleans())
    def alter(self, to: int, made_again: bool) -> None:
        if made_again or self.state.figures.describe(self.at.group_id)[0].status != "active":
            self.topic_id += "'"
        single.alter_offsets(self.state, self.at, self.topic_id, to)
        self.leases.clear()

    @rule()
    def snapshot(self) -> None:
        single.take_snapshot(self.state, self.at)

    @invariant()
    def agree(self) -> None:
        assert self.journal.verify(self.at.group_id, snapshots=1000) == []

    def teardown(self) -> None:
        """Every history ends deleted; nothing can be replayed any more."""
        self.state.administration.delete_offsets(self.at.group_id, "t")
        self.agree()


@pytest.mark.rule("R-EP-9", "R-EP-11")
def test_replay_from_every_snapshot_gives_the_present_state(private_database: Database) -> None:
    """After every step of every random history, and from every snapshot taken on the way, replay gives the columns of
    share_partitions, in_flight_batches, leases and delivery_counts exactly."""
    machine = type("Machine", (Histories,), {"database": private_database})
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
