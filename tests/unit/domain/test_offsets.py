"""The one value for a set of offsets, held against Python's own sets."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharequeue.domain.offsets import FEW, MAX_OFFSET, OffsetSet

ranges = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=8,
)


def members(offsets: OffsetSet) -> set[int]:
    return set(offsets.iter_offsets())


@given(ranges, ranges)
def test_set_algebra_agrees_with_python_sets(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    """Union, intersection, difference, length and membership are those of plain sets of integers."""
    a, b = OffsetSet.of(*left), OffsetSet.of(*right)
    assert members(a | b) == members(a) | members(b)
    assert members(a & b) == members(a) & members(b)
    assert members(a - b) == members(a) - members(b)
    assert len(a) == len(members(a))
    assert all((offset in a) == (offset in members(a)) for offset in range(90))


@given(ranges)
def test_ranges_are_canonical(given_ranges: list[tuple[int, int]]) -> None:
    """Equal sets are equal values: ranges are sorted, disjoint and never touch."""
    offsets = OffsetSet.of(*given_ranges)
    for (_, end), (first, _) in zip(offsets.ranges, offsets.ranges[1:], strict=False):
        assert end < first
    assert OffsetSet.of(*((o, o + 1) for o in members(offsets))) == offsets


@given(st.lists(st.integers(0, 60) | st.just(MAX_OFFSET)))
def test_single_offsets_make_the_set_that_they_are(offsets: list[int]) -> None:
    """In any order, and an offset may come twice."""
    assert OffsetSet.from_offsets(offsets) == OffsetSet.of(*((offset, offset + 1) for offset in offsets))


@pytest.mark.parametrize("bad", [-1, MAX_OFFSET + 1])
def test_a_single_offset_that_cannot_be_is_refused(bad: int) -> None:
    """Below the first offset that a log has, or past the last."""
    with pytest.raises(ValueError, match="is not an offset"):
        OffsetSet.from_offsets([0, bad])


@given(ranges)
def test_text_and_runs_survive_the_round_trip(given_ranges: list[tuple[int, int]]) -> None:
    """Postgres's multirange text and Kafka's inclusive runs both give the same set back."""
    offsets = OffsetSet.of(*given_ranges)
    assert OffsetSet.parse(str(offsets)) == offsets
    firsts, lasts = [run[0] for run in offsets.runs()], [run[1] for run in offsets.runs()]
    assert OffsetSet.from_runs(firsts, lasts) == offsets


@pytest.mark.parametrize("bad", [(5, 5), (5, 4), (-1, 3), (0, MAX_OFFSET + 2)])
def test_a_range_that_cannot_be_is_refused_by_name(bad: tuple[int, int]) -> None:
    """An empty, reversed, negative or too large range is refused with what was expected."""
    with pytest.raises(ValueError, match="expected 0 <= first < end"):
        OffsetSet.of(bad)


@pytest.mark.parametrize("bad", ["", "{[5,4", "{(1,2)}", "nonsense", "{[1,2),}"])
def test_text_that_is_no_multirange_is_refused(bad: str) -> None:
    """Only Postgres's own canonical multirange text is read."""
    with pytest.raises(ValueError, match="not a set of offsets"):
        OffsetSet.parse(bad)


def test_an_empty_set_has_no_bounds() -> None:
    """Asking an empty set for its first offset is an error, not a made-up number."""
    with pytest.raises(ValueError, match="empty set"):
        _ = OffsetSet().first


wide = st.builds(
    lambda seed, ranges, step: OffsetSet.from_bounds(
        np.array(
            [[first, first + 1 + first % 3] for first in range(seed, ranges * step + seed, step)], np.int64
        ).reshape(-1, 2)
    ),
    st.integers(0, 9),
    st.integers(0, 2 * FEW),
    st.integers(2, 5),
)


@given(wide, wide)
def test_arrays_do_what_tuples_do(left: OffsetSet, right: OffsetSet) -> None:
    """Sets of many ranges are arrays; what they share, join and leave is the same as of plain sets."""
    assert members(left | right) == members(left) | members(right)
    assert members(left & right) == members(left) & members(right)
    assert members(left - right) == members(left) - members(right)
    assert left.count == len(members(left))
    assert OffsetSet.of(*left.ranges) == left
    assert hash(OffsetSet(left.ranges)) == hash(left)
    assert pickle.loads(pickle.dumps(left)) == left  # noqa: S301 - our own


@pytest.mark.parametrize("bad", [(3, 3), (4, 2), (-1, 5)])
def test_bounds_that_cannot_be_are_refused(bad: tuple[int, int]) -> None:
    """As of ranges one by one."""
    with pytest.raises(ValueError, match="is not a range of offsets"):
        OffsetSet.from_bounds(np.array([(0, 1), bad], np.int64))


def test_bounds_reach_the_last_offset() -> None:
    """The end of the last range is the largest number there is."""
    last = OffsetSet.from_bounds(np.array([(MAX_OFFSET, MAX_OFFSET + 1)], np.int64))
    assert last == OffsetSet.of((MAX_OFFSET, MAX_OFFSET + 1))
    assert last - OffsetSet.from_offsets(range(0, 4 * FEW, 2)) == last
