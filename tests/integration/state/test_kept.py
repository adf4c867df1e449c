"""Released records are kept with their acknowledgement or not at all, and only as long as they may be read again."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import InconsistentClusterId, InvalidRecordState, InvalidRequest, ShareError
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import AcknowledgeType, KeptRecords, KeptRow, Lease, LeaseOutput, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement
from tests import single
from tests.waiting import pass_time

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
AT = SharePartition("g", "t", 0)
ROOT = "/output/orders"


@pytest.fixture
def state(private_database: Database) -> State:
    """Give a state with a thousand records for group `g`."""
    state = State(private_database)
    ensure_group(private_database, "g")
    start(state, AT)
    return state


def start(state: State, at: SharePartition, topic_id: str = "id") -> None:
    state.initialize(at, topic_id, 0, 1)
    single.observe(state, at, topic_id, 0, 1000, 1000)


def held(state: State, records: int = 10, at: SharePartition = AT) -> Lease:
    lease = single.acquire(state, at, "m", None, records)
    assert lease is not None
    return lease


def some(*offsets: int) -> OffsetSet:
    return OffsetSet.from_offsets(offsets)


def location(lease: Lease) -> str:
    return f"{ROOT}/leases={lease.lease_id}-{lease.lease_id}/sharequeue_kept={lease.lease_id}"


def keep(state: State, lease: Lease, offsets: OffsetSet) -> KeptRow:
    """Release these records, which are kept, and accept the others."""
    outcomes = {RELEASE: offsets, ACCEPT: lease.offsets - offsets}
    single.acknowledge(state, lease, outcomes, kept=KeptRecords(location(lease), offsets))
    return KeptRow(lease.lease_id, location(lease), offsets)


def found(state: State, lease: Lease) -> list[KeptRow]:
    """Return what is kept of a lease."""
    of_lease = state.kept.of([lease])
    assert set(of_lease) <= {lease.lease_id}
    return of_lease.get(lease.lease_id, [])


def test_released_records_are_found_by_the_next_lease_of_them(state: State) -> None:
    """Only those that it holds; new records are read from the log."""
    kept = keep(state, held(state), some(2, 3, 7))
    again = held(state, 13)
    assert again.offsets == some(2, 3, 7) | OffsetSet.of((10, 20))
    assert found(state, again) == [kept]
    assert state.figures.verify("g") == []


def test_each_offset_is_read_from_the_newest_row_that_has_it(state: State) -> None:
    """The newest row comes first; a lease that keeps nothing leaves the older rows as they are."""
    first = keep(state, held(state), some(2, 3, 7))
    again = held(state, 3)
    second = keep(state, again, some(3))
    third = held(state, 20)
    assert found(state, third) == [second]
    single.acknowledge(state, third, {RELEASE: some(3), ACCEPT: third.offsets - some(3)})
    assert found(state, held(state, 1)) == [second]
    assert state.kept.removable("g") == [first]


def test_several_leases_are_asked_in_one_call(state: State) -> None:
    """Each has its own rows; leases without any are missing, and no lease is no call."""
    other = SharePartition("g", "t", 1)
    start(state, other)
    kept = keep(state, held(state), some(1))
    elsewhere = keep(state, held(state, at=other), some(1, 5))
    one, two = held(state, 1), held(state, 2, other)
    assert state.kept.of([one, two]) == {one.lease_id: [kept], two.lease_id: [elsewhere]}
    assert state.kept.of([held(state)]) == state.kept.of([]) == {}


def test_nothing_is_kept_by_an_acknowledgement_that_is_refused(state: State) -> None:
    """All or nothing: a lease that was lost keeps nothing, also if all that it acknowledges is below SPSO."""
    late = held(state)
    pass_time(state.database, 31)
    again = single.acquire(state, AT, "second", None, 10, parts=1)
    assert again is not None
    with pytest.raises(InvalidRecordState, match="lease"):
        keep(state, late, late.offsets)
    single.acknowledge(state, again, {ACCEPT: again.offsets})
    with pytest.raises(InvalidRecordState, match="lease"):
        keep(state, late, late.offsets)
    assert state.kept.removable("g", all_rows=True) == []


def test_a_refusal_of_one_lease_keeps_the_records_of_the_others(state: State) -> None:
    """As its outcomes are: leases of one call are apart."""
    one, two = held(state), held(state)
    wrong = replace(two, token=uuid4())
    results = state.acknowledge(
        [
            LeaseAcknowledgement(
                lease, {RELEASE: lease.offsets}, kept=KeptRecords(location(lease), lease.offsets)
            )
            for lease in (one, wrong)
        ]
    )
    assert [isinstance(result, ShareError) for result in results] == [False, True]
    assert [row.lease_id for row in state.kept.removable("g", all_rows=True)] == [one.lease_id]


@pytest.mark.parametrize(
    ("outcomes", "kept", "reason"),
    [
        ({ACCEPT: some(0)}, KeptRecords("l", some(0)), "offset 0 is kept, but not released"),
        ({REJECT: some(0)}, KeptRecords("l", some(0)), "offset 0 is kept, but not released"),
        ({RELEASE: some(0, 1)}, KeptRecords("l", some(1, 2)), "offset 2 is kept, but not released"),
        ({}, KeptRecords("l", some(0)), "offset 0 is kept, but not released"),
        ({RELEASE: some(0)}, KeptRecords("l", EMPTY), "no offsets"),
        ({RELEASE: some(0)}, KeptRecords("", some(0)), "1 to 4,096"),
        ({RELEASE: some(0)}, KeptRecords("l" * 4097, some(0)), "1 to 4,096"),
    ],
)
def test_kept_records_that_are_not_valid_refuse_the_lease(
    state: State, outcomes: dict[AcknowledgeType, OffsetSet], kept: KeptRecords, reason: str
) -> None:
    """Only what the same acknowledgement releases may be kept; nothing changes."""
    lease = held(state)
    with pytest.raises(InvalidRequest, match=reason):
        single.acknowledge(state, lease, outcomes, kept=kept)
    assert single.acknowledge(state, lease, {ACCEPT: lease.offsets}).accepted == 10


@pytest.mark.parametrize(
    "kept", ["{}", "[1]", '[{"location": "l"}]', '[{"location": "l", "offsets": "0-3"}]', "[]"]
)
def test_kept_records_of_another_form_refuse_the_call(state: State, kept: str) -> None:
    """SQLSTATE SQ042, as other malformed lists."""
    lease = held(state)
    with pytest.raises(ShareError if kept == "[]" else InvalidRequest):
        state.database.call(
            sa.text(
                "select * from sharequeue.acknowledge_many('g', array['t'], array[0], array[1], 'm', null,"
                " array[cast(:token as uuid)], null, array[cast('{}' as int8multirange)],"
                " array[cast('{[0,1)}' as int8multirange)], array[cast('{}' as int8multirange)],"
                " array[cast('{}' as int8multirange)], '[[]]', array[cast(null as timestamptz)],"
                " p_kept => cast(:kept as jsonb))"
            ),
            token=str(lease.token),
            kept=kept,
        )


def test_a_repeated_call_keeps_once(state: State) -> None:
    """A call whose reply was lost is sent again under its request id; nothing is kept twice."""
    lease, request_id = held(state), uuid4()
    for _ in range(2):
        single.acknowledge(
            state,
            lease,
            {RELEASE: lease.offsets},
            request_id=request_id,
            kept=KeptRecords(location(lease), lease.offsets),
        )
    assert state.kept.removable("g", all_rows=True) == [
        KeptRow(lease.lease_id, location(lease), lease.offsets)
    ]


def test_a_lease_that_is_acknowledged_in_parts_has_one_row(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of one acknowledgement, and two calls, add to the row; another location is refused."""
    monkeypatch.setattr("sharequeue.state.state.RANGES", 2)
    lease = held(state)
    odd = some(1, 3, 5, 7)
    single.acknowledge(
        state, lease, {RELEASE: odd, ACCEPT: some(0, 2, 4)}, kept=KeptRecords(location(lease), odd)
    )
    single.acknowledge(state, lease, {RELEASE: some(8)}, kept=KeptRecords(location(lease), some(8)))
    with pytest.raises(InvalidRequest, match="another location"):
        single.acknowledge(state, lease, {RELEASE: some(9)}, kept=KeptRecords(f"{ROOT}/other", some(9)))
    rows = state.kept.removable("g", all_rows=True)
    assert rows == [], "the lease still holds records"
    single.acknowledge(state, lease, {ACCEPT: some(6, 9)})
    assert state.kept.removable("g", all_rows=True) == [
        KeptRow(lease.lease_id, location(lease), odd | some(8))
    ]
    assert state.figures.verify("g") == []


