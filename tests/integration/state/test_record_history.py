"""The history of one record, read from the journal: how it says what happened, and what it costs.

That random records of random histories have the lives which the model in memory has is in
``tests/conformance/lives.py``.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.state import State
from sharequeue.state.journal import Journal
from sharequeue.state.record_history import RecordHistories, RecordHistory
from tests import single
from tests.integration.state.state_calls import take
from tests.waiting import pass_time

AT = SharePartition("g", "t", 0)
ACCEPT, RELEASE, REJECT, GAP = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.GAP,
)


@pytest.fixture
def state(private_database: Database) -> State:
    """Give a state in which share-partition t-0 of group g has a million fresh records, with dead letters."""
    with private_database.transaction() as connection:
        connection.exec_driver_sql(
            "insert into sharequeue.share_groups (group_id) values ('g');"
            "insert into sharequeue.group_configs values ('g', 'share.partition.max.record.locks', '1000000'),"
            " ('g', 'errors.deadletterqueue.topic.name', 'dlq.t'), ('g', 'share.delivery.count.limit', '2')"
        )
    found = State(private_database)
    found.initialize(AT, "id", 0, 1)
    single.observe(found, AT, "id", 0, 1_000_000, 1_000_000)
    return found


def told(state: State, offset: int) -> RecordHistory:
    history = RecordHistories(state.database).of(AT, offset)
    assert history is not None
    return history


def lived(state: State, offset: int) -> tuple[str, list[tuple[int, str | None, str | None]]]:
    """Status, and of each delivery its count, member and outcome."""
    history = told(state, offset)
    return history.status, [(d.delivery_count, d.member_id, d.outcome) for d in history.deliveries]


def one(offset: int) -> OffsetSet:
    return OffsetSet.of((offset, offset + 1))


def test_each_way_in_which_a_delivery_ends_has_its_name(state: State) -> None:
    """Accepted, released, rejected, a gap, lapsed and given back, each with the lease, the member and the times."""
    lease = take(state, AT)
    later = state.now() + timedelta(hours=1)
    single.acknowledge(
        state,
        lease,
        {ACCEPT: OffsetSet.of((0, 3)), RELEASE: one(3), REJECT: one(4), GAP: one(5)},
        not_before=later,
    )
    assert lived(state, 2) == ("accepted", [(1, "m", "accepted")])
    assert lived(state, 3) == ("available", [(1, "m", "released")])
    not_before = told(state, 3).deliveries[0].not_before
    assert not_before is not None
    assert not_before >= later
    assert lived(state, 4) == ("archiving", [(1, "m", "rejected")])
    assert told(state, 4).cause == "rejected"
    assert lived(state, 5) == ("archived", [(1, "m", "gap")])
    assert lived(state, 6) == ("acquired", [(1, "m", None)])
    (held,) = told(state, 6).deliveries
    assert (held.lease_id, held.expires_at, held.ended_at) == (lease.lease_id, lease.expires_at, None)
    pass_time(state.database, 40)
    state.sweep()
    assert lived(state, 6) == ("available", [(1, "m", "lapsed")])
    again = take(state, AT)
    single.release(state, again, refund=True)
    offset = next(again.offsets.iter_offsets())
    assert lived(state, offset)[1][-1] == (2, "m", "returned")


def test_a_letter_is_archived_when_it_is_written(state: State) -> None:
    """The status follows the dead letter from ARCHIVING to ARCHIVED, also behind SPSO."""
    lease = take(state, AT)
    single.acknowledge(state, lease, {REJECT: lease.offsets})
    batch = state.dead_letters.open(AT, 100)
    assert batch is not None
    assert told(state, 0).status == "archiving"
    pass_time(state.database, 5)
    state.dead_letters.close(batch)
    history = told(state, 0)
    assert (history.status, history.cause, history.spso) == ("archived", "rejected", 10)
    assert history.status_at == state.now()


def test_a_part_of_a_lease_that_was_renewed_alone_is_one_delivery(state: State) -> None:
    """The part has another lease id in the state: the delivery keeps the first, under which its outputs are."""
    lease = take(state, AT)
    pass_time(state.database, 10)
    state.database.call(
        sa.text(
            "select * from sharequeue.acknowledge_batches('g', 't', 0, null, 'm', null, null, null, '{4}', '{5}',"
            " '{4}')"
        )
    )
    (delivery,) = told(state, 4).deliveries
    assert (delivery.lease_id, delivery.delivery_count, delivery.outcome) == (lease.lease_id, 1, None)
    assert delivery.expires_at == lease.expires_at + timedelta(seconds=10)


def test_an_offset_that_was_never_leased_says_so(state: State) -> None:
    """Beyond SPEO, before the group's start, taken by retention, and in a share-partition without state."""
    assert lived(state, 0) == ("not leased", [])
    assert lived(state, 2**62) == ("not leased", [])
    single.alter_offsets(state, AT, "id", 100)
    assert lived(state, 0) == ("skipped", [])
    single.observe(state, AT, "id", 200, 1_000_000, 1_000_000)
    assert lived(state, 150) == ("lost", [])
    assert RecordHistories(state.database).of(SharePartition("g", "t", 1), 0) is None


