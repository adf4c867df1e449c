"""Cut each key of a lease behind its first record that was not accepted.

What the handler returned for later records of the key does not count: they were processed out of turn, and wait with
the outcome `hold`. A record of such a key without a row waits, too. The cut is made after the write and before
anything counts. It costs nothing in a round that accepts all of its records; otherwise a few columns of the files are
read again, and the files of a lease are written again only if a record in them has to wait. A window over the
handler's result would shuffle and sort every row of every round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import AcknowledgeType, Delivery, Lease
from sharequeue.spark.handler import ACCEPT, HOLD, KEY_HASH, NO_KEY_HASH, REJECT, RELEASE
from sharequeue.spark.ordering.frames import BY_LEASE, FIRST, KEY, KeyOrder, hashed, with_firsts
from sharequeue.spark.outcomes.outcomes import UNSEEN, SeenOutcomes, read_back, without_outcome
from sharequeue.spark.output.files import literal
from sharequeue.spark.output.lease_files import WrittenFiles
from sharequeue.spark.reading.source import TopicSource

ROW = f"lease_id long, offset long, {KEY_HASH} string, outcome string"
"""The columns of the rows from which a cut is made, in DDL."""
_ROW = ("lease_id", "offset", KEY_HASH, "outcome")
_NONE = pa.schema(
    [("lease_id", pa.int64()), ("offset", pa.int64()), (KEY_HASH, pa.string()), ("outcome", pa.string())]
).empty_table()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows (`ROW`) with the outcomes of the records of some leases, in any order; None without any."""

    accepted: DataFrame | None = None
    others: DataFrame | None = None

    @classmethod
    def of(cls, rows: DataFrame) -> Self:
        """Divide rows by their outcome."""
        rows = rows.select(*_ROW)
        return cls(rows.where(f"outcome = '{ACCEPT}'"), rows.where(f"outcome <> '{ACCEPT}'"))

    def __or__(self, more: Rows) -> Rows:
        return Rows(_both(self.accepted, more.accepted), _both(self.others, more.others))


def _both(one: DataFrame | None, other: DataFrame | None) -> DataFrame | None:
    if one is None or other is None:
        return other if one is None else one
    return one.unionByName(other)


@dataclass(frozen=True, slots=True)
class Cut:
    """The records of some leases that were not accepted, after the cut."""

    firsts: pa.Table
    """The first record of each key that is open: in the lease, or before it."""
    changed: frozenset[int]
    """The leases with a record that has to wait and has another outcome yet."""
    held: Mapping[int, OffsetSet] = field(default_factory=dict)
    """The records that wait, by lease id."""
    keys: Mapping[int, Mapping[UUID | None, OffsetSet]] = field(default_factory=dict)
    """All records that were not accepted, by lease id and the hash of their key."""

    def applied(self, seen: Mapping[int, SeenOutcomes]) -> dict[int, SeenOutcomes]:
        """Return the outcomes of these leases, with the records that wait as held ones."""
        return {at: self._applied(at, seen.get(at, UNSEEN)) for at in seen.keys() | self.keys.keys()}

    def made_in(self, rows: DataFrame) -> DataFrame:
        """Return rows of a handler's result, with the outcome `hold` for those that wait."""
        waits = f"coalesce(offset > {FIRST}, false)"
        changed = {"outcome": f"if({waits}, '{HOLD}', outcome)"}
        changed |= {
            name: f"if({waits}, null, {name})" for name in ("error", "not_before") if name in rows.columns
        }
        made = with_firsts(rows, self.firsts).withColumns(
            {name: fn.expr(sql) for name, sql in changed.items()}
        )
        return made.drop(FIRST)

    def _applied(self, lease_id: int, seen: SeenOutcomes) -> SeenOutcomes:
        held = self.held.get(lease_id, EMPTY)
        return replace(
            seen,
            outcomes=_without(seen.outcomes, held),
            delays=_without(seen.delays, held),
            unknown=_without(seen.unknown, held),
            offsets=seen.offsets | held,
            exceptions=(seen.offsets - seen.outcomes.get(AcknowledgeType.ACCEPT, EMPTY)).count,
            held=held,
            keys=self.keys.get(lease_id, {}),
        )