def test_the_folder_of_kept_records_belongs_to_the_group(state: State) -> None:
    """As the folder of an output does: another group cannot keep or write there."""
    keep(state, held(state), some(0))
    assert state.outputs.owners([ROOT]) == {ROOT: "g"}
    ensure_group(state.database, "other")
    other = SharePartition("other", "t", 0)
    start(state, other)
    lease = held(state, at=other)
    with pytest.raises(InvalidRequest, match="of group g"):
        keep(state, lease, some(0))
    assert state.kept.removable("other", all_rows=True) == []


def test_records_read_at_another_isolation_level_are_read_from_the_log(state: State) -> None:
    """A transaction that was aborted has records at one level only."""
    kept = keep(state, held(state), some(1))
    alter_group_configs(state.database, "g", {"share.isolation.level": "read_committed"})
    lease = held(state, 1)
    assert found(state, lease) == []
    second = keep(state, lease, some(1))
    alter_group_configs(state.database, "g", {"share.isolation.level": "read_uncommitted"})
    third = held(state, 1)
    assert found(state, third) == [kept]
    assert second.lease_id != kept.lease_id


def test_records_below_the_log_start_are_not_read_from_files(state: State) -> None:
    """They are lost, whether somebody still has their bytes or not."""
    keep(state, held(state), some(1, 8))
    lease = held(state, 2)
    single.observe(state, AT, "id", 5, 1000, 1000)
    assert [row.offsets for row in found(state, lease)] == [some(8)]


