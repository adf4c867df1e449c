"""The rules of a share-partition's life that need a history of their own, one by one, on every engine."""

from __future__ import annotations

import pytest

from sharequeue.domain.errors import InvalidRecordState, InvalidRequest
from sharequeue.domain.offsets import OffsetSet
from tests.conformance.drawing import ACCEPT, GAP, REJECT, RELEASE, RENEW, T0, Table, drawn, on_every_engine
from tests.conformance.engines import FetchOf, LogEnds
from tests.oracle import AcknowledgementBatch, LogBatch, RecordState, SharePartition

LIMIT, DLQ = "share.delivery.count.limit", "errors.deadletterqueue.topic.name"


@pytest.mark.rule("R-AK-4", "R-AK-12", "R-ST-2", "R-DL-1", "R-DL-2", "R-DL-3")
@on_every_engine
@pytest.mark.parametrize(("topic", "rejected"), [("", "3-4 x1"), ("dlq.q", "3 d1; 4 x1")])
def test_every_acknowledgement_leads_to_its_state(engine: str, topic: str, rejected: str) -> None:
    """One type for each offset of a batch: accepted, released, rejected, a gap; the counts stay."""
    table = Table(engine, [(0, 5)], 6, configs={DLQ: topic})
    table.fetch_size("m1")
    run = AcknowledgementBatch.of(1, 4, ACCEPT, RELEASE, REJECT, GAP)
    table.engine.acknowledge(T0, "m1", [run], None, True)
    assert table.row() == (0, 6, f"0 A1; 1 k1; 2 a1; {rejected}; 5 A1")
    table.engine.write_dead_letters(T0)
    assert table.row()[2] == "0 A1; 1 k1; 2 a1; 3-4 x1; 5 A1"


@pytest.mark.rule("R-ST-5")
@on_every_engine
def test_a_lowered_limit_delivers_once_more(engine: str) -> None:
    """What is available at or above the new limit is delivered again, and given up when that delivery ends."""
    table = Table(engine, [(0, 1)], 2, configs={LIMIT: 5})
    for _ in range(3):
        table.fetch_size("m1")
        table.acknowledge("m1", RELEASE, (0, 1))
    table.engine.configure("g", {LIMIT: 2})
    assert table.fetch_size("m1") > 0
    table.engine.advance(31)
    assert "x4" in table.row()[2] or table.row()[0] > 0


@pytest.mark.rule("R-IN-2", "R-IN-1", "R-IN-4")
@on_every_engine
def test_a_second_initialisation_changes_nothing(engine: str) -> None:
    """SPSO, SPEO, state epoch and what is in flight stay as they are."""
    table = Table(engine, None, 10, start=2)
    table.fetch("m1", 3)
    before = table.row()
    table.engine.initialize_at(T0, 7, 9)
    assert table.row() == before == (2, 5, "2-4 A1")
    assert table.view().state_epoch == 1


@pytest.mark.rule("R-NF-1", "R-NF-2", "R-NF-4", "R-AQ-5", "R-AQ-7", "R-AQ-10")
@on_every_engine
def test_redeliverable_records_come_before_fresh_ones(engine: str) -> None:
    """Fresh from SPEO while nothing is redeliverable; afterwards the lowest redeliverable first, then the tail."""
    table = Table(engine, [(first, first) for first in range(20)], 20)
    assert table.view().next_fetch_offset == 0
    assert table.fetch("m1", 4) == ["0-3 x1"]
    assert table.view().next_fetch_offset == 4
    table.acknowledge("m1", RELEASE, (1, 1), (3, 3))
    assert table.view().next_fetch_offset == 1
    assert table.fetch("m2", 4) == ["1-1 x2", "3-3 x2", "4-5 x1"]
    assert table.view().next_fetch_offset == 6


@pytest.mark.rule("R-NF-5", "R-NF-6", "R-AQ-2")
@on_every_engine
def test_the_window_is_a_span_and_a_full_one_still_redelivers(engine: str) -> None:
    """Acknowledged records behind a held head count; at the bound only what is inside comes again."""
    table = Table(engine, None, 100, configs={"share.partition.max.record.locks": 10})
    assert table.fetch("m1", 50) == ["0-9 x1"]
    table.acknowledge("m1", ACCEPT, (1, 8))
    assert table.view().in_flight == 10
    assert table.fetch("m1", 50) == []
    table.acknowledge("m1", RELEASE, (9, 9))
    assert table.fetch("m1", 50) == ["9-9 x2"]
    table.acknowledge("m1", ACCEPT, (0, 0))
    assert table.fetch("m1", 50) == ["10-18 x1"]


