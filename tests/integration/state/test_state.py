"""The state of a share-partition, fact by fact: fencing, lost replies, poison isolation, outputs,
concurrency."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from uuid import uuid4

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import (
    FencedMemberEpoch,
    FencedStateEpoch,
    GroupIdNotFound,
    InvalidRecordState,
    InvalidRequest,
    UnknownMemberId,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, DeadLetterBatch, Lease, LeaseOutput, SharePartition
from sharequeue.state import State
from tests import single
from tests.waiting import pass_time

ACCEPT, RELEASE, REJECT, GAP = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.GAP,
)


def acquired(state: State, at: SharePartition, most: int = 10_000, member: str = "m1") -> Lease:
    lease = single.acquire(state, at, member, None, most)
    assert lease is not None
    return lease


def test_a_refused_acknowledgement_changes_nothing(state: State, at: SharePartition) -> None:
    """All or nothing: one offset that is not held undoes the whole call (R-AK-14)."""
    lease = acquired(state, at, 10)
    before = state.figures.describe("g")
    with pytest.raises(InvalidRecordState, match="offset 10 "):
        single.acknowledge(state, lease, {ACCEPT: OffsetSet.of((0, 11))})
    assert state.figures.describe("g") == before


def test_a_late_worker_is_refused_and_changes_nothing(
    state: State, at: SharePartition, private_database: Database
) -> None:
    """After its lock lapsed a holder can neither renew nor acknowledge, though nobody has swept yet."""
    lease = acquired(state, at)
    pass_time(private_database, 31)
    with pytest.raises(InvalidRecordState, match="lapsed"):
        single.renew(state, lease)
    with pytest.raises(InvalidRecordState, match="offset 0 is not held"):
        single.acknowledge(state, lease, {ACCEPT: lease.offsets})
    assert acquired(state, at).deliveries[0].delivery_count == 2


def test_a_lock_lapses_at_its_expiry_and_not_before(
    state: State, at: SharePartition, private_database: Database
) -> None:
    """A renewed lock outlives its first duration; the sweep ends it once the second has passed."""
    lease = acquired(state, at)
    pass_time(private_database, 16)
    single.renew(state, lease)
    pass_time(private_database, 16)
    assert state.sweep().records == 0
    pass_time(private_database, 15)
    assert state.sweep().records == 1000
    assert state.figures.leases("g") == []


def test_another_state_epoch_or_token_is_fenced(state: State, at: SharePartition) -> None:
    """State epoch, token and member each fence: FENCED_STATE_EPOCH, INVALID_RECORD_STATE."""
    lease = acquired(state, at, 10)
    with pytest.raises(FencedStateEpoch):
        single.acknowledge(state, replace(lease, state_epoch=1), {ACCEPT: lease.offsets})
    for stranger in (replace(lease, token=uuid4()), replace(lease, member_id="m2")):
        with pytest.raises(InvalidRecordState):
            single.acknowledge(state, stranger, {ACCEPT: lease.offsets})
        with pytest.raises(InvalidRecordState):
            single.renew(state, stranger)
    assert single.acknowledge(state, lease, {ACCEPT: lease.offsets}).accepted == 10


def test_a_member_must_be_live_where_it_names_its_epoch(
    state: State, at: SharePartition, private_database: Database
) -> None:
    """Unknown members are refused, other epochs fenced, the previous epoch tolerated (R-GR-0)."""
    with pytest.raises(UnknownMemberId):
        single.acquire(state, at, "m1", 3, 10)
    with private_database.transaction() as connection:
        connection.execute(
            sa.text(
                "insert into sharequeue.members (group_id, member_id, member_epoch, previous_member_epoch, joined_at,"
                " heartbeat_at, session_expires_at) values ('g', 'm1', 5, 4, now(), now(), now())"
            )
        )
    with pytest.raises(FencedMemberEpoch):
        single.acquire(state, at, "m1", 3, 10)
    assert single.acquire(state, at, "m1", 4, 10) is not None
    assert single.acquire(state, at, "m1", 5, 10) is not None


def test_bad_input_is_refused_by_name(state: State, at: SharePartition) -> None:
    """Unknown groups and partitions, negative sizes and double acknowledgements are refused, each by Kafka's name."""
    with pytest.raises(GroupIdNotFound):
        single.acquire(state, SharePartition("nobody", "t", 0), "m1", None, 10)
    with pytest.raises(UnknownTopicOrPartition):
        single.acquire(state, SharePartition("g", "t", 7), "m1", None, 10)
    with pytest.raises(InvalidRequest):
        single.acquire(state, at, "m1", None, -1)
    lease = acquired(state, at, 10)
    with pytest.raises(InvalidRequest, match="more than one acknowledgement"):
        single.acknowledge(state, lease, {ACCEPT: lease.offsets, RELEASE: OffsetSet.of((3, 4))})
    with pytest.raises(ValueError, match="call renew"):
        single.acknowledge(state, lease, {AcknowledgeType.RENEW: lease.offsets})


