"""The output read without Spark: the files that count, each once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark.sql import SparkSession

from sharequeue import output_dataset
from sharequeue.domain.values import AcknowledgeType, Lease, LeaseOutput, SharePartition
from sharequeue.outputs.dataset import open_output
from sharequeue.outputs.errors import ColumnChanged, NoSuchSink, NotFiles, OutputDamaged
from sharequeue.outputs.manifest import ELSEWHERE, PENDING
from sharequeue.spark import read_output
from sharequeue.state import State
from tests import single

ACCEPT = AcknowledgeType.ACCEPT
SINK = "orders"

Written = Callable[..., Path]
"""Writes the rows of a lease of ten records, and acknowledges it unless `counts` is false; returns its folder."""


@pytest.fixture
def taken(state: State, at: SharePartition) -> Callable[[], Lease]:
    """Give a function that leases the next ten records of a thousand."""
    single.observe(state, at, "id", 0, 1000, 1000)

    def take() -> Lease:
        lease = single.acquire(state, at, "member", None, 10)
        assert lease is not None
        return lease

    return take


@pytest.fixture
def state(private_database: Any, at: SharePartition) -> State:
    """Give the state of a group with one share-partition."""
    return State(private_database)


@pytest.fixture
def written(state: State, taken: Callable[[], Lease], tmp_path: Path) -> Written:
    """Give a function that writes files as a round does."""

    def write(columns: Mapping[str, Any] | None = None, *, counts: bool = True, sink: str = SINK) -> Path:
        lease = taken()
        folder = tmp_path / sink / f"leases=0-{lease.lease_id}-0" / f"sharequeue_lease={lease.lease_id}"
        folder.mkdir(parents=True)
        offsets = list(range(lease.offsets.first, lease.offsets.end))
        given = {"offset": offsets, "lease_id": [lease.lease_id] * len(offsets), **(columns or {})}
        pq.write_table(pa.table(given), folder / "part-0.parquet")
        (folder / "_SUCCESS").touch()
        (folder / ".part-0.parquet.crc").touch()
        if counts:
            output = LeaseOutput(sink, str(folder), lease.offsets.count)
            single.acknowledge(state, lease, {ACCEPT: lease.offsets}, outputs=[output])
        return folder

    return write


def offsets(state: State, at: SharePartition) -> list[int]:
    return sorted(output_dataset(state, at.group_id, SINK).to_table()["offset"].to_pylist())


def test_only_files_of_acknowledged_leases_are_read(
    state: State, at: SharePartition, written: Written
) -> None:
    """Files of a lease that was not acknowledged do not count, and a folder of a compaction counts in their place."""
    written()
    not_acknowledged = written(counts=False)
    written()
    assert offsets(state, at) == [*range(10), *range(20, 30)]
    assert not_acknowledged.exists()


def test_columns_are_those_of_all_files(state: State, at: SharePartition, written: Written) -> None:
    """A column of some files is null in the others, a wider type holds both; columns and rows can be chosen."""
    written({"n": pa.array(range(10), pa.int32()), "parts": [[{"a": 1}]] * 10})
    written({"n": pa.array([2**40] * 10, pa.int64()), "note": ["x"] * 10, "parts": [[{"a": 1, "b": 2}]] * 10})
    found = output_dataset(state, at.group_id, SINK)
    assert found.schema.field("n").type == pa.int64()
    assert found.count_rows() == 20
    some = found.to_table(columns=["n", "note"], filter=pc.field("offset") >= 9)
    assert some.slice(0, 2).to_pylist() == [{"n": 9, "note": None}, {"n": 2**40, "note": "x"}]
    parts = [part for row in found.to_table()["parts"].to_pylist() for part in row]
    assert sorted(part["b"] or 0 for part in parts) == [0] * 10 + [2] * 10
    written({"n": ["text"] * 10})
    with pytest.raises(ColumnChanged, match="column n is int64 in some folders and string in others"):
        output_dataset(state, at.group_id, SINK)
    chosen = pa.schema([("offset", pa.int64())])
    assert output_dataset(state, at.group_id, SINK, chosen).to_table().num_rows == 30


def test_rows_of_some_leases_can_be_read(state: State, at: SharePartition, written: Written) -> None:
    """Only the folders of these leases are opened, and of a folder with several leases, only their rows are read."""
    first, _, others = written(), written(), written({"lease_id": [-1] * 10})

    def rows(*folders: Path) -> list[int]:
        leases = [int(folder.name.partition("=")[2]) for folder in folders]
        found = output_dataset(state, at.group_id, SINK, leases=leases).to_table()
        return sorted(found["offset"].to_pylist()) if found.num_rows else []

    assert rows(first) == rows(first, others) == [*range(10)]
    assert rows() == rows(others) == []
    with pytest.raises(TypeError, match="a lease of `leases` is OutputRow"):
        output_dataset(
            state,
            at.group_id,
            SINK,
            leases=state.outputs.counted(at.group_id, SINK),  # type: ignore[arg-type]
        )


def test_leases_of_a_sum_are_read_if_no_other_is_in_their_folder(
    state: State, at: SharePartition, taken: Callable[[], Lease], tmp_path: Path
) -> None:
    """The rows of a summary do not have their lease: then a folder with those of several leases is an error."""
    alone, merged = tmp_path / "a", tmp_path / "b"
    ids = []
    for folder in (alone, merged, merged):
        lease = taken()
        ids.append(lease.lease_id)
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.table({"n": [1]}), folder / "part-0.parquet")
        output = LeaseOutput(SINK, str(folder), lease.offsets.count)
        single.acknowledge(state, lease, {ACCEPT: lease.offsets}, outputs=[output])
    assert output_dataset(state, at.group_id, SINK, leases=ids[:1]).count_rows() == 1
    assert output_dataset(state, at.group_id, SINK, leases=ids).count_rows() == 2
    with pytest.raises(
        ValueError, match=rf"also has rows of lease {ids[1]}, and there is no column lease_id"
    ):
        output_dataset(state, at.group_id, SINK, leases=ids[2:])


def test_damage_names_the_lease(state: State, at: SharePartition, written: Written) -> None:
    """A file that is gone, or is no Parquet file any more, is an error with the lease and what to do."""
    folder = written()
    lease_id = folder.name.partition("=")[2]
    file = folder / "part-0.parquet"
    whole = file.read_bytes()
    for spoil in (
        lambda: file.write_bytes(whole[:40]),
        file.unlink,
        lambda: folder.rename(folder.parent / "x"),
    ):
        spoil()
        with pytest.raises(OutputDamaged, match=rf"lease {lease_id} in .*Restore the folder from a backup"):
            output_dataset(state, at.group_id, SINK)


def test_rows_are_compared_with_the_manifest(state: State, at: SharePartition, written: Written) -> None:
    """Files with fewer rows than were acknowledged, and with more, except where a record may have several rows."""
    folder = written({"outcome": ["accept"] * 10})
    shutil.copy(folder / "part-0.parquet", folder / "part-1.parquet")
    with pytest.raises(OutputDamaged, match=r"the files have 20 rows, and 10 were acknowledged"):
        output_dataset(state, at.group_id, SINK)
    (folder / "part-1.parquet").unlink()
    pq.write_table(pq.read_table(folder / "part-0.parquet").slice(1), folder / "part-0.parquet")
    with pytest.raises(OutputDamaged, match=r"the files have 9 rows, and 10 were acknowledged"):
        output_dataset(state, at.group_id, SINK)
    exceptions = written({"outcome": ["reject"] * 10}, sink=f"{SINK}-exceptions")
    shutil.copy(exceptions / "part-0.parquet", exceptions / "part-1.parquet")
    assert output_dataset(state, at.group_id, f"{SINK}-exceptions").count_rows() == 20


def test_a_flipped_byte_is_found(state: State, at: SharePartition, written: Written) -> None:
    """Also where the values could be read: the checksums of the pages, which Spark writes, are compared."""
    whole, damaged = written(), written()
    file = damaged / "part-0.parquet"
    pq.write_table(pa.table({"offset": range(10, 20)}), file, write_page_checksum=True, compression="none")
    content = bytearray(file.read_bytes())
    content[content.index((10).to_bytes(8, "little"))] ^= 1
    file.write_bytes(content)
    assert pq.read_table(file)["offset"].to_pylist()[0] == 11
    found = open_output(state, at.group_id, SINK)
    with pytest.raises(OSError, match="CRC checksum"):
        found.rows.to_table()
    with pytest.raises(OutputDamaged, match=rf"lease {damaged.name.partition('=')[2]} in {damaged}"):
        found.table()
    assert whole.exists()


def test_a_sink_without_files_is_named(
    state: State, at: SharePartition, taken: Callable[[], Lease], written: Written
) -> None:
    """A sink that never was is an error with those that are, a table's one with the table; a known one is empty."""
    written()
    with pytest.raises(NoSuchSink, match=r"no output of a sink 'order'\. Did you mean orders"):
        output_dataset(state, at.group_id, "order")
    assert output_dataset(state, at.group_id, "order", known=["order"]).to_table().num_rows == 0
    for sink, location, words in (
        ("table", f"{ELSEWHERE}sales.orders", "it was written to sales.orders"),
        ("topic", f"{PENDING}/out/folder", "the rows of 1 folders wait"),
    ):
        lease = taken()
        single.acknowledge(state, lease, {ACCEPT: lease.offsets}, outputs=[LeaseOutput(sink, location, 10)])
        with pytest.raises(NotFiles, match=words):
            output_dataset(state, at.group_id, sink)