def test_retention_and_resets_are_told_from_outcomes(state: State) -> None:
    """A leased record that the log start passes is lost; one that is in flight at a reset is delivered anew."""
    lease = take(state, AT)
    single.observe(state, AT, "id", 5, 1_000_000, 1_000_000)
    single.acknowledge(state, lease, {RELEASE: lease.offsets})
    assert lived(state, 4) == ("lost", [(1, "m", "lost")])
    assert lived(state, 5) == ("available", [(1, "m", "released")])
    take(state, AT, 3)
    single.alter_offsets(state, AT, "id", 0)
    single.observe(state, AT, "id", 0, 1_000_000, 1_000_000)
    assert lived(state, 5) == ("not leased", [(1, "m", "released"), (2, "m", "reset")])
    single.acknowledge(state, take(state, AT), {ACCEPT: OffsetSet.of((0, 10))})
    assert lived(state, 5)[0] == "accepted"
    assert len(told(state, 5).resets) == 1


def test_what_the_journal_no_longer_has_is_not_guessed(state: State) -> None:
    """After its day was dropped, a finished record is not known, and one in flight has its present delivery."""
    for outcome in (ACCEPT, RELEASE):
        lease = take(state, AT)
        single.acknowledge(state, lease, {outcome: lease.offsets})
    assert lived(state, 2) == ("accepted", [(1, "m", "accepted")])
    assert told(state, 17).since is None
    pass_time(state.database, 4 * 86_400)
    journal = Journal(state.database)
    journal.keep(retention=timedelta(days=30))
    held = take(state, AT)
    assert journal.keep(retention=timedelta(days=3)).dropped != ()
    assert lived(state, 2) == ("not known", [])
    history = told(state, 17)
    assert history.since == state.now()
    assert [(d.lease_id, d.delivery_count, d.outcome) for d in history.deliveries] == [
        (held.lease_id, 2, None)
    ]


MOST = 500
"""Rows of the journal that a lookup may fetch: 1,000 rounds of the test write 5,000."""


def _rows_read(database: Database) -> tuple[int, int]:
    """Rows of the journal that were read from end to end, and by index, so far."""
    database.rows(sa.text("select pg_stat_force_next_flush()"))
    (row,) = database.rows(
        sa.text(
            "select sum(seq_tup_read) as scanned, sum(coalesce(idx_tup_fetch, 0)) as fetched"
            " from pg_stat_user_tables where relname like 'journal%'"
        )
    )
    return int(row["scanned"]), int(row["fetched"])


def _cost(state: State, offset: int) -> int:
    """The rows of the journal that a lookup fetches by index; it reads none from end to end."""
    before = _rows_read(state.database)
    assert told(state, offset).status == "accepted"
    after = _rows_read(state.database)
    assert after[0] == before[0]
    return after[1] - before[1]


def _work(state: State, rounds: int) -> None:
    for _ in range(rounds):
        lease = take(state, AT)
        single.acknowledge(state, lease, {ACCEPT: lease.offsets})


def test_a_lookup_does_not_read_the_rest_of_the_journal(state: State) -> None:
    """The rows that it fetches are those of the time in which the record was in flight, and a few for each step of
    the search, however long the journal is before and after it."""
    _work(state, 100)
    assert _cost(state, 500) < MOST
    _work(state, 900)
    assert _cost(state, 500) < MOST
    assert _cost(state, 5_500) < MOST


def test_a_record_behind_a_pinned_head_is_read_up_to_its_end(state: State) -> None:
    """Once it is finished, what happens until SPSO passes it is not read."""
    pinned = take(state, AT, 1)
    _work(state, 300)
    assert _cost(state, 5) < MOST
    assert told(state, 0).deliveries[0].lease_id == pinned.lease_id