@pytest.mark.rule("R-AQ-1")
@on_every_engine
def test_a_fetch_of_nothing_gets_nothing(engine: str) -> None:
    """No records asked for, nothing in the log, or a log that ends below SPSO."""
    table = Table(engine, [(0, 9)], 10)
    assert table.fetch("m1", 0) == []
    table.log = []
    assert table.fetch("m1", 10) == []
    table.log = [LogBatch(0, 9)]
    late = Table(engine, [(0, 4)], 5, start=8)
    assert late.fetch("m1", 10) == []


@pytest.mark.rule("R-AQ-4")
@on_every_engine
def test_nothing_below_spso_is_fresh(engine: str) -> None:
    """A log batch that SPSO stands in the middle of is acquired from SPSO on."""
    table = Table(engine, [(0, 9)], 10, start=4)
    assert table.fetch("m1", 100, "batch_optimized") == ["4-9 x1"]


@pytest.mark.rule("R-AQ-12", "R-ST-3")
@on_every_engine
def test_record_limit_takes_exactly_so_many(engine: str) -> None:
    """The rest of the log batch is in flight, available, never delivered; it comes next with count 1."""
    table = Table(engine, [(0, 9), (10, 19)], 20)
    assert table.fetch("m1", 4) == ["0-3 x1"]
    assert table.row() == (0, 10, "0-3 A1; 4-9 a0")
    assert table.fetch("m1", 20) == ["4-9 x1", "10-19 x1"]


@pytest.mark.rule("R-AQ-13", "R-RN-2")
@on_every_engine
def test_a_lock_lasts_as_long_as_the_group_says_when_it_begins(engine: str) -> None:
    """The duration is read at the fetch; a later change is for later locks."""
    table = Table(engine, None, 20, configs={"share.record.lock.duration.ms": 20000})
    table.fetch("m1", 5)
    table.engine.configure("g", {"share.record.lock.duration.ms": 60000})
    table.fetch("m1", 5)
    table.engine.advance(21)
    assert table.row() == (0, 10, "0-4 a1; 5-9 A1")
    table.engine.advance(40)
    assert table.row() == (0, 10, "0-9 a1")


@pytest.mark.rule("R-AK-5", "R-AK-1")
@on_every_engine
def test_an_unknown_type_is_refused_even_below_spso(engine: str) -> None:
    """Before anything is looked up; and a member has a name."""
    table = Table(engine, None, 10)
    table.fetch("m1", 5)
    table.acknowledge("m1", ACCEPT, (0, 4))
    with pytest.raises(InvalidRequest):
        table.engine.acknowledge(T0, "m1", [AcknowledgementBatch(0, 4, (7,))], None, True)
    for member in ("", "m" * 37):
        with pytest.raises(InvalidRequest):
            table.fetch(member, 1)


@pytest.mark.rule("R-AK-9", "R-AK-10", "R-AK-11", "R-AK-13")
@on_every_engine
@pytest.mark.parametrize("what", ["another's", "released", "acknowledged", "lapsed"])
def test_what_is_not_held_cannot_be_acknowledged(engine: str, what: str) -> None:
    """Whole batches and single offsets alike, whatever else the call names; nothing changes."""
    table = Table(engine, [(0, 4), (5, 9)], 10)
    table.fetch("m1", 5, "batch_optimized")
    table.fetch("m2", 5, "batch_optimized")
    if what == "released":
        table.acknowledge("m2", RELEASE, (5, 9))
    elif what == "acknowledged":
        table.acknowledge("m2", ACCEPT, (5, 9))
    elif what == "lapsed":
        table.engine.advance(31)
    before = table.row()
    for run in ((5, 9), (6, 6), (5, 7)):
        with pytest.raises(InvalidRecordState):
            table.acknowledge("m1" if what == "another's" else "m2", ACCEPT, run)
    assert table.row() == before


