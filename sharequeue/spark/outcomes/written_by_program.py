"""Read the outcomes that a user's program has written for its leased records.

They are read from storage, never from memory or from the topic, which could differ when read again. The files may be
in any format, in a folder that other leases append to, and older files may lack columns that the program writes now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType

from sharequeue.domain.settings.addresses import located
from sharequeue.domain.values import Lease
from sharequeue.outputs.errors import named_leases
from sharequeue.spark.handler import KEY_HASH, OUTCOMES, RELEASE, HandlerError, kept_columns, with_outcomes
from sharequeue.spark.outcomes.outcomes import SeenOutcomes, refuse_other_partitions, seen_in
from sharequeue.spark.output.damaged import reads_what_it_wrote
from sharequeue.spark.output.files import Files, literal
from sharequeue.spark.output.folders import folder_name
from sharequeue.spark.output.parquet import read_parquet
from sharequeue.spark.output.reachable import failed_by_store
from sharequeue.spark.output.shared_folder import Counted, all_read_back, refuse_unshared
from sharequeue.spark.reading.source import TopicSource

_NO_LEASE = -1
_Outcomes = DataFrame | str | PathLike[str]
_WRITTEN_AS = {"topic": "string", "partition": "int", "offset": "long", "outcome": "string"}


@dataclass(frozen=True, slots=True)
class WrittenOutcomes:
    """The folder that a lease's `write` has made, and its number of rows."""

    folder: str
    rows: int


def write_outcomes(
    source: TopicSource,
    leases: Sequence[Lease],
    outcomes: DataFrame,
    root: str,
    before: WrittenOutcomes | None,
) -> WrittenOutcomes:
    """Write outcomes into a folder for these leases only, below `root`; return its path, or `root` itself without a
    lease.

    `before` is the folder of an earlier write: it is removed if it is below `root`, so that readers of all of `root`
    do not find them twice. Raises SettingInvalid, OutputNotShared, OutputNotReachable and OutputFull.
    """
    root = located(root)
    if not leases:
        return WrittenOutcomes(root, 0)
    refuse_unshared(source.spark, source.settings, root)
    folder = f"{root}/{folder_name(source.state, [lease.lease_id for lease in leases])}"
    counted = Counted(outcomes)
    # Append mode saves the check for an existing folder.
    with failed_by_store(folder):
        counted.records.write.mode("append").parquet(folder)
    files = Files(source.spark, folder)
    all_read_back(root, counted.rows, files.rows(folder))
    if before is not None and before.folder.rpartition("/")[0] == root:
        files.remove(before.folder)
    return WrittenOutcomes(folder, counted.rows)


def written_outcomes(
    source: TopicSource,
    leases: Sequence[Lease],
    outcomes: WrittenOutcomes | _Outcomes,
    *,
    ordered: bool = False,
) -> tuple[dict[int, SeenOutcomes], DataFrame]:
    """Return these outcomes by lease id, after making them durable, and the rows that have them.

    The rows of an `ordered` group must have the hash of their key. `outcomes` is a folder of Parquet files, or a
    DataFrame that reads what was written. Raises HandlerError for outcomes that are not read from storage, lack a
    column, or belong to partitions that were not leased, and OutputDamaged if the files of `write_outcomes` were
    removed or changed.
    """
    if isinstance(outcomes, WrittenOutcomes):
        folder, files = outcomes.folder, Files(source.spark, outcomes.folder)
        whose = named_leases([lease.lease_id for lease in leases])
        with reads_what_it_wrote([folder], whose, alone=files.alone):
            all_read_back(folder, outcomes.rows, files.rows(folder))
            return _seen(source, leases, _durable(source, folder), ordered)
    return _seen(source, leases, _durable(source, outcomes), ordered)


def _durable(source: TopicSource, outcomes: _Outcomes) -> DataFrame:
    """Return the outcomes as they are in storage, after flushing files on this machine."""
    spark = source.spark
    if isinstance(outcomes, DataFrame):
        _refuse_unwritten(outcomes)
        folders = {unquote(file).rpartition("/")[0] for file in outcomes.inputFiles()}
        written = outcomes
    else:
        folder = fspath(outcomes)
        if not Files(spark, folder).exists(folder):
            raise HandlerError(f"there is no folder {folder}: write the outcomes before acknowledging them")
        written = _outcomes_in(spark, folder)
        folders = {folder, *(unquote(file).rpartition("/")[0] for file in written.inputFiles())}
    for folder in sorted(folders):  # they may be on different file systems
        refuse_unshared(spark, source.settings, folder)
        Files(spark, folder).flush(folder)
    return written


