"""Find a record that failed, with the handler's error, for the report of a run.

Files on the driver's own machine are read without Spark, up to the first such record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from sharequeue.domain.names import printable
from sharequeue.spark.output.files import Files, literal

_COLUMNS = ("topic", "partition", "offset", "outcome", "error")
_AT_ONCE = 1000


def find_first_failure(spark: SparkSession, files: Files, folders: Collection[str]) -> str | None:
    """Return the first record in these folders of exceptions that has an error, with its outcome and the error.

    None if no record has one.
    """
    if not folders:
        return None
    found = _first(spark, files, folders)
    if found is None:
        return None
    topic, partition, offset, outcome, error = found
    return printable(f"{topic}-{partition} offset {offset}: {outcome}, {error}")


def _first(spark: SparkSession, files: Files, folders: Collection[str]) -> Sequence[Any] | None:
    here = files.here(*folders)
    if here is not None:
        # Spark's settings may have made files that Arrow cannot read.
        with suppress(pa.ArrowException, OSError):
            return next(_in_files(here), None)
    return _by_spark(spark, folders)


def _in_files(files: Sequence[Path]) -> Iterator[Sequence[Any]]:
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(_AT_ONCE, columns=list(_COLUMNS)):
            failed = batch.filter(pc.is_valid(batch["error"])).slice(0, 1)
            yield from ([row[name] for name in _COLUMNS] for row in failed.to_pylist())


def _by_spark(spark: SparkSession, folders: Collection[str]) -> Sequence[Any] | None:
    rows = spark.read.parquet(*map(literal, folders)).where("error is not null").select(*_COLUMNS)
    return next(iter(rows.limit(1).collect()), None)