def test_a_topic_made_anew_under_the_same_name_is_not_leased_from(state: State, at: SharePartition) -> None:
    """The same name under another topic id is another topic: leasing stops, with UNKNOWN_TOPIC_ID. Somebody who still
    has the old id in mind changes nothing, neither then nor after a reset to the new topic."""
    assert single.observe(state, at, "other id", 0, 5, 5) == "topic_recreated"
    assert single.observe(state, at, "id", 0, 1000, 1000) == "topic_recreated"
    with pytest.raises(UnknownTopicId):
        single.acquire(state, at, "m1", None, 10)
    fault = state.figures.describe("g")[0].fault
    assert fault is not None
    assert "created again" in fault
    assert "offsets reset --group g --topic t" in fault
    [row] = state.database.rows(sa.text("select condition from sharequeue.monitored_share_partitions"))
    assert row["condition"] == "topic_recreated"
    single.alter_offsets(state, at, "other id", 0)
    assert single.observe(state, at, "other id", 0, 5, 5) == "active"
    assert single.observe(state, at, "id", 0, 1000, 1000) == "active"
    assert state.figures.describe("g")[0].log_end == 5
    assert single.acquire(state, at, "m1", None, 10) is not None


def test_each_share_partition_is_told_why_its_own_topic_is_lost(state: State, at: SharePartition) -> None:
    """After a reset of one partition only, a topic that is created once more has two ids in the state."""
    other = SharePartition("g", "t", 1)
    state.initialize(other, "id", 0, 1)
    single.observe(state, at, "id B", 0, 5, 5)
    single.observe(state, other, "id B", 0, 5, 5)
    single.alter_offsets(state, other, "id B", 0)
    for each in (at, other):
        assert single.observe(state, each, "id C", 0, 5, 5) == "topic_recreated"
        with pytest.raises(UnknownTopicId, match="created again"):
            single.acquire(state, each, "m1", None, 10)


def test_a_reset_to_an_id_that_the_topic_had_before_is_refused(state: State, at: SharePartition) -> None:
    """Once offsets were reset from the ids A and B, or the broker was seen to have another id than A, nobody resets
    to them: the live topic would be hidden for ever. Nothing changes, and the topic's own id is taken."""

    def refused(topic_id: str) -> None:
        before = state.figures.describe("g")
        with pytest.raises(UnknownTopicId, match=f"no longer has the id {topic_id}"):
            single.alter_offsets(state, at, topic_id, 3)
        for execute in (False, True):
            [row] = state.administration.reset_offsets("g", {("t", 0): 3}, {"t": topic_id}, execute=execute)
            assert row.error is not None
            assert (row.error.name, row.state_epoch) == ("UNKNOWN_TOPIC_ID", None)
        assert state.figures.describe("g") == before

    single.observe(state, at, "id B", 0, 5, 5)
    refused("id")
    single.alter_offsets(state, at, "id B", 0)
    refused("id")
    single.alter_offsets(state, at, "id C", 0)
    refused("id")
    refused("id B")
    assert single.observe(state, at, "id B", 0, 5, 5) == "active"
    assert single.observe(state, at, "id C", 0, 7, 7) == "active"
    assert state.figures.describe("g")[0].log_end == 7
    single.alter_offsets(state, at, "id C", 2)
    assert single.acquire(state, at, "m1", None, 10) is not None


def test_a_stale_reset_among_others_stops_none_of_them(state: State, at: SharePartition) -> None:
    """A partition whose topic id is old has its error; the others of the call are reset."""
    state.initialize(SharePartition("g", "other", 0), "its id", 0, 1)
    single.observe(state, at, "id B", 0, 5, 5)
    rows = state.administration.reset_offsets(
        "g", {("t", 0): 0, ("other", 0): 4}, {"t": "id", "other": "its id"}, execute=True
    )
    errors = {row.topic: row.error and row.error.name for row in rows}
    assert errors == {"t": "UNKNOWN_TOPIC_ID", "other": None}
    assert {each.topic: each.spso for each in state.figures.describe("g")} == {"t": 0, "other": 4}


