"""`by_row` in a group that is ordered by key: a key stops at its first record that is not accepted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from sharequeue.spark.handler import KEPT_COLUMNS, KEY_HASH
from sharequeue.spark.row_handlers import Reject, _Worker

KEPT = (*KEPT_COLUMNS, KEY_HASH)


def handled(batches: Iterable[list[tuple[str | None, str]]]) -> tuple[list[tuple[int, str]], list[int]]:
    """Handle records, given by key and value, with offsets from 0 on; return the outcomes by offset, and the offsets
    of the calls."""
    called: list[int] = []

    def function(record: dict[str, Any]) -> Mapping[str, Any] | None:
        called.append(record["offset"])
        if record["value"] == "reject":
            raise Reject("no")
        if record["value"] == "release":
            raise ValueError("not now")
        return None if record["value"] == "leave out" else {"n": 1.5 if record["value"] == "misfit" else 1}

    worker = _Worker(function, pa.schema([("n", pa.int32())]), "release", KEPT)
    found: list[tuple[int, str]] = []
    given, offset = [], 0
    for batch in batches:
        rows = [
            {"topic": "t", "partition": 0, "offset": offset + n, "lease_id": 7, KEY_HASH: key, "value": value}
            for n, (key, value) in enumerate(batch)
        ]
        offset += len(batch)
        given.append(pa.RecordBatch.from_pylist(rows))
    for result in worker(given):
        found += zip(result["offset"].to_pylist(), result["outcome"].to_pylist(), strict=True)
        held = result.filter(pa.compute.equal(result["outcome"], "hold"))
        assert held["error"].null_count == held["n"].null_count == held.num_rows
    return found, called


def test_a_key_stops_at_its_first_failure() -> None:
    """The function is not called for its later records, in this batch and in the next ones; others go on, and those
    without a key always do."""
    found, called = handled(
        [
            [("a", "1"), ("a", "release"), ("b", "1"), ("a", "1"), (None, "release"), (None, "1")],
            [("b", "reject"), ("a", "reject"), ("b", "1"), ("c", "leave out"), ("c", "1")],
        ]
    )
    first = [(0, "accept"), (1, "release"), (2, "accept"), (3, "hold"), (4, "release"), (5, "accept")]
    assert found == [*first, (6, "reject"), (7, "hold"), (8, "hold"), (10, "accept")]
    assert called == [0, 1, 2, 4, 5, 6, 9, 10]


def test_a_result_that_does_not_fit_stops_its_key() -> None:
    """It is found when the batch ends: what the function returned for later records of the key does not count."""
    found, called = handled([[("a", "misfit"), ("a", "1"), ("b", "1")], [("a", "1")]])
    assert found == [(0, "release"), (1, "hold"), (2, "accept"), (3, "hold")]
    assert called == [0, 1, 2]
