"""Find the rows of the journal about one offset, without reading the rest of it.

SPSO and SPEO only rise between two resets of the offsets. So the time during which an offset was in flight is found
by bisection over the rows of its share-partition, each of which is one lookup in the index of the journal. Only the
rows of that time are read, in pieces, until the record is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

FIRST_PIECE, TIMES, LARGEST_PIECE = 50, 4, 50_000
"""Rows of the journal that are looked through at once: few at first, and so many times more each time, to a limit."""
MOST_ROWS = 1_000_000
"""How many rows of its share-partition are looked through for a record that is in flight for long."""
MOST_RESETS = 20
"""How many resets of the offsets are followed back."""
_END = 2**63 - 1
_BEFORE = 3
"""An operation may write its rows about records before those about its share-partition."""

_OF_SHARE_PARTITION = (
    "select journal_id, at, state_epoch, spso, speo, lost_records, kind from sharequeue.journal"
    " where share_partition_id = :id and kind in ('initialized', 'snapshot', 'share_partition')"
)
_NEXT = sa.text(f"{_OF_SHARE_PARTITION} and journal_id >= :at order by journal_id limit 1")
_PREVIOUS = sa.text(f"{_OF_SHARE_PARTITION} and journal_id < :at order by journal_id desc limit :back")
_START = sa.text(
    "select journal_id from sharequeue.journal_snapshots where share_partition_id = :id order by journal_id limit 1"
)
_PIECE_END = sa.text(
    "select journal_id from sharequeue.journal where share_partition_id = :id and journal_id > :after"
    " and journal_id < :before order by journal_id offset :rows limit 1"
)
# The last rows of a batch name it by its first offset alone. The scans of a piece are by index, and a piece is small.
_PIECE = sa.text(
    "with images as materialized ("
    "  select journal_id, at, kind, first_offset, part, state, delivery_count, lease_id, not_before, cause,"
    "    offsets is null or offsets @> cast(:offset as bigint) as has"
    "  from sharequeue.journal where share_partition_id = :id and journal_id > :after and journal_id <= :until"
    "  and (kind = 'batch' and first_offset <= :offset and last_offset >= :offset"
    "    or kind in ('offsets_added', 'offsets_taken') and offsets @> cast(:offset as bigint))"
    ") select * from images union all"
    " select journal_id, at, kind, first_offset, part, null, null, null, null, null, false from sharequeue.journal"
    " where share_partition_id = :id and journal_id > :after and journal_id <= :until and kind = 'batch_gone'"
    " and (first_offset = any(cast(:known as bigint[])) or first_offset in (select first_offset from images))"
    " order by journal_id"
)
_LEASES = sa.text(
    "select journal_id, lease_id, member_id, token, acquired_at, expires_at from sharequeue.journal"
    " where share_partition_id = :id and journal_id between :after and :until and kind = 'lease'"
    " and lease_id = any(cast(:leases as bigint[])) order by journal_id"
)


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """A row of the journal with the columns of the share-partition, as they were after it."""

    journal_id: int
    at: datetime
    state_epoch: int
    spso: int
    speo: int
    lost_records: int
    kind: str


@dataclass(frozen=True, slots=True)
class JournalSpan:
    """The rows between two resets of the offsets."""

    first: JournalPosition
    last: JournalPosition
    reset: JournalPosition | None
    """The first row after it; None for the present."""

    @property
    def end(self) -> int:
        """The journal id that ends it, exclusive."""
        return _END if self.reset is None else self.reset.journal_id


class JournalSearch:
    """Lookups in the journal of one share-partition, in one transaction."""

    def __init__(self, connection: sa.Connection, share_partition_id: int) -> None:
        self._connection, self._id = connection, share_partition_id

    def start(self) -> JournalPosition | None:
        """Return the row from which on the journal is complete; None if it has none."""
        found = self._rows(_START)
        return self.next(found[0]["journal_id"]) if found else None

    def next(self, journal_id: int) -> JournalPosition | None:
        """Return the first row of the share-partition at or after a journal id."""
        found = self._rows(_NEXT, at=journal_id)
        return JournalPosition(**found[0]) if found else None

    def previous(self, journal_id: int, back: int = 1) -> JournalPosition | None:
        """Return the row before a journal id, or the one `back` rows before; the first if there are fewer."""
        found = self._rows(_PREVIOUS, at=journal_id, back=back)
        return JournalPosition(**found[-1]) if found else None

    def first(self, span: JournalSpan, takes: Callable[[JournalPosition], bool]) -> JournalPosition | None:
        """Return the first row of a span that `takes` accepts, if it accepts all later ones; None without any."""
        if not takes(span.last):
            return None
        found, low, high = span.last, span.first.journal_id, span.last.journal_id
        while low < high:
            middle = (low + high) // 2
            row = self.next(middle) or span.last
            if takes(row):
                found, high = row, middle
            else:
                low = row.journal_id + 1
        return found

    def spans(self, start: JournalPosition) -> tuple[list[JournalSpan], bool]:
        """Return the spans since `start`, the oldest first, and whether these are all: older ones are left out after
        `MOST_RESETS`.
        """
        last = self.previous(_END) or start
        spans: list[JournalSpan] = []
        reset: JournalPosition | None = None
        end = last
        while len(spans) < MOST_RESETS:
            first = self._first_of_epoch(start, end)
            before = self.previous(first.journal_id)
            if before is None or first.journal_id <= start.journal_id:
                return [JournalSpan(start, last, reset), *spans], True
            if (before.spso, before.speo) != (first.spso, first.speo):
                spans.insert(0, JournalSpan(first, last, reset))
                last, reset = before, first
            end = before
        return spans, False

    def _first_of_epoch(self, start: JournalPosition, end: JournalPosition) -> JournalPosition:
        """Return the first row since `start` with the state epoch of `end`."""
        return (
            self.first(JournalSpan(start, end, None), lambda row: row.state_epoch >= end.state_epoch) or end
        )

    def birth(self, span: JournalSpan, offset: int) -> int | None:
        """Return the journal id after which a span has rows about an offset; None if it was not in flight."""
        born = self.first(span, lambda row: row.speo > offset)
        if born is None:
            return None
        before = self.previous(born.journal_id, _BEFORE)
        return (
            span.first.journal_id - 1 if before is None else max(before.journal_id, span.first.journal_id - 1)
        )

    def pieces(
        self, span: JournalSpan, after: int, offset: int, known: Collection[int]
    ) -> Iterator[tuple[list[sa.RowMapping], int]]:
        """Yield the rows about an offset, piece by piece, each with the journal id that it reaches.

        `known` has the first offsets of the batches that had the record in earlier pieces. Ends at the end of the
        span, or after `MOST_ROWS`.
        """
        size, left = FIRST_PIECE, MOST_ROWS
        while left > 0:
            size = min(size, left)
            end = self._rows(_PIECE_END, after=after, before=span.end, rows=size - 1)
            until = end[0]["journal_id"] if end else span.end - 1
            yield self._rows(_PIECE, after=after, until=until, offset=offset, known=list(known)), until
            if not end:
                return
            after, left, size = until, left - size, min(TIMES * size, LARGEST_PIECE)

    def leases(self, after: int, until: int, lease_ids: Collection[int]) -> list[sa.RowMapping]:
        """Return the images of leases between two journal ids, in order."""
        return self._rows(_LEASES, after=after, until=until, leases=list(lease_ids)) if lease_ids else []

    def _rows(self, query: sa.TextClause, **values: Any) -> list[sa.RowMapping]:
        return list(self._connection.execute(query, {"id": self._id, **values}).mappings())