def test_a_repeated_call_returns_the_first_result_even_after_the_lease_ended(
    state: State, at: SharePartition
) -> None:
    """A lost reply costs nothing: acquire and acknowledge repeated under their request ids happen once."""
    acquire_id, acknowledge_id = uuid4(), uuid4()
    lease = single.acquire(state, at, "m1", None, 10, request_id=acquire_id)
    assert lease is not None
    result = single.acknowledge(state, lease, {ACCEPT: lease.offsets}, request_id=acknowledge_id)
    assert single.acknowledge(state, lease, {ACCEPT: lease.offsets}, request_id=acknowledge_id) == result
    assert single.acquire(state, at, "m1", None, 10, request_id=acquire_id) == lease
    assert state.figures.describe("g")[0].spso == 10


def test_an_output_counts_only_with_its_acknowledgement(state: State, at: SharePartition) -> None:
    """The manifest has an output exactly when the acknowledgement of its lease has committed."""
    lease = acquired(state, at, 10)
    output = LeaseOutput("flights", "lease=1", 10)
    with pytest.raises(InvalidRecordState):
        single.acknowledge(state, lease, {ACCEPT: OffsetSet.of((0, 11))}, outputs=[output])
    assert state.outputs.counted("g", "flights") == []
    single.acknowledge(state, lease, {ACCEPT: lease.offsets}, outputs=[output])
    assert [(row.location, row.records) for row in state.outputs.counted("g", "flights")] == [("lease=1", 10)]


def test_retention_that_overtakes_the_window_is_counted(state: State, at: SharePartition) -> None:
    """The log start moves SPSO; what nobody had finished is counted as lost, once, what is leased among it. What
    its holder accepts then was processed in time, and is lost no longer."""
    lease = acquired(state, at, 100)
    single.acknowledge(state, lease, {ACCEPT: OffsetSet.of((10, 20)), RELEASE: OffsetSet.of((20, 30))})
    assert single.observe(state, at, "id", 200, 1000, 1000) == "active"
    status = state.figures.describe("g")[0]
    assert (status.spso, status.speo, status.lost_records) == (200, 200, 10 + 80 + 100)
    assert single.observe(state, at, "id", 210, 1000, 1000) == "active"
    assert state.figures.describe("g")[0].lost_records == 10 + 80 + 110
    result = single.acknowledge(state, lease, {ACCEPT: OffsetSet.of((0, 10), (30, 100))})
    assert (result.accepted, result.spso) == (80, 210)
    assert state.figures.describe("g")[0].lost_records == 10 + 110
    assert state.figures.leases("g") == []
    assert state.figures.verify() == []


@pytest.mark.parametrize("poison", [0, 377_777, 999_999])
def test_one_poison_record_in_a_million_goes_alone(
    state: State, at: SharePartition, private_database: Database, poison: int
) -> None:
    """A record that kills every process that reads it reaches the DLQ alone, at the default limit of 5.

    Its 999,999 neighbours are accepted: each lapse divides the suspects, so that the last delivery holds one.
    """
    single.observe(state, at, "id", 0, 1_000_000, 1_000_000)
    leases = 0
    while (lease := single.acquire(state, at, "m1", None, 1_000_000)) is not None:
        leases += 1
        if poison in lease.offsets:
            pass_time(private_database, 31)
        else:
            single.acknowledge(state, lease, {ACCEPT: lease.offsets})
        assert leases < 200
    batch = state.dead_letters.open(at, 10)
    assert batch is not None
    assert [(run.cause, run.delivery_count, run.offsets) for run in batch.letters] == [
        ("exhausted", 5, OffsetSet.of((poison, poison + 1)))
    ]
    state.dead_letters.close(batch)
    status = state.figures.describe("g")[0]
    assert (status.spso, status.lag) == (1_000_000, 0)
    assert {
        (c.outcome, c.records) for c in state.figures.delivery_counts("g") if c.outcome == "exhausted"
    } == {("exhausted", 1)}


def test_released_records_come_back_together_and_end_exhausted(state: State, at: SharePartition) -> None:
    """An acknowledgement is no suspicion: released records share every delivery, and the fifth release exhausts
    them."""
    wanted = OffsetSet.of((3, 4), (500, 510), (999, 1000))
    lease = acquired(state, at)
    single.acknowledge(state, lease, {ACCEPT: lease.offsets - wanted, RELEASE: wanted})
    for count in range(2, 6):
        lease = acquired(state, at)
        assert [(d.delivery_count, d.offsets) for d in lease.deliveries] == [(count, wanted)]
        result = single.acknowledge(state, lease, {RELEASE: wanted})
    assert (result.exhausted, result.released) == (12, 0)