def test_a_file_system_of_the_caller_is_used(
    state: State, at: SharePartition, taken: Callable[[], Lease], tmp_path: Path
) -> None:
    """A store that Arrow's own client does not reach is read by the file system that is given."""
    lease = taken()
    location = f"s3a://bucket/out/{SINK}/leases=0-1-0/sharequeue_lease=1"
    folder = tmp_path / location.removeprefix("s3a://")
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"n": range(10)}), folder / "part-0.parquet")
    output = LeaseOutput(SINK, location, lease.offsets.count)
    single.acknowledge(state, lease, {ACCEPT: lease.offsets}, outputs=[output])
    store = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    assert output_dataset(state, at.group_id, SINK, filesystem=store).count_rows() == 10


def test_files_in_two_stores_are_one_output(
    state: State, at: SharePartition, written: Written, taken: Callable[[], Lease]
) -> None:
    """An output that has moved to another store keeps the files that count in the first one."""
    folder = written()
    lease = taken()
    output = LeaseOutput(SINK, f"file://{folder}", lease.offsets.count)
    single.acknowledge(state, lease, {ACCEPT: lease.offsets}, outputs=[output])
    assert offsets(state, at) == sorted([*range(10)] * 2)


def test_spark_is_not_imported() -> None:
    """A program that reads an output does not load Spark."""
    code = (
        "import sys, sharequeue.outputs.columns, sharequeue.outputs.dataset; print('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_values_are_those_of_spark(
    state: State, at: SharePartition, taken: Callable[[], Lease], tmp_path: Path, spark: SparkSession
) -> None:
    """What Spark wrote, Arrow reads as Spark does: points in time, also old ones, decimals, and nested values."""
    rows = spark.range(1).selectExpr(
        "id as offset",
        "timestamp'1600-01-01 00:00:00Z' as old",
        "timestamp'2026-01-01 12:00:00.123456Z' as at",
        "timestamp_ntz'2026-01-01 12:00:00' as plain",
        "date'2026-01-01' as day",
        "cast(1.25 as decimal(10, 2)) as price",
        "array(named_struct('at', timestamp'2026-01-01 00:00:00Z', 'n', 1)) as parts",
        "map('a', 1.5D) as measures",
        "cast(null as string) as nothing",
        "map() as always_empty",
        "binary('raw') as raw",
    )
    lease = taken()
    location = str(tmp_path / SINK / "leases=0-1-0" / "sharequeue_lease=1")
    rows.write.parquet(location)
    output = LeaseOutput(SINK, location, lease.offsets.count)
    single.acknowledge(state, lease, {ACCEPT: lease.offsets}, outputs=[output])
    (found,) = output_dataset(state, at.group_id, SINK).to_table().to_pylist()
    # Arrow has no such type of its own, so PySpark cannot convert it.
    assert found.pop("always_empty") == []
    by = read_output(spark, state, at.group_id, SINK)
    (by_spark,) = by.drop("always_empty").toArrow().to_pylist()
    assert found == by_spark
    assert found["at"] == datetime(2026, 1, 1, 12, 0, 0, 123456, UTC)
    assert found["old"] == datetime(1600, 1, 1, tzinfo=UTC)
    assert (found["day"], found["price"]) == (date(2026, 1, 1), Decimal("1.25"))
