"""The default sink: the files are the output, and the manifest counts each lease once.

To publish a replay into it, the folders that have rows of the replayed records are written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.results.runs import Stored
from sharequeue.domain.settings import Settings
from sharequeue.domain.settings.addresses import is_uri
from sharequeue.domain.values import OutputRow
from sharequeue.outputs.manifest import ELSEWHERE
from sharequeue.spark.output.compaction import CompactionFailed, NewFolder, write_folder
from sharequeue.spark.output.folders import SinkNames, sink_root
from sharequeue.spark.output.manifest import read_counted
from sharequeue.spark.reading.plan import TopicPartition
from sharequeue.spark.sinks.interface import (
    AT,
    OpenSink,
    Replaced,
    Replacement,
    Sink,
    SinkContext,
    records_at,
)

_HOME = "sharequeue_home"
_Move = tuple[NewFolder, Sequence[OutputRow], Mapping[int, int]]
"""A new folder, the outputs that move into it, and their numbers of records by lease."""


def _added(
    spark: SparkSession,
    replacement: Replacement,
    homes: Mapping[TopicPartition, int],
    old: DataFrame | None,
) -> DataFrame:
    """Return the accepted rows of a replay with their leases; `old` are the rows that they replace."""
    home = [(*at, lease_id) for at, lease_id in homes.items()]
    rows = replacement.rows(spark).drop("lease_id")
    rows = rows.join(spark.createDataFrame(home, f"topic string, partition int, {_HOME} long"), AT[:2])
    if old is None:
        return rows.withColumnRenamed(_HOME, "lease_id")
    owners = old.select(*AT, "lease_id").dropDuplicates(AT)
    lease_id = fn.coalesce("lease_id", _HOME)
    return rows.join(owners, AT, "left").withColumn("lease_id", lease_id).drop(_HOME)


def _replaced(
    context: SinkContext, moved: Sequence[OutputRow], wanted: DataFrame, added: DataFrame, more: int
) -> NewFolder:
    """Write the rows of some outputs without those of the `wanted` records, and with the added ones: that many
    `more` rows.
    """
    sink, before = context.names.sink, sum(row.records for row in moved)
    rows = added
    if folders := _folders(moved):
        live = read_counted(context.spark, folders)
        if (found := live.count()) != before:
            raise CompactionFailed(
                f"{len(folders)} folders of {sink} count {before} rows, and {found} were read from them: check "
                "whether files were removed or added by hand. Nothing was replaced."
            )
        rows = live.join(wanted, AT, "left_anti").unionByName(added, allowMissingColumns=True)
    new = _written(context, sink, rows)
    if new.count != before + more:
        raise CompactionFailed(
            f"{before + more} rows of {sink} were expected and {new.count} were written: the new rows or the output "
            "have changed meanwhile. Nothing was replaced."
        )
    return new


def _commit(
    context: SinkContext,
    replacement: Replacement,
    new: NewFolder,
    moved: Sequence[OutputRow],
    touched: Set[int],
) -> None:
    """Compute the summaries again, and move the manifest of all of them to the new folders, in one transaction."""
    by_lease = {row["lease_id"]: row["count"] for row in new.rows.groupBy("lease_id").count().collect()}
    moves: list[_Move] = [(new, moved, by_lease)]
    accepted = new.rows.filter(fn.col("lease_id").isin(list(touched)))
    for name, partial in replacement.summaries.items():
        moves.append(_summary(context, name, partial(accepted), touched, by_lease))
    with context.state.transaction() as (_, joined):
        for folder, outputs, counts in moves:
            joined.outputs.commit_replacement(
                folder.compaction_id,
                sorted({row.location for row in outputs}),
                sum(row.records for row in outputs),
                {row.lease_id: counts.get(row.lease_id, 0) for row in outputs},
            )


def _summary(
    context: SinkContext, name: str, sums: DataFrame, touched: Set[int], by_lease: Mapping[int, int]
) -> _Move:
    """Rewrite the folders that have partial sums of these leases, with the sums of other leases in them."""
    moved = _moved(context.state.outputs.counted(context.names.group, name), touched)
    if not moved:
        raise InvalidRequest(
            f"The summary {name} has no output of these leases yet: the new rows cannot be added to it."
        )
    old = read_counted(context.spark, sorted({row.location for row in moved}))
    others = old.filter(~fn.col("lease_id").isin(list(touched)))
    new = _written(context, name, others.unionByName(sums, allowMissingColumns=True))
    counts = {row.lease_id: row.records for row in moved if row.lease_id not in touched}
    return new, moved, {**by_lease, **counts}


def _written(context: SinkContext, sink: str, rows: DataFrame) -> NewFolder:
    return write_folder(context.spark, context.settings, context.state, context.names.group, sink, rows)


def _moved(manifest: Sequence[OutputRow], touched: Set[int]) -> list[OutputRow]:
    """Return the outputs in the locations of these leases: a compacted folder has several leases."""
    locations = {row.location for row in manifest if row.lease_id in touched}
    return [row for row in manifest if row.location in locations]


def _folders(rows: Iterable[OutputRow]) -> list[str]:
    """Return the folders of these outputs that have rows."""
    return sorted({row.location for row in rows if row.records})


@dataclass(frozen=True, slots=True)
class ParquetByLease(Sink):
    """The files of the leases, if the next step reads files with Spark, Arrow or Pandas. It is the default.
    `read_output` returns every accepted record once: the manifest counts each file once.
    """

    @contextmanager
    def open(self, context: SinkContext) -> Iterator[OpenSink]:
        """Prepare a run."""
        yield _OpenFiles()

    def stored(self, settings: Settings, names: SinkNames) -> Stored:
        """Return the folder of the sink; the manifest has the files of it that count."""
        root = sink_root(settings, names.sink)
        uri = root if is_uri(root) else Path(root).absolute().as_uri()
        return Stored("parquet", uri=uri, for_the_queue=True)

    def replace(self, context: SinkContext, replacement: Replacement, *, execute: bool) -> Replaced:
        """Rewrite the folders that have rows of these records. Raises InvalidRequest and CompactionFailed.

        A row of the replay gets the lease of the row that it replaces. If there is none, it gets the home of its
        partition: the last lease that had such a row, or else the last one with an output.
        """
        names, state, spark = context.names, context.state, context.spark
        manifest = state.outputs.counted(names.group, names.sink)
        last = {(row.topic, row.partition): row.lease_id for row in manifest}
        for at in replacement.offsets:
            if at not in last:
                raise InvalidRequest(
                    f"Group {names.group} has acknowledged no output of {at[0]}-{at[1]} in {names.sink}: there is "
                    "nothing to replace."
                )
        folders = _folders(row for row in manifest if (row.topic, row.partition) in replacement.offsets)
        if elsewhere := next((folder for folder in folders if folder.startswith(ELSEWHERE)), None):
            raise InvalidRequest(
                f"Rows of {names.sink} are in {elsewhere.removeprefix(ELSEWHERE)}, others in files: publish into "
                "both with a program of your own."
            )
        wanted = records_at(spark, replacement.offsets)
        old = read_counted(spark, folders).join(wanted, AT, "left_semi") if folders else None
        hits = old.groupBy("lease_id", *AT[:2]).count().collect() if old is not None else []
        hidden = sum(row["count"] for row in hits)
        homes = {at: last[at] for at in replacement.offsets}
        for row in sorted(hits, key=lambda row: int(row["lease_id"])):
            homes[row["topic"], row["partition"]] = row["lease_id"]
        touched = {*homes.values(), *(row["lease_id"] for row in hits)}
        if execute and touched:
            # Leases without accepted records have no folder: their rows of the manifest move to the new folder, too.
            moved = _moved(manifest, touched)
            added = _added(spark, replacement, homes, old)
            new = _replaced(context, moved, wanted, added, replacement.accepted_rows - hidden)
            _commit(context, replacement, new, moved, touched)
        touched_folders = _folders(row for row in manifest if row.lease_id in touched)
        summaries = tuple(replacement.summaries) if touched else ()
        return Replaced(sink_root(context.settings, names.sink), hidden, len(touched_folders), summaries)


class _OpenFiles(OpenSink):
    overlaps = True
    together = True
