"""Sets of offsets: one value type from SQL through Spark to the screen.

Postgres calls the same thing ``int8multirange`` and prints it as ``{[1,5),[7,9)}``; this module reads and writes that
text. Ranges are half-open and never touch, so a billion consecutive offsets are one pair of numbers. A set of a
million ranges is two columns of numbers: a Python object for each range would cost seconds and hundreds of
megabytes. Nothing here depends on topics, leases or states.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

MAX_OFFSET = 2**63 - 2
"""The highest possible offset: a range's exclusive end must still fit in a BIGINT."""
MAX_PARTITION = 2**31 - 1
"""The highest possible number of a partition in Kafka's protocol."""
FEW = 64
"""Up to this number of ranges, Python's own tuples are faster than arrays."""

Range = tuple[int, int]
"""Offsets from the first number up to, but not including, the second."""
RangeBounds = NDArray[np.int64]
"""Ranges as an array with one row each: first, end."""
_Of = TypeVar("_Of")

_MULTIRANGE = re.compile(r"^\{(\[\d+,\d+\)(,\[\d+,\d+\))*)?\}$")
_RANGE = re.compile(r"\[(\d+),(\d+)\)")


class OffsetSet:
    """A set of offsets of one partition, as sorted, disjoint, non-touching half-open ranges. Immutable.

    Build one with :meth:`of`, :meth:`from_bounds`, :meth:`from_offsets`, :meth:`from_runs` or :meth:`parse`; the
    constructor does not check its argument.
    """

    __slots__ = ("_bounds", "_ranges")
    _ranges: tuple[Range, ...] | None
    _bounds: RangeBounds | None

    def __init__(self, ranges: tuple[Range, ...] | RangeBounds = ()) -> None:
        self._ranges, self._bounds = (ranges, None) if isinstance(ranges, tuple) else (None, ranges)

    @classmethod
    def of(cls, *ranges: Range) -> Self:
        """Return the union of half-open ranges, in any order, overlapping or not.

        Raises ValueError for a range that is empty, reversed, negative or past :data:`MAX_OFFSET`.
        """
        for first, end in ranges:
            if not 0 <= first < end <= MAX_OFFSET + 1:
                raise ValueError(
                    f"[{first}, {end}) is not a range of offsets: expected 0 <= first < end <= {MAX_OFFSET + 1}"
                )
        return cls(tuple(_merged(sorted(ranges))))

    @classmethod
    def from_bounds(cls, bounds: RangeBounds) -> Self:
        """Return the union of half-open ranges, one row each: first, end. In any order, overlapping or not.

        Raises ValueError as :meth:`of` does.
        """
        firsts, ends = bounds[:, 0], bounds[:, 1]
        wrong = (firsts < 0) | (firsts >= ends)
        if wrong.any():
            cls.of((int(firsts[wrong][0]), int(ends[wrong][0])))
        return cls(_united(bounds))

    @classmethod
    def union(cls, sets: Iterable[OffsetSet]) -> OffsetSet:
        """Return the union of many sets in one pass: faster than one ``|`` after another."""
        some = [each for each in sets if each]
        if len(some) == 1:
            return some[0]
        if sum(each.range_count for each in some) > FEW:
            return cls(_united(np.concatenate([each.bounds for each in some])))
        return cls(tuple(_merged(sorted(r for each in some for r in each.ranges))))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse multirange text as Postgres writes it, such as ``{[1,5),[7,9)}``."""
        if not _MULTIRANGE.match(text):
            raise ValueError(
                f"{text[:80]!r} is not a set of offsets: expected multirange text such as {{[1,5),[7,9)}}"
            )
        return cls.of(*((int(first), int(end)) for first, end in _RANGE.findall(text)))

    @classmethod
    def from_runs(cls, firsts: Iterable[int], lasts: Iterable[int]) -> Self:
        """Return the union of runs in Kafka's form: first and last offset, both inclusive."""
        return cls.of(*((int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True)))

    @classmethod
    def from_offsets(cls, offsets: Iterable[int]) -> Self:
        """Return the set of single offsets, in any order. Raises ValueError if one is not an offset."""
        some = sorted(offsets)
        if not some:
            return cls()
        if some[0] < 0 or some[-1] > MAX_OFFSET:
            wrong = some[0] if some[0] < 0 else some[-1]
            raise ValueError(f"{wrong} is not an offset: expected 0 <= offset <= {MAX_OFFSET}")
        each = np.array(some, np.int64)
        return cls(_united(np.stack([each, each + 1], axis=1)))

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The ranges as pairs of Python integers."""
        if self._ranges is None:
            firsts, ends = self.bounds.T.tolist()
            self._ranges = tuple(zip(firsts, ends, strict=True))
        return self._ranges

    @property
    def bounds(self) -> RangeBounds:
        """The ranges as an array with one row each: first, end. Do not change it."""
        if self._bounds is None:
            flat = np.fromiter((edge for r in self.ranges for edge in r), np.int64, 2 * len(self.ranges))
            self._bounds = flat.reshape(-1, 2)
        return self._bounds

    @property
    def range_count(self) -> int:
        """The number of ranges."""
        return len(self._ranges if self._ranges is not None else self.bounds)

    def runs(self) -> list[tuple[int, int]]:
        """Return the ranges as Kafka's pairs of first and last offset, both inclusive."""
        return [(first, end - 1) for first, end in self.ranges]

    @property
    def count(self) -> int:
        """The number of offsets."""
        if self._ranges is None:
            return int((self.bounds[:, 1] - self.bounds[:, 0]).sum())
        return sum(end - first for first, end in self._ranges)

    @property
    def first(self) -> int:
        """The lowest offset. Raises ValueError when the set is empty."""
        return self._hull()[0]

    @property
    def end(self) -> int:
        """One past the highest offset. Raises ValueError when the set is empty."""
        return self._hull()[1]

    def _hull(self) -> Range:
        if not self:
            raise ValueError("an empty set of offsets has no first offset and no end")
        if self._ranges is None:
            return int(self.bounds[0, 0]), int(self.bounds[-1, 1])
        return self._ranges[0][0], self._ranges[-1][1]

    def iter_offsets(self) -> Iterator[int]:
        """Yield every offset, ascending. For small sets only: ten million offsets may be one range."""
        for first, end in self.ranges:
            yield from range(first, end)

    def __len__(self) -> int:
        return self.count

    def __bool__(self) -> bool:
        return self.range_count > 0

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        at = bisect_right(self.ranges, offset, key=lambda r: r[0]) - 1
        return at >= 0 and offset < self.ranges[at][1]

    def __or__(self, other: OffsetSet) -> OffsetSet:
        return OffsetSet.union((self, other))

    def __and__(self, other: OffsetSet) -> OffsetSet:
        if self._many(other):
            return OffsetSet(_shared(self.bounds, other.bounds))
        return OffsetSet(tuple(_common(self.ranges, other.ranges)))

    def __sub__(self, other: OffsetSet) -> OffsetSet:
        if self._many(other):
            edges = np.concatenate([[0], other.bounds.reshape(-1), [MAX_OFFSET + 1]]).reshape(-1, 2)
            return OffsetSet(_shared(self.bounds, edges[edges[:, 0] < edges[:, 1]]))
        return OffsetSet(tuple(_common(self.ranges, _holes(other.ranges))))

    def _many(self, other: OffsetSet) -> bool:
        return self.range_count + other.range_count > FEW

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetSet):
            return NotImplemented
        if self.range_count != other.range_count:
            return False
        return bool((self.bounds == other.bounds).all()) if self._many(other) else self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __reduce__(self) -> tuple[Any, ...]:
        return OffsetSet, (self.ranges if self._bounds is None else self._bounds,)

    def __repr__(self) -> str:
        return f"OffsetSet({self})"

    def __str__(self) -> str:
        return "{" + ",".join(f"[{first},{end})" for first, end in self.ranges) + "}"


