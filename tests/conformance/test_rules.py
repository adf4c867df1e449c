"""Rules that the recorded scenarios do not reach, by the numbers of Kafka's own tests, on every engine."""

from __future__ import annotations

from uuid import UUID

import pytest

from sharequeue.domain.errors import (
    FencedStateEpoch,
    GroupIdNotFound,
    InvalidRecordState,
    InvalidRequest,
    OffsetNotAvailable,
    UnknownTopicOrPartition,
)
from tests.conformance.drawing import ACCEPT, GAP, REJECT, RELEASE, RENEW, T0, Table, drawn, on_every_engine
from tests.conformance.engines import ENGINES, FetchOf, LogEnds
from tests.oracle import AcknowledgementBatch, InMemoryShareGroups, LogBatch, RecordState


@pytest.mark.rule("R-AQ-9", "R-AQ-2")
@on_every_engine
def test_both_budgets_are_soft_in_batch_optimized(engine: str) -> None:
    """Limit 20, 10 held, next log batches 10-14 and 15-24: 15 more, span 25 (R-AQ-9)."""
    limits = {"share.partition.max.record.locks": 20}
    table = Table(engine, [(0, 9), (10, 14), (15, 24)], 25, configs=limits)
    assert table.fetch("m1", 10, "batch_optimized") == ["0-9 x1"]
    assert table.fetch("m1", 500, "batch_optimized") == ["10-24 x1"]
    assert table.view().in_flight == 25
    assert table.fetch("m1", 500, "batch_optimized") == []


@pytest.mark.rule("R-AQ-10", "R-NF-5")
@on_every_engine
def test_without_boundaries_an_acquire_is_cut_exactly(engine: str) -> None:
    """Fresh and redelivered records alike, and the in-flight bound as well."""
    table = Table(engine, None, 100, configs={"share.partition.max.record.locks": 20})
    assert table.fetch("m1", 7, "batch_optimized") == ["0-6 x1"]
    table.acknowledge("m1", RELEASE, (0, 6))
    assert table.fetch("m1", 3, "batch_optimized") == ["0-2 x2"]
    assert table.fetch("m1", 500, "batch_optimized") == ["3-6 x2", "7-15 x1"]
    assert table.fetch("m1", 500, "batch_optimized") == ["16-19 x1"]
    assert table.fetch("m1", 500, "batch_optimized") == []


@pytest.mark.rule("R-AQ-11")
@on_every_engine
def test_a_batch_size_splits_on_log_batches_only(engine: str) -> None:
    """Log batches of 5, batch size 8: a batch is closed where the next log batch begins 8 or more later
    (R-AQ-11)."""
    table = Table(engine, None, 30)
    log = [LogBatch(first, first + 4) for first in range(0, 30, 5)]
    got = table.engine.acquire(T0, "m1", FetchOf(500, batch_size=8, log=log))
    assert [(run.first, run.last) for run in got.ranges] == [(0, 9), (10, 19), (20, 29)]


@pytest.mark.rule("R-AQ-8", "R-AQ-6")
@on_every_engine
def test_runs_of_one_cached_batch_are_joined_and_those_of_two_are_not(engine: str) -> None:
    """Neighbours of equal count in one batch are one range; a batch's end is a range's end (R-AQ-8)."""
    table = Table(engine, [(0, 4), (5, 9)], 10)
    table.fetch("m1", 5, "batch_optimized")
    table.fetch("m1", 5, "batch_optimized")
    table.acknowledge("m1", RELEASE, (3, 3), (4, 4), (5, 5), (6, 6))
    assert table.fetch("m1", 500, "batch_optimized") == ["3-4 x2", "5-6 x2"]


@pytest.mark.rule("R-AQ-3", "R-ST-8")
@on_every_engine
def test_a_hole_in_the_log_archives_what_was_available_there(engine: str) -> None:
    """The log gives 6-9 when asked for 2: 2 to 5 are compacted away (R-AQ-3)."""
    table = Table(engine, [(0, 9)], 10)
    table.fetch("m1", 500)
    table.acknowledge("m1", RELEASE, (2, 9))
    table.log = [LogBatch(6, 9)]
    assert table.fetch("m1", 500) == ["6-9 x2"]
    assert table.row() == (0, 10, "0-1 A1; 2-5 x1; 6-9 A2")


