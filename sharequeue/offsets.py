"""What is a set of offsets? One value for it, from SQL through Spark to the screen.

Postgres calls the same thing ``int8multirange`` and prints it as ``{[1,5),[7,9)}``; this module speaks that
text, so a set crosses the wire without being taken apart. Ranges are half-open and never touch, so a
billion consecutive offsets are one pair of numbers. Nothing here knows of topics, leases or states.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

MAX_OFFSET = 2**63 - 2
"""The last offset that can be held: a range's exclusive end must still fit in a BIGINT."""

Range = tuple[int, int]
"""Offsets from the first number up to, but not including, the second."""

_MULTIRANGE = re.compile(r"^\{(\[\d+,\d+\)(,\[\d+,\d+\))*)?\}$")
_RANGE = re.compile(r"\[(\d+),(\d+)\)")


@dataclass(frozen=True, slots=True)
class OffsetSet:
    """A set of offsets of one partition, as sorted, disjoint, non-touching half-open ranges.

    Build one with :meth:`of`, :meth:`from_offsets`, :meth:`from_runs` or :meth:`parse`; the constructor trusts its
    argument.
    """

    ranges: tuple[Range, ...] = ()

    @classmethod
    def of(cls, *ranges: Range) -> Self:
        """The union of half-open ranges, in any order, overlapping or not.

        Raises ValueError for a range that is empty, reversed, negative or past :data:`MAX_OFFSET`.
        """
        for first, end in ranges:
            if not 0 <= first < end <= MAX_OFFSET + 1:
                raise ValueError(
                    f"[{first}, {end}) is not a range of offsets: expected 0 <= first < end <= {MAX_OFFSET + 1}"
                )
        return cls(tuple(_merged(sorted(ranges))))

    @classmethod
    def union(cls, sets: Iterable[OffsetSet]) -> OffsetSet:
        """All offsets of some sets, in one pass: for many of them faster than one ``|`` after another."""
        some = [each for each in sets if each.ranges]
        if len(some) == 1:
            return some[0]
        return cls(tuple(_merged(sorted(r for each in some for r in each.ranges))))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The set that Postgres wrote as multirange text, such as ``{[1,5),[7,9)}``."""
        if not _MULTIRANGE.match(text):
            raise ValueError(
                f"{text[:80]!r} is not a set of offsets: expected multirange text such as {{[1,5),[7,9)}}"
            )
        return cls.of(*((int(first), int(end)) for first, end in _RANGE.findall(text)))

    @classmethod
    def from_runs(cls, firsts: Iterable[int], lasts: Iterable[int]) -> Self:
        """Return the union of runs as Kafka writes them: first and last offset, both inclusive."""
        return cls.of(*((int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True)))

    @classmethod
    def from_offsets(cls, offsets: Iterable[int]) -> Self:
        """Return the set of single offsets, in any order. Raises ValueError for what is no offset."""
        some = sorted(offsets)
        if not some:
            return cls()
        if some[0] < 0 or some[-1] > MAX_OFFSET:
            wrong = some[0] if some[0] < 0 else some[-1]
            raise ValueError(f"{wrong} is no offset: expected 0 <= offset <= {MAX_OFFSET}")
        ranges: list[Range] = []
        first = end = some[0]
        for offset in some:
            if offset == end:
                end += 1
            elif offset > end:
                ranges.append((first, end))
                first, end = offset, offset + 1
        ranges.append((first, end))
        return cls(tuple(ranges))

    def runs(self) -> list[tuple[int, int]]:
        """The ranges as Kafka's pairs of first and last offset, both inclusive."""
        return [(first, end - 1) for first, end in self.ranges]

    @property
    def count(self) -> int:
        """How many offsets the set holds."""
        return sum(end - first for first, end in self.ranges)

    @property
    def first(self) -> int:
        """The lowest offset. Raises ValueError when the set is empty."""
        return self._bounds()[0]

    @property
    def end(self) -> int:
        """One past the highest offset. Raises ValueError when the set is empty."""
        return self._bounds()[1]

    def _bounds(self) -> Range:
        if not self.ranges:
            raise ValueError("an empty set of offsets has neither a first offset nor an end")
        return self.ranges[0][0], self.ranges[-1][1]

    def iter_offsets(self) -> Iterator[int]:
        """Every offset, ascending. For small sets: a lease of ten million is one range but ten million of
        these."""
        for first, end in self.ranges:
            yield from range(first, end)

    def __len__(self) -> int:
        return self.count

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        at = bisect_right(self.ranges, offset, key=lambda r: r[0]) - 1
        return at >= 0 and offset < self.ranges[at][1]

    def __or__(self, other: OffsetSet) -> OffsetSet:
        if not self.ranges:
            return other
        if not other.ranges:
            return self
        return OffsetSet(tuple(_merged(sorted(self.ranges + other.ranges))))

    def __and__(self, other: OffsetSet) -> OffsetSet:
        return OffsetSet(tuple(_common(self.ranges, other.ranges)))

    def __sub__(self, other: OffsetSet) -> OffsetSet:
        return OffsetSet(tuple(_common(self.ranges, _holes(other.ranges))))

    def __str__(self) -> str:
        return "{" + ",".join(f"[{first},{end})" for first, end in self.ranges) + "}"


EMPTY = OffsetSet()


def _merged(ranges: Iterable[Range]) -> Iterator[Range]:
    """Ranges sorted by their first offset, with those that overlap or touch made one."""
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


def _common(left: tuple[Range, ...], right: tuple[Range, ...]) -> Iterator[Range]:
    """What two sorted lists of disjoint ranges share, in one pass over both."""
    i = j = 0
    while i < len(left) and j < len(right):
        first, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if first < end:
            yield first, end
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1


def _holes(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """Everything from 0 to the last possible offset that the ranges leave out."""
    edges = [0, *(edge for r in ranges for edge in r), MAX_OFFSET + 1]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return tuple((first, end) for first, end in pairs if first < end)