@pytest.mark.rule("R-AK-16", "R-AK-17", "R-EP-1", "R-SO-1", "R-SO-2", "R-SO-5")
@on_every_engine
def test_spso_waits_for_the_head_and_then_passes_all_that_is_done(engine: str) -> None:
    """What is acknowledged behind the head counts as complete at once; the head's acknowledgement moves SPSO into the
    batch."""
    table = Table(engine, [(0, 9)], 10)
    table.fetch_size("m1")
    table.acknowledge("m1", ACCEPT, (1, 5))
    view = table.view()
    assert (view.spso, view.delivery_complete_count) == (0, 5)
    table.acknowledge("m1", ACCEPT, (0, 0), (7, 7))
    view = table.view()
    assert (view.spso, view.delivery_complete_count, drawn(view)) == (6, 1, "6 A1; 7 k1; 8-9 A1")


@pytest.mark.rule("R-SO-3", "R-SO-4")
@on_every_engine
def test_spso_jumps_holes_and_empties_the_window(engine: str) -> None:
    """Past the first batch it stands at the next one; past the last at SPEO, nothing in flight."""
    table = Table(engine, [(0, 4), (8, 9)], 10)
    assert table.fetch("m1", 5, "batch_optimized") == ["0-4 x1"]
    assert table.fetch("m1", 5, "batch_optimized") == ["8-9 x1"]
    table.acknowledge("m1", ACCEPT, (0, 4))
    assert table.view().spso == 8
    table.acknowledge("m1", ACCEPT, (8, 9))
    view = table.view()
    assert (view.spso, view.speo, view.in_flight, view.delivery_complete_count) == (10, 10, 0, 0)


@pytest.mark.rule("R-RN-1")
@on_every_engine
def test_a_renewal_starts_the_lock_anew(engine: str) -> None:
    """For the offsets named alone, state and count as they were; where the group forbids it, it is refused."""
    table = Table(engine, None, 4)
    table.fetch("m1", 4)
    table.engine.advance(20)
    table.acknowledge("m1", RENEW, (1, 2))
    table.engine.advance(20)
    assert table.row() == (0, 4, "0 a1; 1-2 A1; 3 a1")
    table.engine.configure("g", {"share.renew.acknowledge.enable": "false"})
    with pytest.raises(InvalidRecordState):
        table.acknowledge("m1", RENEW, (1, 2))


@pytest.mark.rule("R-AK-14")
@on_every_engine
def test_only_runs_before_the_failing_one_stay_renewed(engine: str) -> None:
    """0 was renewed by a run of its own; 2 by the run that fails at 4, which another member holds."""
    table = Table(engine, None, 6)
    table.fetch("m1", 4)
    table.fetch("m2", 2)
    table.engine.advance(20)
    with pytest.raises(InvalidRecordState):
        table.acknowledge("m1", RENEW, (0, 0), (2, 4))
    table.engine.advance(15)
    assert table.row() == (0, 6, "0 A1; 1-5 a1")


@pytest.mark.rule("R-LT-3", "R-ST-4", "R-SO-2")
@on_every_engine
@pytest.mark.parametrize(("topic", "ends"), [("", "x2"), ("dlq.q", "d2")])
def test_a_lapse_gives_back_and_at_the_limit_gives_up(engine: str, topic: str, ends: str) -> None:
    """Count and all; the head that is archived lets SPSO pass, one that waits for its dead letter does not."""
    table = Table(engine, [(0, 3)], 4, configs={LIMIT: 2, DLQ: topic})
    table.fetch_size("m1")
    table.engine.advance(31)
    assert table.row() == (0, 4, "0-3 a1")
    table.fetch_size("m1")
    table.acknowledge("m1", RENEW, (0, 0))
    table.engine.advance(20)
    table.acknowledge("m1", RENEW, (0, 0))
    table.engine.advance(20)
    assert table.row() == (0, 4, f"0 A2; 1-3 {ends}")
    table.engine.advance(31)
    assert table.row() == ((4, 4, "") if not topic else (0, 4, f"0-3 {ends}"))


