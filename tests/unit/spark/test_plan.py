"""Which scans read a lease: everything once, in few scans, with as little in vain as possible."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.spark.reading.plan import Scan, Segment, plan_scans

RANGES = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(1, 300)).map(lambda r: (r[0], r[0] + r[1])),
    min_size=1,
    max_size=8,
)
SETS = RANGES.map(lambda ranges: OffsetSet.of(*ranges))
PARTITIONS = st.dictionaries(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2)), SETS, max_size=5)


def read_of(scans: tuple[Scan, ...], at: tuple[str, int]) -> list[Segment]:
    return [s for scan in scans for s in scan.segments if (s.topic, s.partition) == at]


def records_of(scans: tuple[Scan, ...]) -> int:
    return sum(segment.records for scan in scans for segment in scan.segments)


@given(PARTITIONS, st.integers(1, 5), st.sampled_from([0, 50, 1000]))
def test_every_leased_offset_is_read_once_and_in_few_scans(
    leased: dict[tuple[str, int], OffsetSet], max_scans: int, near: int
) -> None:
    """Whatever is leased: all of it is covered, nothing is read twice, and the bound on scans holds."""
    scans = plan_scans(leased, max_scans=max_scans, near=near)
    assert len(scans) <= max_scans
    for scan in scans:
        named = [(s.topic, s.partition) for s in scan.segments]
        assert len(named) == len(set(named)), "the connector takes one range of a partition"
    for at, offsets in leased.items():
        covered = EMPTY
        for segment in read_of(scans, at):
            piece = OffsetSet.of((segment.first, segment.end))
            assert not covered & piece, "read twice"
            covered |= piece
        assert not offsets - covered, "left out"


@given(SETS, st.integers(1, 5))
def test_scans_read_as_few_unleased_offsets_as_possible(offsets: OffsetSet, max_scans: int) -> None:
    """No way of cutting the hull in at most `max_scans` pieces covers the set with fewer offsets."""
    scans = plan_scans({("t", 0): offsets}, max_scans=max_scans, near=0)
    holes = [b[0] - a[1] for a, b in zip(offsets.ranges, offsets.ranges[1:], strict=False)]
    hull = offsets.end - offsets.first
    best = min(hull - sum(cut) for k in range(max_scans) if k <= len(holes) for cut in combinations(holes, k))
    assert records_of(scans) == best


@given(SETS, st.integers(1, 5), st.integers(1, 500))
def test_reading_over_near_holes_is_bounded_by_the_scans_it_saves(
    offsets: OffsetSet, max_scans: int, near: int
) -> None:
    """What reading over near holes adds is bounded by the cuts it saved, each no longer than `near`."""
    least = records_of(plan_scans({("t", 0): offsets}, max_scans=max_scans, near=0))
    read = records_of(plan_scans({("t", 0): offsets}, max_scans=max_scans, near=near))
    assert least <= read <= least + (max_scans - 1) * near


def test_a_straggler_far_behind_the_head_gets_a_scan_of_its_own() -> None:
    """A released record at offset 10 and a head at ten million are two scans, not ten million records in vain."""
    leased = {("t", 0): OffsetSet.of((10, 11), (10_000_000, 10_001_000)), ("t", 1): OffsetSet.of((0, 5))}
    first, second = plan_scans(leased)
    assert first.segments == (Segment("t", 0, 10, 11), Segment("t", 1, 0, 5))
    assert second.segments == (Segment("t", 0, 10_000_000, 10_001_000),)


def test_a_scan_becomes_the_options_of_the_connector() -> None:
    """Offsets are JSON by topic and partition, ends exclusive, and only what is assigned is named."""
    (scan,) = plan_scans(
        {("a", 0): OffsetSet.of((1, 4)), ("a", 2): OffsetSet.of((7, 9)), ("b", 0): OffsetSet.of((0, 1))}
    )
    options = {name: json.loads(value) for name, value in scan.options().items()}
    assert options == {
        "assign": {"a": [0, 2], "b": [0]},
        "startingOffsets": {"a": {"0": 1, "2": 7}, "b": {"0": 0}},
        "endingOffsets": {"a": {"0": 4, "2": 9}, "b": {"0": 1}},
    }


def test_an_empty_lease_needs_no_scan() -> None:
    assert plan_scans({}) == ()
    assert plan_scans({("t", 0): EMPTY}) == ()


def test_a_limit_of_no_scan_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one scan"):
        plan_scans({}, max_scans=0)