def find_cut(order: KeyOrder, leases: Sequence[Lease], rows: Rows) -> Cut:
    """Return the cut of these leases, by the rows of their records."""
    accepted = rows.accepted
    open_rows = _NONE if rows.others is None else rows.others.select(*_ROW).toArrow().cast(_NONE.schema)
    # Rows without a hash are refused when the outcomes are read back.
    open_rows = open_rows.filter(pc.not_equal(open_rows["outcome"], NO_KEY_HASH))
    firsts = _firsts(order.firsts(leases), open_rows)
    waiting = _behind(open_rows, firsts)
    if firsts.num_rows and accepted is not None:
        found = with_firsts(accepted, firsts).where(f"offset > {FIRST}").select(*_ROW).toArrow()
        open_rows, waiting = (
            pa.concat_tables([some, found.cast(_NONE.schema)]) for some in (open_rows, waiting)
        )
    changed = waiting.filter(pc.not_equal(waiting["outcome"], HOLD))["lease_id"]
    held = {at: OffsetSet.from_offsets(some) for (at,), some in _grouped(waiting, "lease_id")}
    keys: dict[int, dict[UUID | None, OffsetSet]] = {}
    for (at, key), some in _grouped(open_rows, "lease_id", KEY_HASH):
        keys.setdefault(at, {})[UUID(key) if key else None] = OffsetSet.from_offsets(some)
    return Cut(firsts, frozenset(changed.to_pylist()), held, keys)


def rows_of(
    source: TopicSource,
    leases: Sequence[Lease],
    written: WrittenFiles,
    without_row: str | None,
    by_offset: bool = False,
) -> Rows:
    """Return the outcomes in the files of these leases; `without_row` is that of a record that has none there. With
    `by_offset` no such record is scanned.
    """
    spark = source.spark

    def rows_in(folders: Mapping[int, str]) -> DataFrame | None:
        found = [literal(folders[lease.lease_id]) for lease in leases if lease.lease_id in folders]
        return spark.read.schema(ROW).parquet(*found) if found else None

    rows = Rows(rows_in(written.accepted), rows_in(written.exceptions))
    if without_row is None:
        return rows
    seen = read_back(spark, written.folders, delays=False)
    return rows | rows_without(source, leases, seen, without_row, by_offset=by_offset)


class SourceOfRecords(Protocol):
    """Reads the records of leases from their topics (`TopicSource`, or the lists of a test)."""

    def records(self, leases: Sequence[Lease], *, by_offset: bool = False) -> DataFrame:
        """Return the records of these leases. With `by_offset` none is scanned."""
        ...


def rows_without(
    source: SourceOfRecords,
    leases: Sequence[Lease],
    seen: Mapping[int, SeenOutcomes],
    without_row: str,
    *,
    by_offset: bool = False,
) -> Rows:
    """Return rows for the records of these leases that have no outcome: they are read from the topic again."""
    missing = [
        replace(lease, deliveries=(Delivery(1, absent),))
        for lease in leases
        if (absent := without_outcome(lease, seen.get(lease.lease_id)))
    ]
    if not missing:
        return Rows()
    records = hashed(source.records(missing, by_offset=by_offset)).selectExpr(
        "lease_id", "offset", KEY_HASH, f"'{without_row}' as outcome"
    )
    return Rows(records) if without_row == ACCEPT else Rows(others=records)


def _firsts(before: pa.Table, open_rows: pa.Table) -> pa.Table:
    """Return the lowest of the offsets that block a key `before` the lease, and of the failed ones in it."""
    failed = pc.is_in(open_rows["outcome"], pa.array([RELEASE, REJECT]))
    some = open_rows.filter(pc.and_(failed, pc.greater(open_rows[KEY_HASH], ""))).select(
        ["lease_id", KEY_HASH, "offset"]
    )
    every = pa.concat_tables([before, some.rename_columns(before.column_names)])
    lowest = every.group_by([BY_LEASE, KEY]).aggregate([(FIRST, "min")])
    return lowest.select([BY_LEASE, KEY, f"{FIRST}_min"]).rename_columns([BY_LEASE, KEY, FIRST])


def _behind(rows: pa.Table, firsts: pa.Table) -> pa.Table:
    joined = rows.join(firsts, ["lease_id", KEY_HASH], [BY_LEASE, KEY], "inner")
    return joined.filter(pc.greater(joined["offset"], joined[FIRST])).select(_ROW)


def _grouped(rows: pa.Table, *by: str) -> Iterator[tuple[tuple[Any, ...], list[int]]]:
    found = rows.group_by(list(by)).aggregate([("offset", "list")])
    yield from zip(
        zip(*(found[name].to_pylist() for name in by), strict=True),
        found["offset_list"].to_pylist(),
        strict=True,
    )


def _without(sets: Mapping[_T, OffsetSet], held: OffsetSet) -> dict[_T, OffsetSet]:
    return {kind: left for kind, some in sets.items() if (left := some - held)}