@pytest.mark.rule("R-RL-6", "R-RL-7")
@on_every_engine
def test_a_session_gives_back_what_is_in_it(engine: str) -> None:
    """Counts kept; what the member holds of other share-partitions waits for its locks."""
    table = Table(engine, None, 5)
    other = SharePartition("g", "t", 1)
    table.engine.initialize_at(other, 0, 1)
    table.engine.observe(other, LogEnds(0, 5, 5))
    table.fetch("m1", 5)
    table.engine.acquire(other, "m1", FetchOf(5, "record_limit"))
    table.engine.release_member("g", "m1", [T0])
    assert table.row() == (0, 5, "0-4 a1")
    assert drawn(table.engine.describe(other)) == "0-4 A1"
    table.engine.advance(31)
    table.engine.sweep()
    assert drawn(table.engine.describe(other)) == "0-4 a1"


@pytest.mark.rule("R-LS-2", "R-LS-3", "R-LS-4", "R-ST-8", "R-LS-1")
@on_every_engine
def test_the_log_start_takes_what_is_available(engine: str) -> None:
    """At or below SPSO it changes nothing; an empty window moves with it; available records below it are lost."""
    table = Table(engine, None, 20, start=5)
    table.engine.acquire(T0, "m1", FetchOf(0, log_start=5))
    assert table.row() == (5, 5, "")
    table.engine.acquire(T0, "m1", FetchOf(0, log_start=8))
    assert table.row() == (8, 8, "")
    table.fetch("m1", 4)
    table.acknowledge("m1", RELEASE, (8, 9))
    table.engine.acquire(T0, "m1", FetchOf(0, log_start=10))
    view = table.view()
    assert (view.spso, drawn(view), view.lost_records) == (10, "10-11 A1", 3 + 2)


@pytest.mark.rule("R-IL-1", "R-IL-2")
@on_every_engine
def test_the_isolation_level_counts_from_the_next_fetch(engine: str) -> None:
    """Committed reads up to the last stable offset, uncommitted up to the log end."""
    table = Table(engine, [(0, 4), (5, 9)], 10, configs={"share.isolation.level": "read_committed"})
    table.grow(10, last_stable=5)
    assert table.fetch("m1", 100) == ["0-4 x1"]
    assert table.fetch("m1", 100) == []
    table.engine.configure("g", {"share.isolation.level": "read_uncommitted"})
    assert table.fetch("m1", 100) == ["5-9 x1"]


@pytest.mark.rule("R-IL-3", "R-AQ-16", "R-DL-2")
@on_every_engine
def test_aborted_records_cost_budget_and_end(engine: str) -> None:
    """Archived, no dead letters, cut out of the response; under read_uncommitted they are records like others."""
    configs = {"share.isolation.level": "read_committed", DLQ: "dlq.q"}
    table = Table(engine, None, 10, configs=configs)
    log, aborted = [LogBatch(0, 2), LogBatch(3, 5), LogBatch(6, 9)], OffsetSet.of((3, 6))
    fetch = FetchOf(7, "record_limit", None, log, aborted)
    got = table.engine.acquire(T0, "m1", fetch)
    assert [(run.first, run.last) for run in got.ranges] == [(0, 2), (6, 6)]
    assert table.row() == (0, 10, "0-2 A1; 3-5 x1; 6 A1; 7-9 a0")
    plain = Table(engine, None, 10)
    got = plain.engine.acquire(T0, "m1", fetch)
    assert [(run.first, run.last) for run in got.ranges] == [(0, 6)]


@pytest.mark.rule("R-IL-4")
@on_every_engine
def test_a_marker_is_acknowledged_as_a_gap(engine: str) -> None:
    """It is no dead letter, though the group has a DLQ."""
    table = Table(engine, [(0, 2), (3, 3)], 4, configs={DLQ: "dlq.q"})
    table.fetch("m1", 10)
    table.acknowledge("m1", GAP, (3, 3))
    assert table.row() == (0, 4, "0-2 A1; 3 x1")
    assert table.view().offsets[3].state is RecordState.ARCHIVED


@pytest.mark.rule("R-OR-1")
@on_every_engine
@pytest.mark.parametrize(("policy", "start"), [("latest", 9), ("earliest", 3)])
def test_the_reset_policy_says_where_a_group_begins(engine: str, policy: str, start: int) -> None:
    """Latest is the log end, earliest the log start."""
    table = Table(engine, None, 10, configs={"share.auto.offset.reset": policy})
    at = SharePartition("g", "t", 2)
    table.engine.initialize(at, LogEnds(3, 9, 9), 1)
    assert table.engine.describe(at).spso == start