def test_a_shared_last_delivery_that_lapses_gives_each_one_more_alone(
    state: State, at: SharePartition, private_database: Database
) -> None:
    """Records that were released four times and then lapse together are not exhausted together."""
    lease = acquired(state, at, 3)
    for _ in range(4):
        single.acknowledge(state, lease, {RELEASE: lease.offsets})
        lease = acquired(state, at, 3)
    assert lease.deliveries[0].delivery_count == 5
    pass_time(private_database, 31)
    for offset in range(3):
        alone = acquired(state, at, 3)
        assert [(d.delivery_count, d.offsets) for d in alone.deliveries] == [
            (5, OffsetSet.of((offset, offset + 1)))
        ]
        single.acknowledge(state, alone, {ACCEPT: alone.offsets})
    assert state.figures.describe("g")[0].spso == 3


def test_dead_letter_batches_are_numbered_one_open_at_a_time(state: State, at: SharePartition) -> None:
    """An open batch is given again until it is closed; SPSO waits for it; the next has the next number."""
    lease = acquired(state, at, 10)
    single.acknowledge(state, lease, {REJECT: lease.offsets})
    first = state.dead_letters.open(at, 6)
    assert first is not None
    assert (first.sequence, first.count) == (1, 6)
    assert first.is_new
    assert state.dead_letters.open(at, 99) == replace(first, is_new=False)
    assert state.figures.describe("g")[0].spso == 0
    assert state.dead_letters.close(first) == 6
    assert state.figures.describe("g")[0].spso == 6
    second = state.dead_letters.open(at, 99)
    assert second is not None
    assert (second.sequence, second.count) == (2, 4)


def test_a_late_writer_closes_no_batch_of_a_later_life(state: State, at: SharePartition) -> None:
    """After its offsets were deleted, a share-partition numbers its batches from 1 on again."""

    def opened(records: int) -> DeadLetterBatch:
        lease = acquired(state, at, records)
        single.acknowledge(state, lease, {REJECT: lease.offsets})
        batch = state.dead_letters.open(at, 99)
        assert batch is not None
        assert (batch.sequence, batch.count) == (1, records)
        return batch

    late = opened(3)
    state.administration.delete_offsets(at.group_id, at.topic)
    pass_time(state.database, 1)
    state.initialize(at, "id", 0, 1)
    single.observe(state, at, "id", 0, 100, 100)
    batch = opened(7)
    assert state.dead_letters.close(late) == 0
    assert state.dead_letters.close(batch) == 7


def test_gaps_are_archived_and_never_dead_letters(state: State, at: SharePartition) -> None:
    """A gap ends its offset without a dead letter and lets SPSO pass (R-AK-12)."""
    lease = acquired(state, at, 10)
    assert single.acknowledge(state, lease, {GAP: lease.offsets}).spso == 10
    assert state.dead_letters.open(at, 10) is None


def test_eight_workers_on_one_share_partition_deliver_every_offset_once(
    private_database: Database, at: SharePartition
) -> None:
    """No offset is ever held by two workers, and every one is accepted exactly once."""
    state = State(Database(private_database.engine.url.render_as_string(hide_password=False), pool_size=8))
    seen: Counter[int] = Counter()
    errors: list[BaseException] = []
    lock = threading.Lock()

    def work(member: str) -> None:
        try:
            while (lease := single.acquire(state, at, member, None, 7)) is not None:
                fresh = [d.offsets for d in lease.deliveries if d.delivery_count == 1]
                released = OffsetSet.of((fresh[0].first, fresh[0].first + 1)) if fresh else OffsetSet()
                single.acknowledge(state, lease, {ACCEPT: lease.offsets - released, RELEASE: released})
                with lock:
                    seen.update((lease.offsets - released).iter_offsets())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"m{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    # A worker may stop while another's release is still on its way; one more pass takes what is left.
    work("last")
    assert seen == Counter(range(1000))
    assert state.figures.describe("g")[0].spso == 1000
    assert state.figures.verify() == []


def test_a_connection_cut_while_waiting_for_the_row_lock_is_repeated_once(
    private_database: Database, state: State, at: SharePartition
) -> None:
    """A backend terminated inside a call costs one retry, and the call happens once."""
    results: list[Lease | None] = []
    with private_database.transaction() as blocker:
        blocker.execute(sa.text("select 1 from sharequeue.share_partitions where group_id = 'g' for update"))
        thread = threading.Thread(target=lambda: results.append(single.acquire(state, at, "m1", None, 10)))
        thread.start()
        waiting = sa.text(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and wait_event_type = 'Lock'"
        )
        with private_database.engine.connect() as watcher:
            while not watcher.execute(waiting).all():
                watcher.rollback()
    thread.join()
    assert results[0] is not None
    assert results[0].offsets == OffsetSet.of((0, 10))
    assert len(state.figures.leases("g")) == 1