@pytest.mark.rule("R-AQ-14")
@on_every_engine
def test_a_hole_at_the_head_moves_spso_to_the_first_record(engine: str) -> None:
    """The window begins with its first batch (R-AQ-14)."""
    table = Table(engine, [(4, 9)], 10)
    assert table.fetch("m1", 500) == ["4-9 x1"]
    assert table.row() == (4, 10, "4-9 A1")


@pytest.mark.rule("R-AK-14")
@on_every_engine
def test_a_failed_acknowledgement_changes_nothing(engine: str) -> None:
    """All runs or none, whatever comes before the one that fails (R-AK-14)."""
    table = Table(engine, None, 10)
    table.fetch("m1", 5)
    before = table.row()
    runs = [
        AcknowledgementBatch.of(0, 0, ACCEPT),
        AcknowledgementBatch.of(1, 3, RELEASE, REJECT, GAP),
        AcknowledgementBatch.of(4, 4, ACCEPT),
        AcknowledgementBatch.of(4, 4, ACCEPT),
    ]
    with pytest.raises(InvalidRecordState):
        table.engine.acknowledge(T0, "m1", runs, None, True)
    assert table.row() == before
    table.acknowledge("m1", ACCEPT, (0, 4))
    assert table.row() == (5, 5, "")


@pytest.mark.rule("R-AK-14")
@on_every_engine
def test_a_renewal_outlives_the_request_it_came_in_even_if_acknowledged_later_in_it(engine: str) -> None:
    """0 is renewed, then accepted, then the request fails: 0 is held again, until the renewed time (R-AK-14)."""
    table = Table(engine, None, 4)
    table.fetch("m1", 4)
    table.engine.advance(20)
    runs = [AcknowledgementBatch.of(0, 0, kind) for kind in (RENEW, ACCEPT)]
    with pytest.raises(InvalidRequest):
        table.engine.acknowledge(T0, "m1", [*runs, AcknowledgementBatch.of(9, 9, ACCEPT)], None, True)
    table.engine.advance(15)
    assert table.row() == (0, 4, "0 A1; 1-3 a1")


@pytest.mark.rule("R-AK-3", "R-AK-8", "R-AK-5")
@on_every_engine
@pytest.mark.parametrize(
    ("batches", "renew_allowed"),
    [
        ([AcknowledgementBatch(3, 2, (1,))], True),
        ([AcknowledgementBatch(2, 3, (1,)), AcknowledgementBatch(1, 4, (1,))], True),
        ([AcknowledgementBatch(0, 2, (1, 1))], True),
        ([AcknowledgementBatch(0, 0, ())], True),
        ([AcknowledgementBatch(0, 0, (5,))], True),
        ([AcknowledgementBatch(0, 0, (-1,))], True),
        ([AcknowledgementBatch(0, 0, (4,))], False),
        ([AcknowledgementBatch(0, 5, (1,))], True),
        ([AcknowledgementBatch(7, 9, (1,))], True),
    ],
)
def test_a_malformed_acknowledgement_is_an_invalid_request(
    engine: str, batches: list[AcknowledgementBatch], renew_allowed: bool
) -> None:
    """Reversed, out of order, wrongly many types, none, unknown ones, or past what was acquired (R-AK-3, R-AK-8)."""
    table = Table(engine, None, 10)
    table.fetch("m1", 5)
    with pytest.raises(InvalidRequest):
        table.engine.acknowledge(T0, "m1", batches, None, renew_allowed)
    assert table.row() == (0, 5, "0-4 A1")