def _seen(
    source: TopicSource, leases: Sequence[Lease], written: DataFrame, ordered: bool
) -> tuple[dict[int, SeenOutcomes], DataFrame]:
    expected = {**_WRITTEN_AS, **({KEY_HASH: "string"} if ordered else {})}
    absent = [name for name in expected if name not in written.columns]
    if absent:
        key = f", {KEY_HASH} (because the group has sharequeue.order=key)" if ordered else ""
        raise HandlerError(
            f"the outcomes lack {', '.join(absent)}: expected topic, partition and offset as they were leased{key}, "
            f"and `outcome`, one of {', '.join(OUTCOMES)}"
        )
    if not isinstance(kind := written.schema["outcome"].dataType, StringType):
        raise HandlerError(
            f"the outcomes' `outcome` is of type {kind.simpleString()}: expected one of {', '.join(OUTCOMES)}"
        )
    kinds = {
        **expected,
        **({"not_before": "timestamp_ltz"} if "not_before" in written.columns else {}),
    }
    columns = [fn.col(name).cast(kind).alias(name) for name, kind in kinds.items()]
    ours = [lease.lease_id for lease in leases]
    if "lease_id" in written.columns:
        rows = written.select(*columns, fn.col("lease_id").cast("long").alias("lease_id"))
        rows = rows.where(fn.col("lease_id").isin(ours))
    else:
        rows = _with_lease_ids(source.spark, leases, written.select(*columns))
    rows = with_outcomes(_unidentified_marked(rows), kept_columns(rows))
    seen = seen_in(rows)
    if unidentified := seen.pop(_NO_LEASE, None):
        raise HandlerError(
            f"the outcomes have {unidentified.offsets.count} offsets, such as {unidentified.offsets.first}, of "
            "partitions that were not leased, or rows without topic, partition or offset: pass them on as they were "
            "read"
        )
    refuse_other_partitions(leases, seen)
    return seen, rows


def _with_lease_ids(spark: SparkSession, leases: Sequence[Lease], rows: DataFrame) -> DataFrame:
    """Return the rows with the lease of their partition; each partition has one lease."""
    at = [lease.share_partition for lease in leases]
    owners = pa.table(
        {
            "l_topic": pa.array([sp.topic for sp in at], pa.string()),
            "l_partition": pa.array([sp.partition for sp in at], pa.int32()),
            "lease_id": pa.array([lease.lease_id for lease in leases], pa.int64()),
        }
    )
    leased = fn.broadcast(spark.createDataFrame(owners))
    same = (rows["topic"] == leased["l_topic"]) & (rows["partition"] == leased["l_partition"])
    return rows.join(leased, same, "left").drop("l_topic", "l_partition")


def _outcomes_in(spark: SparkSession, folder: str) -> DataFrame:
    """Return the rows of a folder, with all columns of any of its files: an older file may lack `not_before`."""
    try:
        return read_parquet(spark, [folder])
    except Exception as error:
        if "CANNOT_MERGE" not in str(error):
            raise
    # The type of a column was widened from one file to the next.
    return read_parquet(spark, [unquote(file) for file in spark.read.parquet(literal(folder)).inputFiles()])


def _unidentified_marked(rows: DataFrame) -> DataFrame:
    """Return the rows, with `_NO_LEASE` as the lease where they do not identify their record."""
    named = fn.col("lease_id").isNotNull() & fn.col("offset").isNotNull()
    return rows.withColumns(
        {
            "lease_id": fn.when(named, fn.col("lease_id")).otherwise(fn.lit(_NO_LEASE).cast("long")),
            # All leases together: these rows show only that such rows exist.
            "topic": fn.when(named, fn.col("topic")),
            "partition": fn.when(named, fn.col("partition")),
            "offset": fn.coalesce(fn.col("offset"), fn.lit(0).cast("long")),
            "outcome": fn.when(named, fn.col("outcome")).otherwise(RELEASE),
        }
    )


def _refuse_unwritten(outcomes: DataFrame) -> None:
    """Raise HandlerError for outcomes that would be recomputed or come from memory."""
    leaves: Any = outcomes._jdf.queryExecution().analyzed().collectLeaves()
    written = leaves.size() > 0
    for at in range(leaves.size()):
        kind = _kind_of(leaves.apply(at))
        if kind in ("KafkaRelation", "KafkaTable"):
            raise HandlerError(
                "these outcomes are computed from the topic itself: write them, and acknowledge the folder or "
                "a DataFrame that reads it"
            )
        written = written and kind is not None
    if not written:
        raise HandlerError(
            "these outcomes are in memory only, or a part of them is: write them, and acknowledge the folder or a "
            "DataFrame that reads it"
        )


def _kind_of(leaf: Any) -> str | None:
    """Return the kind of storage that a leaf of a plan reads; None for computed data or data in memory."""
    kind = str(leaf.getClass().getSimpleName())
    if kind == "LogicalRelation":
        return str(leaf.relation().getClass().getSimpleName())
    if kind == "DataSourceV2Relation":
        return str(leaf.table().getClass().getSimpleName())
    return kind if kind == "HiveTableRelation" else None
