"""What a task sends, and what the marker of a source partition says about a transfer, without a broker."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.json import read_json
from pyspark import cloudpickle

from sharequeue.deadletters.outbox import NOW, Marker
from sharequeue.spark.sinks.kafka.records import SOURCE_HEADERS
from sharequeue.spark.sinks.kafka.sending import (
    _ALL,
    LOST,
    OVERTAKEN,
    RECREATED,
    Names,
    TopicSender,
    TransferToSend,
    _by_source,
    _report,
    _Results,
    problem_of,
)


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        (None, LOST),
        (Marker(0, "0", "a", "1"), None),
        (Marker(6, "6", "a", "1", 9), None),
        (Marker(7, "7", "a", "1", 3), None),
        (Marker(8, "8", "a", "1", 3), OVERTAKEN),
        (Marker(6, "6", "a", "0", 9), RECREATED),
        (Marker(7, "7", "a", "0", 3), RECREATED),
        (Marker(6, "6", "b", "2", 9), None),
        (Marker(7, "7", "b", "2", 3), None),
        (Marker(8, "8", "b", "2", 3), OVERTAKEN),
        (Marker(0, ""), None),
        (Marker(9, ""), OVERTAKEN),
    ],
)
def test_a_marker_allows_a_transfer_or_an_operator_decides(
    marker: Marker | None, expected: str | None
) -> None:
    """Transfer 7 goes to topic a with id 1. A marker of another name is of the topic that the sink had before, so
    that it shows what was sent; one of this name and another id is of a topic that was deleted. An offset without
    metadata is a decision."""
    assert problem_of(marker, "a", "1", 7) == expected


def sent(**parts: Any) -> Any:
    """Return the record that is sent for a row with these parts."""
    row = {"topic": "source", "partition": 0, "offset": 4, "lease_id": 2, "key": None, "value": None}
    row |= {"headers": None, "to_partition": -1, "timestamp": 0, **parts}
    to = TransferToSend({}, Names("g", "s", "o"), "target", "id", {}, 7, SOURCE_HEADERS)
    results = _Results(to, "source", 0, iter([pa.RecordBatch.from_pylist([row])]))
    (record,) = results.records(results._left[0], _ALL)
    return record


def test_a_record_is_as_large_as_its_parts() -> None:
    """Its headers count, with names and values: by size transactions are divided, and what is unsent is limited."""
    small = sent()[6]
    assert sent(key=b"k" * 100, value=b"v" * 1_000)[6] == small + 1_100
    large = [{"key": "n" * 50, "value": b"h" * 50_000}, {"key": "none", "value": None}]
    assert sent(headers=large)[6] == small + 50_054 + 2 * 32


def test_a_record_without_a_timestamp_gets_the_time_of_sending() -> None:
    """Its row has none; all others are kept."""
    assert [sent(timestamp=at)[7] for at in (None, 1, 1_700_000_000_000)] == [NOW, 1, 1_700_000_000_000]


ROWS = b"""
{"topic": "a", "partition": 0, "offset": 7}
{"topic": "a", "partition": 0, "offset": 8}
{"topic": "a", "partition": 1, "offset": 0}
{"topic": "b", "partition": 1, "offset": 3}
"""


def test_batches_are_divided_where_the_source_partition_changes() -> None:
    """A batch may be empty, and a source partition may be in several."""
    (batch,) = read_json(BytesIO(ROWS)).to_batches()
    found = [(place, rows["offset"].to_pylist()) for place, rows in _by_source([batch, batch[3:], batch[:0]])]
    assert found == [(("a", 0), [7, 8]), (("a", 1), [0]), (("b", 1), [3]), (("b", 1), [3])]


def test_a_report_has_its_columns_also_where_all_of_them_are_null() -> None:
    """Any text is kept."""
    missing = dict.fromkeys(("problem", "code", "reason"))
    given = {"topic": "a", "partition": 3, "records": 2**40}
    assert _report(**given, **missing).to_pylist() == [given | missing]
    given |= {"problem": "refused", "code": -5, "reason": 'a\n"b" \u00e4\u2028'}
    assert _report(**given).to_pylist() == [given]


IN_A_WORKER = """
import pickle, sys
from io import BytesIO
from pyarrow.json import read_json

sender, rows = pickle.load(sys.stdin.buffer)
module = sender.__call__.__func__.__globals__
(batch,) = read_json(BytesIO(rows)).to_batches()
assert len([*module["_by_source"]([batch])]) == 3
module["_report"](topic="a", partition=0, records=0, problem=None, code=None, reason=None)
print([each for each in ("pandas", "sharequeue") if each in sys.modules])
"""


def test_a_task_imports_neither_pandas_nor_this_package() -> None:
    """A new worker would take longer to import pandas than to send some thousand records."""
    sender = TopicSender(TransferToSend({}, Names("g", "s", "o"), "target", "id", {}, 7, None))
    given = cloudpickle.dumps((sender, ROWS))  # type: ignore[no-untyped-call]
    run = subprocess.run(
        [sys.executable, "-I", "-c", IN_A_WORKER], input=given, capture_output=True, check=True
    )
    assert run.stdout == b"[]\n"