@pytest.mark.rule("R-AK-6", "R-AK-7")
@on_every_engine
def test_what_lies_below_spso_is_done_with_for_anyone(engine: str) -> None:
    """Acknowledging it again succeeds, whoever asks (R-AK-6); an empty window above it knows nothing (R-AK-7)."""
    table = Table(engine, None, 10)
    table.fetch("m1", 5)
    table.acknowledge("m1", ACCEPT, (0, 4))
    table.acknowledge("m2", REJECT, (0, 4))
    assert table.row() == (5, 5, "")
    with pytest.raises(InvalidRecordState):
        table.acknowledge("m1", ACCEPT, (5, 6))


@pytest.mark.rule("R-EP-3", "R-EP-5")
@on_every_engine
def test_holders_from_before_an_alter_are_fenced(engine: str) -> None:
    """Two alters never share a state epoch, and a holder's calls carry its own."""
    table = Table(engine, None, 10)
    table.fetch("m1", 5)
    table.engine.leave("g", "m1")
    for _ in range(2):
        table.engine.alter_offsets("g", {("t", 0): 2}, 1, {"t": 1})
    assert table.engine.describe(T0).state_epoch == 3
    with pytest.raises(FencedStateEpoch):
        table.engine.acknowledge(T0, "m1", [AcknowledgementBatch.of(0, 4, ACCEPT)], 1, True)
    table.grow(10)
    assert table.fetch("m2", 3) == ["2-4 x1"]


@pytest.mark.rule("R-EP-5", "R-EP-6", "R-AK-2")
@on_every_engine
def test_a_deleted_group_is_not_found_by_its_holders(engine: str) -> None:
    """GROUP_ID_NOT_FOUND after the group's deletion, UNKNOWN_TOPIC_OR_PARTITION after its offsets'."""
    table = Table(engine, None, 10)
    table.fetch("m1", 5)
    table.engine.leave("g", "m1")
    table.engine.delete_offsets("g", ["t"])
    with pytest.raises(UnknownTopicOrPartition):
        table.acknowledge("m1", ACCEPT, (0, 4))
    table.engine.delete_group("g")
    with pytest.raises(GroupIdNotFound):
        table.acknowledge("m1", ACCEPT, (0, 4))


@pytest.mark.rule("R-EP-2")
@on_every_engine
def test_a_log_that_ends_below_what_was_delivered_is_a_named_fault(engine: str) -> None:
    """Lag is 0 then, never negative."""
    table = Table(engine, None, 10, start=8)
    assert (table.view().lag, table.view().fault) == (2, None)
    table.grow(5)
    assert table.view().lag == 0
    assert table.view().fault is not None


@pytest.mark.rule("R-OR-2")
@on_every_engine
def test_by_duration_waits_for_a_record_that_is_young_enough(engine: str) -> None:
    """OFFSET_NOT_AVAILABLE until there is one, then that one's offset (R-OR-2)."""
    started = ENGINES[engine]()
    started.configure("g", {"share.auto.offset.reset": "by_duration:PT1H"})
    with pytest.raises(OffsetNotAvailable):
        started.initialize(T0, LogEnds(0, 5, 5), 1)
    started.initialize(T0, LogEnds(0, 7, 7, first_young=5), 1)
    assert started.describe(T0).spso == 5


@pytest.mark.rule("R-LS-4", "R-LS-6")
@on_every_engine
def test_held_records_below_the_log_start_hold_nothing_up(engine: str) -> None:
    """They stay held until their lock lapses, and end there; SPSO does not wait for them (R-LS-4, R-LS-6)."""
    table = Table(engine, None, 10)
    table.fetch("m1", 4)
    table.fetch("m2", 3)
    table.acknowledge("m2", RELEASE, (4, 4))
    fetch = FetchOf(0, log_start=6)
    assert table.engine.acquire(T0, "m2", fetch).ranges == ()
    got = table.engine.acquire(T0, "m2", FetchOf(2, log=[LogBatch(6, 9)], log_start=6, mode="record_limit"))
    assert [(run.first, run.last) for run in got.ranges] == [(7, 8)]
    view = table.view()
    assert (view.spso, drawn(view), sorted(view.overtaken)) == (6, "6-8 A1; 9 a0", [0, 1, 2, 3, 5])
    table.acknowledge("m2", ACCEPT, (6, 8))
    assert table.row() == (9, 10, "9 a0")
    table.engine.advance(31)
    assert table.view().overtaken == {}


