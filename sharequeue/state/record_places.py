"""Follow one record through the rows of the journal, from one row of a batch to the next.

`record_history` makes deliveries and outcomes of the places.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = range(5)
"""Kafka's delivery states by number (R-ST-1)."""


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where a record is: a row of a batch, and what the row says."""

    key: tuple[int, int]
    state: int
    delivery_count: int
    lease_id: int | None = None
    not_before: datetime | None = None
    cause: str | None = None

    @property
    def values(self) -> tuple[object, ...]:
        """All but the row: two places with the same values are the same to the record."""
        return self.state, self.delivery_count, self.lease_id, self.not_before, self.cause


@dataclass(slots=True)
class RecordStay:
    """A record in one place, from one row of the journal to another."""

    place: RecordPlace
    since: datetime
    ended: tuple[int, datetime] | None = None
    """The row that put it into the `next` place; None while it is in this one, or has left it without another."""
    next: RecordPlace | None = None


@dataclass(slots=True)
class RecordWalk:
    """The places of one record, from rows of the journal in their order."""

    stays: list[RecordStay] = field(default_factory=list)
    images: dict[tuple[int, int], RecordPlace] = field(default_factory=dict)
    current: RecordPlace | None = None
    left_at: tuple[int, datetime] | None = None
    """When it was taken from its last place; None while it is in one. The operation puts it into another one, or
    SPSO has passed it."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing becomes of the record any more."""
        return bool(self.stays) and self.stays[-1].place.state in (ACKNOWLEDGED, ARCHIVED)

    @property
    def known(self) -> set[int]:
        """The first offsets of the batches that have had the record."""
        return {first for first, _ in self.images}

    def take(self, rows: Collection[Mapping[Any, Any]]) -> None:
        """Follow the record through some rows, until it is finished."""
        for row in rows:
            if self.is_finished:
                return
            key, kind = (row["first_offset"], row["part"]), row["kind"]
            if kind == "batch":
                self.images[key] = place = RecordPlace(
                    key, row["state"], row["delivery_count"], row["lease_id"], row["not_before"], row["cause"]
                )
                if row["has"]:
                    self._enter(place, row)
                else:
                    self._leave(key, row)
            elif kind == "offsets_added":
                self._enter(
                    self.images.get(key) or RecordPlace(key, row["state"], row["delivery_count"]), row
                )
            else:
                self._leave(key, row)

    def _enter(self, place: RecordPlace, row: Mapping[Any, Any]) -> None:
        self.current, self.left_at = place, None
        last = self.stays[-1] if self.stays else None
        if last is not None and last.place.values == place.values:
            return
        if last is not None:
            last.ended, last.next = (row["journal_id"], row["at"]), place
        self.stays.append(RecordStay(place, row["at"]))

    def _leave(self, key: tuple[int, int], row: Mapping[Any, Any]) -> None:
        if self.current is not None and self.current.key == key:
            self.current, self.left_at = None, (row["journal_id"], row["at"])
