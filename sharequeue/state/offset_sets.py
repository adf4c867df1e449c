"""Send sets of offsets to Postgres and read them back.

Small sets are sent as Postgres's own text. For a million ranges that text costs the server 1.5 s and 2 GB of memory
to read, and the driver the same time again. So sets of many ranges are sent as two arrays of numbers, and come back
as bytes. Both work on every Postgres: they need no function and no temporary table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sharequeue.database.arrays import array_of_numbers
from sharequeue.domain.offsets import OffsetSet

TEXT_RANGES = 1000
"""Up to this number of ranges a set is sent as text, which keeps the statement short."""
_TEXT_BYTES = 21 * TEXT_RANGES
"""Bytes of that many ranges in Postgres: two offsets, a position and a flag each."""


class Parameters(dict[str, Any]):
    """The parameters of a statement; sets of offsets can be added."""

    def offset_set(self, name: str, offsets: OffsetSet) -> str:
        """Add a set under a name; return the SQL expression for it, an int8multirange."""
        if offsets.range_count <= TEXT_RANGES:
            self[name] = str(offsets)
            return f"cast(:{name} as int8multirange)"
        for column, end in enumerate(("firsts", "ends")):
            self[f"{name}_{end}"] = array_of_numbers(offsets.bounds[:, column].tolist())
        return (
            "(select range_agg(int8range(first, past)) from"  # noqa: S608  (names only)
            f" (select unnest(cast(:{name}_firsts as bigint[])) as first,"
            f" unnest(cast(:{name}_ends as bigint[])) as past) as r)"
        )

    def offset_sets(self, name: str, sets: Sequence[OffsetSet]) -> str:
        """Add sets under a name; return the SQL expression for the array of them, an int8multirange[]."""
        if all(each.range_count <= TEXT_RANGES for each in sets):
            self[name] = [str(each) for each in sets]
            return f"cast(:{name} as int8multirange[])"
        return f"array[{', '.join(self.offset_set(f'{name}_{at}', each) for at, each in enumerate(sets))}]"


def offsets_out(column: str) -> str:
    """Return SQL that selects a column of sets as `offsets` or, for a set of many ranges, as `bounds`."""
    return (
        f"case when pg_column_size({column}) <= {_TEXT_BYTES} then cast({column} as text) end as offsets,"  # noqa: S608
        f" case when pg_column_size({column}) > {_TEXT_BYTES} then"
        " (select string_agg(int8send(lower(r)) || int8send(upper(r)), '') from"
        f" (select unnest({column}) as r) as ranges) end as bounds"
    )


def offsets_in(row: Mapping[Any, Any]) -> OffsetSet:
    """Return the set of a row that was selected with `offsets_out`, or that has only the text."""
    if (bounds := row.get("bounds")) is None:
        return OffsetSet.parse(row["offsets"])
    return OffsetSet.from_bounds(np.frombuffer(bounds, ">i8").astype(np.int64).reshape(-1, 2))