def loaded(*runs: tuple[int, int, RecordState, int], start: int = 0) -> InMemoryShareGroups:
    """A share-partition with state from elsewhere, in memory."""
    groups = InMemoryShareGroups()
    groups.initialize(T0, "id", start, 1)
    groups.observe(T0, "id", 0, 100)
    groups.load(T0, runs)
    return groups


@pytest.mark.rule("R-IN-8")
def test_a_load_with_everything_finished_ends_with_an_empty_window() -> None:
    """SPSO 233 and 233 to 733 all terminal: SPSO and SPEO are 734 (R-IN-8)."""
    done = (RecordState.ACKNOWLEDGED, 1), (RecordState.ARCHIVED, 2)
    groups = loaded((233, 500, *done[0]), (501, 733, *done[1]), start=233)
    view = groups.describe(T0)
    assert (view.spso, view.speo, view.in_flight) == (734, 734, 0)


@pytest.mark.rule("R-IN-6", "R-NF-3", "R-AQ-15")
def test_holes_of_a_loaded_state_are_acquired_until_all_are() -> None:
    """The holes between SPSO and the last loaded offset are fresh records (R-IN-6, R-NF-3, R-AQ-6)."""
    groups = loaded((5, 9, RecordState.ACKNOWLEDGED, 1), (15, 19, RecordState.AVAILABLE, 2))
    assert groups.describe(T0).next_fetch_offset == 0
    log = [LogBatch(0, 99)]
    got = [groups.acquire(T0, "m1", 5, mode="record_limit", log_batches=log).ranges for _ in range(4)]
    told = [[(run.first, run.last, run.delivery_count) for run in ranges] for ranges in got]
    assert told == [[(0, 4, 1)], [(10, 14, 1)], [(15, 19, 3)], [(20, 24, 1)]]
    assert groups.verify() == []


@pytest.mark.rule("R-IN-5")
def test_a_loaded_state_out_of_order_is_refused() -> None:
    """Runs below SPSO, reversed or overlapping cannot be loaded (R-IN-5)."""
    for first, last in ((4, 9), (9, 8)):
        with pytest.raises(ValueError, match="does not follow"):
            loaded((first, last, RecordState.AVAILABLE, 1), start=5)


@pytest.mark.rule("R-EP-12")
def test_a_repeated_request_returns_the_first_result() -> None:
    """A lost reply costs a retry: the same lease again, and an acknowledgement that happens once."""
    groups = loaded()
    first = groups.acquire(T0, "m1", 5, request_id=UUID(int=1))
    assert groups.acquire(T0, "m1", 5, request_id=UUID(int=1)) == first
    accept = [AcknowledgementBatch.of(0, 4, ACCEPT)]
    done = groups.acknowledge(T0, "m1", accept, lease=first.lease, request_id=UUID(int=2))
    assert groups.acknowledge(T0, "m1", accept, lease=first.lease, request_id=UUID(int=2)) == done


def test_a_lease_fences_its_holder() -> None:
    """Under another lease of the same member nothing can be acknowledged; what lapsed cannot be renewed."""
    groups = loaded()
    first, second = groups.acquire(T0, "m1", 5), groups.acquire(T0, "m1", 5)
    with pytest.raises(InvalidRecordState):
        groups.acknowledge(T0, "m1", [AcknowledgementBatch.of(0, 4, ACCEPT)], lease=second.lease)
    groups.advance(20)
    assert groups.renew(T0, "m1", first.lease) > groups.now()
    groups.advance(20)
    assert groups.describe(T0).offsets[0].state is RecordState.ACQUIRED
    with pytest.raises(InvalidRecordState):
        groups.renew(T0, "m1", second.lease)