EMPTY = OffsetSet()


def sets_of(offsets: Mapping[_Of, Iterable[int]]) -> dict[_Of, OffsetSet]:
    """Return single offsets, in any order, as a set for each key. Raises ValueError if one is not an offset."""
    return {of: OffsetSet.from_offsets(some) for of, some in offsets.items()}


def _merged(ranges: Iterable[Range]) -> Iterator[Range]:
    """Yield the ranges, sorted by first offset, with overlapping and touching ones merged."""
    current: Range | None = None
    for first, end in ranges:
        if current is None:
            current = (first, end)
        elif first <= current[1]:
            current = (current[0], max(current[1], end))
        else:
            yield current
            current = (first, end)
    if current is not None:
        yield current


def _united(bounds: RangeBounds) -> RangeBounds:
    """Return the union of ranges, which may be in any order."""
    firsts, ends = bounds[:, 0], bounds[:, 1]
    if (firsts[1:] < firsts[:-1]).any():
        order = np.argsort(firsts, kind="stable")
        firsts, ends = firsts[order], ends[order]
    ends = np.maximum.accumulate(ends)
    apart = firsts[1:] > ends[:-1]
    if apart.all():
        return np.stack([firsts, ends], axis=1)
    return np.stack([firsts[np.append(True, apart)], ends[np.append(apart, True)]], axis=1)


def _common(left: tuple[Range, ...], right: tuple[Range, ...]) -> Iterator[Range]:
    """Yield the intersection of two sorted lists of disjoint ranges, in one pass over both."""
    i = j = 0
    while i < len(left) and j < len(right):
        first, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if first < end:
            yield first, end
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1


def _shared(left: RangeBounds, right: RangeBounds) -> RangeBounds:
    """Return the intersection of two sorted arrays of disjoint ranges. It looks up the shorter in the longer."""
    if len(left) > len(right):
        left, right = right, left
    low = np.searchsorted(right[:, 1], left[:, 0], side="right")
    high = np.searchsorted(right[:, 0], left[:, 1], side="left")
    partners = np.maximum(high - low, 0)
    own = np.repeat(np.arange(len(left)), partners)
    before = np.cumsum(partners) - partners
    other = np.arange(len(own)) - np.repeat(before, partners) + np.repeat(low, partners)
    firsts = np.maximum(left[own, 0], right[other, 0])
    return np.stack([firsts, np.minimum(left[own, 1], right[other, 1])], axis=1)


def _holes(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """Return the offsets from 0 to the highest possible one that are in no range."""
    edges = [0, *(edge for r in ranges for edge in r), MAX_OFFSET + 1]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return tuple((first, end) for first, end in pairs if first < end)
