"""What sends results is given to executors by value: they have PyArrow and confluent-kafka, and not this package."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from itertools import product
from pathlib import Path

from pyspark import cloudpickle

from sharequeue.spark.sinks.kafka.records import SOURCE_HEADERS
from sharequeue.spark.sinks.kafka.sending import Names, TopicSender, TransferToSend
from sharequeue.spark.sinks.kafka.serializing import RecordSchema, RowSerializer

LOADED = """
import pickle, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "sharequeue":
            raise ImportError(name)

sys.meta_path.insert(0, Missing())
sender = pickle.load(open(sys.argv[1], "rb"))
"""
EXECUTOR = LOADED + textwrap.dedent(
    """
    here = type(sender).__call__.__globals__
    import pyarrow as pa
    row = {"topic": "source", "partition": 3, "lease_id": 2, "key": b"k", "value": b"v", "headers": None}
    row = {**row, "to_partition": -1, "timestamp": 0}
    rows = pa.RecordBatch.from_pylist([{**row, "offset": offset} for offset in (4, 5)])
    ((place, mine),) = here["_by_source"]([rows])
    results = here["_Results"](sender.sending, *place, iter([mine]))
    batch = results._left[0]
    everything = batch.offsets
    (record,) = results.records(batch, everything - type(everything).of((0, 5)))
    assert record[:5] == (5, "target", -1, b"k", b"v"), record
    assert [value for _, value in record[5]] == [b"source", b"3", b"5", b"2"], record
    at = results.marker(batch).committed_at("source", 3)
    assert here["Marker"].parse(at) == results.marker(batch)
    assert here["Outbox"]({}, results, None) is not None
    """
)


SERIALIZED = LOADED + textwrap.dedent(
    """
    import pyarrow as pa
    columns = [pa.array([1, None, 2**31]), pa.array(['{"value": "a"}', None, '{"value": 1}'])]
    [made] = sender([pa.RecordBatch.from_arrays(columns, ["avro", "json"])])
    for name, expected in (("avro", bytes([0, 0, 0, 0, 7, 2])), ("json", bytes([0, 0, 0, 0, 8]) + b'"a"')):
        first, nothing, fault = made[name].to_pylist()
        assert first == {"data": expected, "fault": None}, first
        assert nothing == {"data": None, "fault": None}, nothing
        assert fault["data"] is None and fault["fault"].startswith("InvalidRecord: "), fault
    """
)


def called(script: str, function: object, folder: Path) -> None:
    """Run a script in a process without the package, with a function as an executor gets it."""
    pickled = folder / "function"
    pickled.write_bytes(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]
    ended = subprocess.run(
        [sys.executable, "-c", script, str(pickled)], capture_output=True, text=True, cwd=folder, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_an_executor_without_this_package_can_serialize(tmp_path: Path) -> None:
    """With a schema of each type; what does not fit is a fault."""
    avro = RecordSchema("of avro", 7, "AVRO", '{"type": "int"}')
    in_json = RecordSchema("of json", 8, "JSON", '{"type": "string"}')
    serializer = RowSerializer("target", {"avro": ("value", avro), "json": ("key", in_json)})
    called(SERIALIZED, serializer, tmp_path)


def test_an_executor_without_this_package_can_send(tmp_path: Path) -> None:
    """It makes the records and the marker; nothing is imported from the package."""
    sending = TransferToSend({}, Names("g", "s", "o"), "target", "id", {}, 7, SOURCE_HEADERS)
    called(EXECUTOR, TopicSender(sending), tmp_path)


def test_a_name_that_is_not_ascii_is_encoded() -> None:
    """The client commits no offset for a group of such a name."""
    assert Names("g", "s", "o").markers == "sharequeue.results.g.s.o"
    assert Names("größe", "s", "o").markers == "sharequeue.results-encoded.gr%C3%B6%C3%9Fe.s.o"


def test_no_two_sinks_have_the_same_names() -> None:
    """Wherever the dots are, and whatever is encoded; all begin with what an operator grants rights for."""
    texts = ["a", "b", "a.b", "b.c", "a.b.c", "a%2Eb", "a%252Eb", "ä", "ä.b", "%C3%A4", "a:b"]
    every = [Names(group, sink, "o") for group, sink in product(texts, texts)]
    assert len({each.markers for each in every}) == len(every)
    assert all(each.markers.startswith(each.prefix) for each in every)
    places = [("b", 0), ("b.c", 0), ("c", 0), ("c-0", 1), ("c", 1), ("c.o", 0)]
    ids = [each.transactional_id(*place) for each, place in product(every, places)]
    assert len({*ids}) == len(ids)
