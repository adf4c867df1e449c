"""Reduce the offsets of many rows to a few sets, without moving the rows.

Spark's tasks make bitmaps where the data are, one bit for each offset, and the driver merges a few kilobytes of them
for each lease. Files on the driver's own machine are read without Spark, one batch at a time, and only the ranges are
kept: even a small Spark job takes longer.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from sharequeue.domain.offsets import MAX_OFFSET, OffsetSet, RangeBounds
from sharequeue.spark.handler import HandlerError
from sharequeue.spark.output.files import Files

_log = logging.getLogger(__name__)

BITMAP_OFFSETS = 32_768
"""Offsets in one of Spark's bitmaps, of 4 KiB."""
MOST_BITMAPS = 16_384
"""The most bitmaps that are collected, 64 MiB; if there are more, the offsets are sorted, which is slower."""
ROWS_AT_ONCE = 65_536
READ_AT_ONCE_BYTES = 65_536
"""The buffer for a column of a file. A file is not read ahead, so that memory does not grow with the number of rows.
"""

OffsetGroup = tuple[tuple[Any, ...], OffsetSet, int]
"""Values of some columns, the offsets of the rows that have these values, and the number of these rows."""


def reduce_to_offset_sets(records: DataFrame, *by: str) -> list[OffsetGroup]:
    """Return the offsets of each combination of values in the columns `by`.

    Raises HandlerError if a value is not an offset.

    The offsets are collected as bitmaps: they may be in any order and occur several times. They are neither sorted
    nor sent one by one. Offsets that lie so far apart that more than MOST_BITMAPS would be needed are made distinct,
    sorted, and sent as ranges.
    """
    bitmaps = _bitmaps(records, by).limit(MOST_BITMAPS + 1).toArrow()
    if bitmaps.num_rows > MOST_BITMAPS:
        return _sorted_runs(records, by)
    # The bits stay in Arrow's memory.
    bits = bitmaps.column("bits")
    *keys, buckets, counts = (column.to_pylist() for column in bitmaps.drop_columns("bits").columns)
    if None in buckets:
        raise _no_offset("no offset")
    return _together(
        (key, _ones(some, (bucket - 1) * BITMAP_OFFSETS), count)
        for key, bucket, some, count in zip(zip(*keys, strict=True), buckets, bits, counts, strict=True)
    )