def test_records_of_a_log_that_was_truncated_are_read_from_the_log(state: State) -> None:
    """From its lowest end on, its offsets may be other records."""
    keep(state, held(state), some(1, 8))
    lease = held(state, 2)
    single.observe(state, AT, "id", 0, 5, 5)
    assert [row.offsets for row in found(state, lease)] == [some(1)]
    pass_time(state.database, 11)
    single.observe(state, AT, "id", 0, 1000, 1000)
    assert [row.offsets for row in found(state, lease)] == [some(1)]


def test_a_row_is_removable_when_none_of_its_records_is_open(state: State) -> None:
    """Accepted, rejected, without a delivery left, or below the log start. While one is open or leased, it is not."""
    alter_group_configs(state.database, "g", {"share.delivery.count.limit": "2"})
    kept = keep(state, held(state), some(1, 3, 5, 7))
    assert state.kept.removable("g") == []
    lease = held(state, 4)
    assert state.kept.removable("g") == []
    single.acknowledge(state, lease, {ACCEPT: some(1), REJECT: some(3)})
    assert state.kept.removable("g") == []
    single.acknowledge(state, lease, {RELEASE: some(5)})
    assert state.kept.removable("g") == []
    single.observe(state, AT, "id", 8, 1000, 1000)
    assert state.kept.removable("g") == [kept]
    assert state.kept.removable("unknown", all_rows=True) == []
    assert state.figures.verify("g") == []


def test_all_rows_of_a_group_are_removable_if_nothing_is_to_be_kept(state: State) -> None:
    """Those of leases that are held come later: their files may still be written."""
    ensure_group(state.database, "other")
    other = SharePartition("other", "t", 0)
    start(state, other)
    keep(state, held(state, at=other), some(1)) if False else None
    kept = keep(state, held(state), some(1))
    lease = held(state, 5)
    single.acknowledge(state, lease, {RELEASE: some(1)}, kept=KeptRecords(location(lease), some(1)))
    assert state.kept.removable("g", all_rows=True) == [kept]
    assert state.kept.removable("other", all_rows=True) == []


def test_dropped_rows_are_gone(state: State) -> None:
    """Of this group alone; their records are read from the log."""
    kept = keep(state, held(state), some(1, 2))
    assert state.kept.drop("other", [kept.lease_id]) == 0
    lease = held(state, 2)
    assert found(state, lease) == [kept]
    assert state.kept.drop("g", [kept.lease_id, kept.lease_id + 1000]) == 1
    assert found(state, lease) == []
    assert state.kept.drop("g", [kept.lease_id]) == 0


