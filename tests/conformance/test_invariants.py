"""Whatever is done to the in-memory engine, in whatever order, its invariants hold."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from sharequeue.domain.errors import InvalidRecordState, InvalidRequest
from sharequeue.domain.offsets import OffsetSet
from tests.conformance.drawing import T0
from tests.oracle import AcknowledgementBatch, InMemoryShareGroups, LogBatch, RecordState

MEMBERS = st.sampled_from(["m1", "m2", "m3"])
OFFSETS = st.integers(0, 60)
MODES = st.sampled_from(["batch_optimized", "record_limit"])
ACTIONS = st.one_of(
    st.tuples(st.just("acquire"), MEMBERS, st.integers(0, 30), MODES, st.booleans()),
    st.tuples(st.just("fan_out"), MEMBERS, st.integers(0, 30)),
    st.tuples(st.just("acknowledge"), MEMBERS, OFFSETS, st.lists(st.integers(0, 4), min_size=1, max_size=12)),
    st.tuples(st.just("advance"), st.sampled_from([1.0, 10.0, 31.0])),
    st.tuples(st.just("release"), MEMBERS),
    st.tuples(st.just("log start"), OFFSETS),
    st.tuples(st.just("dead letters")),
    st.tuples(st.just("alter"), OFFSETS),
)


def act(groups: InMemoryShareGroups, log: list[LogBatch], action: tuple[object, ...]) -> None:
    """One operation; a refusal is a result too."""
    match action:
        case ("acquire", str(member), int(most), ("batch_optimized" | "record_limit") as mode, bool(known)):
            batches = log if known else None
            groups.acquire(T0, member, most, mode=mode, log_batches=batches, aborted=OffsetSet.of((10, 13)))
        case ("fan_out", str(member), int(most)):
            groups.acquire(T0, member, most, redelivery="fan_out")
        case ("acknowledge", str(member), int(first), list(types)):
            run = AcknowledgementBatch(first, first + len(types) - 1, tuple(types))
            with suppress(InvalidRecordState, InvalidRequest):
                groups.acknowledge(T0, member, [run])
        case ("advance", float(seconds)):
            groups.advance(seconds)
        case ("release", str(member)):
            groups.release_member("g", member)
        case ("log start", int(offset)):
            groups.advance_log_start(T0, offset)
        case ("dead letters",):
            if batch := groups.open_dead_letters(T0, 5):
                groups.close_dead_letters(T0, batch.sequence)
        case ("alter", int(offset)):
            groups.alter_offsets("g", {("t", 0): offset})


@settings(max_examples=150, deadline=None)
@given(
    st.lists(ACTIONS, max_size=40),
    st.lists(st.integers(1, 9), min_size=8, max_size=8),
    st.sampled_from([2, 3, 5]),
    st.booleans(),
)
def test_any_sequence_of_operations_keeps_the_invariants(
    actions: list[tuple[object, ...]], sizes: list[int], limit: int, dead_letters: bool
) -> None:
    """Batches in order, every held offset under one lease, SPSO never back but by an alter, nothing terminal at
    SPSO once all locks are settled, and SPSO reaches the log end when everything is accepted."""
    groups, log, end = InMemoryShareGroups(), [], 0
    for size in sizes:
        log.append(LogBatch(end, end + size - 1))
        end += size
    groups.configure("g", {"share.delivery.count.limit": limit, "share.isolation.level": "read_committed"})
    groups.configure("g", {"errors.deadletterqueue.topic.name": "dlq.q" if dead_letters else None})
    groups.initialize(T0, "id", 0, 1)
    groups.observe(T0, "id", 0, end)
    spso = 0
    for action in actions:
        act(groups, log, action)
        assert groups.verify() == []
        now = groups.describe(T0).spso
        assert now >= spso or action[0] == "alter"
        spso = now
    _drain(groups, end)


def _drain(groups: InMemoryShareGroups, end: int) -> None:
    """Everything that can still be had is had and accepted."""
    groups.observe(T0, "id", 0, end)
    groups.advance(31)
    for _ in range(400):
        while batch := groups.open_dead_letters(T0):
            groups.close_dead_letters(T0, batch.sequence)
        got = groups.acquire(T0, "last", 1000, redelivery="fan_out")
        for run in got.ranges:
            groups.acknowledge(T0, "last", [AcknowledgementBatch(run.first, run.last, (1,))])
        if not got.ranges:
            break
    view = groups.describe(T0)
    assert groups.verify() == []
    first = view.offsets.get(view.spso)
    assert first is None or first.state is not RecordState.ACKNOWLEDGED
    assert view.spso >= end