def offset_sets_in(files: Sequence[Path], *by: str) -> list[OffsetGroup]:
    """Return the same as `reduce_to_offset_sets` for Parquet files on this machine."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = pool.map(partial(_in_whole_file, by=by), files)
        return _together(piece for pieces in found for piece in pieces)


def offset_sets_of_folders(
    files: Files, folders: Sequence[str], rows: Callable[[], DataFrame], *by: str
) -> list[OffsetGroup]:
    """Return the same for all Parquet files of folders in a file system: without Spark if they are on this machine,
    else from the `rows` that Spark reads there.
    """
    here = files.here(*folders)
    if here is not None:
        try:
            return offset_sets_in(here, *by)
        except pa.ArrowInvalid as error:
            # Spark reads what it wrote, whatever the session's settings: encrypted files, for example.
            _log.info("Spark reads the offsets: %s", error)
    return reduce_to_offset_sets(rows(), *by)


def _together(pieces: Iterable[tuple[tuple[Any, ...], RangeBounds, int]]) -> list[OffsetGroup]:
    ranges: dict[tuple[Any, ...], list[RangeBounds]] = {}
    rows: dict[tuple[Any, ...], int] = {}
    for key, some, count in pieces:
        ranges.setdefault(key, []).append(some)
        rows[key] = rows.get(key, 0) + count
    return [(key, _union(found), rows[key]) for key, found in ranges.items()]


def _union(pieces: Sequence[RangeBounds]) -> OffsetSet:
    """Return the union of ranges, which may be in any order and overlap."""
    ranges = np.concatenate(pieces)
    if (lowest := int(ranges[:, 0].min())) < 0:
        raise _no_offset(f"offset {lowest}")
    return OffsetSet.from_bounds(ranges)


def _no_offset(what: str) -> HandlerError:
    return HandlerError(
        f"a row has {what}: every row must pass on topic, partition, offset and lease_id of its record"
    )


def _in_whole_file(file: Path, by: Sequence[str]) -> list[tuple[tuple[Any, ...], RangeBounds, int]]:
    try:
        return _in_file(file, by)
    except (pa.ArrowInvalid, OSError, NotImplementedError) as error:  # these errors do not name the file
        raise pa.ArrowInvalid(f"{file} cannot be read: {error}") from error


def _in_file(file: Path, by: Sequence[str]) -> list[tuple[tuple[Any, ...], RangeBounds, int]]:
    try:
        return _pieces(file, by, dictionaries=by)
    except (pa.ArrowInvalid, OSError, NotImplementedError):
        # Arrow reads a text that was written without a dictionary (DELTA_BYTE_ARRAY) only as a plain one.
        return _pieces(file, by, dictionaries=())


def _pieces(
    file: Path, by: Sequence[str], dictionaries: Sequence[str]
) -> list[tuple[tuple[Any, ...], RangeBounds, int]]:
    pieces = []
    parquet = pq.ParquetFile(
        file, read_dictionary=list(dictionaries), buffer_size=READ_AT_ONCE_BYTES, pre_buffer=False
    )
    for batch in parquet.iter_batches(ROWS_AT_ONCE, columns=[*by, "offset"]):
        if batch["offset"].null_count:
            raise _no_offset("no offset")
        for key, offsets in _parts(batch, by):
            if len(offsets):
                pieces.append((key, _runs(offsets), len(offsets)))
    return pieces


def _parts(batch: pa.RecordBatch, by: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], NDArray[np.int64]]]:
    offsets = batch["offset"].cast(pa.int64())
    values = [pc.unique(batch[name]).to_pylist() for name in by]
    if all(len(found) == 1 for found in values):
        yield tuple(value for (value,) in values), offsets.to_numpy()
        return
    columns = [_plain(batch[name]) for name in by]
    keys = pa.table(columns, names=list(by)).group_by(list(by), use_threads=False).aggregate([])
    for key in zip(*(keys[name].to_pylist() for name in by), strict=True):
        same = (
            pc.is_null(column) if value is None else pc.equal(column, value)
            for column, value in zip(columns, key, strict=True)
        )
        yield key, offsets.filter(reduce(pc.and_, same)).to_numpy()


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def _runs(offsets: NDArray[np.int64]) -> RangeBounds:
    """Return the ranges of offsets, which may be in any order and occur several times."""
    if (offsets[1:] <= offsets[:-1]).any():
        offsets = np.unique(offsets)
    if offsets[-1] > MAX_OFFSET:
        raise _no_offset(f"offset {offsets[-1]}")
    cut = np.flatnonzero(np.diff(offsets) != 1)
    firsts, lasts = np.append(0, cut + 1), np.append(cut, len(offsets) - 1)
    return np.stack([offsets[firsts], offsets[lasts] + 1], axis=1)


def _bitmaps(records: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return columns `by`, bucket, bits (null when all are set) and rows. Spark counts from 1, offsets from 0."""
    placed = records.select(
        *by,
        fn.expr("bitmap_bucket_number(offset + 1)").alias("bucket"),
        fn.expr("bitmap_bit_position(offset + 1)").alias("bit"),
    )
    made = placed.groupBy(*by, "bucket").agg(
        fn.expr("bitmap_construct_agg(bit)").alias("bits"), fn.count("*").alias("rows")
    )
    some = fn.expr(f"if(bitmap_count(bits) = {BITMAP_OFFSETS}, null, bits)").alias("bits")
    return made.select(*by, "bucket", some, "rows")


def _ones(bits: pa.BinaryScalar, first: int) -> RangeBounds:
    """Return the ranges of a bitmap whose first bit is that offset."""
    if not bits.is_valid:
        return np.array([[first, first + BITMAP_OFFSETS]])
    padded = np.zeros(BITMAP_OFFSETS + 2, np.int8)
    padded[1:-1] = np.unpackbits(np.frombuffer(bits.as_buffer(), np.uint8), bitorder="little")
    return np.flatnonzero(np.diff(padded)).reshape(-1, 2) + first


def _sorted_runs(records: DataFrame, by: Sequence[str]) -> list[OffsetGroup]:
    rows = {tuple(row[:-1]): row[-1] for row in records.groupBy(*by).count().collect()}
    distinct = records.select(*by, "offset").distinct()
    ordered = distinct.repartitionByRange(*by, "offset").sortWithinPartitions(*by, "offset")
    # For sorted, distinct offsets, the offset minus its row number is constant within a range.
    run = (fn.col("offset") - fn.monotonically_increasing_id()).alias("run")
    runs = (
        ordered.select(*by, "offset", run)
        .groupBy(*by, "run")
        .agg(fn.min("offset").alias("first"), (fn.max("offset") + 1).alias("past"))
        .drop("run")
        .toArrow()
    )
    ranges: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    *keys, firsts, pasts = (column.to_pylist() for column in runs.columns)
    for key, first, past in zip(zip(*keys, strict=True), firsts, pasts, strict=True):
        ranges.setdefault(key, []).append((first, past))
    return [(key, _union([np.array(found)]), rows[key]) for key, found in ranges.items()]