def test_the_files_of_kept_records_are_needed(state: State) -> None:
    """Apart from those that count in a sink, and from those of leases that are held."""
    lease = held(state)
    single.acknowledge(
        state,
        lease,
        {RELEASE: some(1), ACCEPT: lease.offsets - some(1)},
        outputs=[LeaseOutput("orders", f"{location(lease)}/accepted", 9)],
        kept=KeptRecords(location(lease), some(1)),
    )
    again = held(state, 1)
    needed = state.outputs.needed([lease.lease_id, again.lease_id, 10_000])
    assert needed == ({again.lease_id}, {("orders", lease.lease_id)}, {lease.lease_id})


def test_a_reset_forgets_what_was_kept(state: State) -> None:
    """Nothing is in flight any more; the records are read from the log when they are delivered again."""
    keep(state, held(state), some(1))
    single.alter_offsets(state, AT, "id", 0)
    assert state.kept.removable("g", all_rows=True) == []
    assert found(state, held(state)) == []


def test_a_topic_that_was_made_again_has_no_kept_records(state: State) -> None:
    """Its offsets are other records: as long as the group has the old topic, and after the reset."""
    keep(state, held(state), some(1))
    lease = held(state, 1)
    single.observe(state, AT, "new id", 0, 1000, 1000)
    assert found(state, lease) == []
    state.release_member("g", "m")
    single.alter_offsets(state, AT, "new id", 0)
    assert state.kept.removable("g", all_rows=True) == []
    single.observe(state, AT, "new id", 0, 1000, 1000)
    assert found(state, held(state)) == []


@pytest.mark.parametrize("whole", [False, True])
def test_deleted_offsets_and_groups_have_no_kept_records(state: State, whole: bool) -> None:
    """Their share-partitions are gone; the sweep finds files that nothing needs."""
    kept = keep(state, held(state), some(1))
    if whole:
        state.administration.delete_group("g")
    else:
        state.administration.delete_offsets("g", "t")
    ensure_group(state.database, "g")
    start(state, AT)
    assert found(state, held(state)) == []
    assert state.outputs.needed([kept.lease_id]) == (set(), set(), set())


def test_an_adopted_copy_has_no_kept_records(state: State) -> None:
    """Their files belong to both databases. A copy that is not adopted removes nothing."""
    kept = keep(state, held(state), some(1))
    state.outputs.check_identity()
    state.database.rows(sa.text("update sharequeue.state_identity set database_oid = 1 returning 1"))
    with pytest.raises(InconsistentClusterId):
        state.kept.removable("g")
    with pytest.raises(InconsistentClusterId):
        state.kept.drop("g", [kept.lease_id])
    state.administration.adopt()
    assert state.kept.removable("g", all_rows=True) == []
    # The files are the state's own, which sweeps them.
    former = state.outputs.check_identity().former
    assert list(former.values()) == [kept.lease_id]


def test_ids_of_leases_with_kept_records_are_not_given_again(state: State) -> None:
    """A copy of the rows may have its sequences at their start, and no journal."""
    kept = keep(state, held(state), some(1))
    state.database.rows(
        sa.text(
            "with j as (delete from sharequeue.journal returning 1),"
            " s as (delete from sharequeue.journal_snapshots returning 1),"
            " c as (update sharequeue.journal_counted set journal_id = 0 returning 1)"
            " select setval('sharequeue.leases_lease_id_seq', 1)"
        )
    )
    assert kept.lease_id > 1
    assert state.figures.sequences_behind() == ["leases_lease_id_seq"]


def test_verify_finds_rows_of_records_that_were_never_delivered(state: State) -> None:
    """A row whose records are finished is no fault: it waits for the sweep."""
    keep(state, held(state), some(1))
    lease = held(state, 1)
    single.acknowledge(state, lease, {ACCEPT: some(1)})
    assert state.figures.verify("g") == []
    state.database.rows(
        sa.text("update sharequeue.kept_records set past = 500, offsets = '{[1,2),[499,500)}' returning 1")
    )
    assert state.figures.verify("g") == [
        "g t-0: kept records were never delivered, or have impossible values"
    ]
