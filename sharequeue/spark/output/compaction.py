"""Compact many small files of a sink into few, during reads and writes.

The folders of small leases are read and written as one new folder of large files. Then the manifest moves from the
old folders to the new one, in one transaction of Postgres. Readers use the manifest: each sees either the old folders
or the new one. The old folders stay for a grace period, for readers that read the manifest before; then a sweep
removes them. A compaction is recorded in the state before it writes, so that the files of a killed one are found.
`sharequeue compact` does both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from uuid import UUID, uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.spark.handler import ACCEPT, LEASE, PipelineError
from sharequeue.spark.output.damaged import reads_what_counts
from sharequeue.spark.output.files import Files, literal
from sharequeue.spark.output.folders import remove_lease, sink_root
from sharequeue.spark.output.manifest import read_counted, read_manifest
from sharequeue.spark.output.shared_folder import Counted, all_read_back
from sharequeue.spark.table import Removed, Shown, Table
from sharequeue.state import State
from sharequeue.words.settings import Settings

Step = Literal["begun", "written", "committed", "removed"]

TARGET_BYTES = 128 * 2**20
"""The target size of a file: Spark reads that much in one task."""
MOST_FOLDERS = 1000
"""The most folders of one compaction; more take several."""
_OURS = re.compile(
    rf"/(lease=([0-9a-f-]{{36}}-)?\d+|leases=[0-9a-f,-]+/{LEASE}=-?\d+|compacted=[0-9a-f-]{{36}})$"
)
GRACE = timedelta(hours=1)
"""The longest time that a reader or a compaction may take."""


class CompactionFailed(PipelineError):
    """The new folder does not hold the records of the old folders; the message has the difference. The old folders
    still count.
    """


@dataclass(frozen=True, slots=True)
class Compacted(Shown):
    """The result of a compaction: the replaced folders, and the one that now holds their records."""

    compaction_id: UUID
    replaced: tuple[str, ...]
    location: str
    records: int

    def table(self) -> Table:
        """Return its figures."""
        return Table(f"{len(self.replaced):,} folders, {self.records:,} records -> {self.location}")


class Compactions(Shown, list[Compacted]):
    """The results of one call of `compact`, or with `dry_run` its plan."""

    def __init__(self, done: Iterable[Compacted] = (), *, dry_run: bool = False) -> None:
        super().__init__(done)
        self.dry_run = dry_run

    def table(self) -> Table:
        """Return a row for each new folder."""
        folders, records = sum(len(each.replaced) for each in self), sum(each.records for each in self)
        done = "would bring" if self.dry_run else "brought"
        return Table(
            f"{done} {folders:,} folders ({records:,} records) into {len(self):,}",
            ("folders", "records", "location"),
            [(len(each.replaced), each.records, each.location) for each in self],
        )


def compact(
    spark: SparkSession,
    settings: Settings,
    state: State,
    group: str,
    sink: str,
    *,
    target_bytes: int = TARGET_BYTES,
    dry_run: bool = False,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Compactions:
    """Merge the folders of a sink that are smaller than half of `target_bytes`; return the compactions.

    A sink is the job's own, or one of its `-exceptions` and summaries. Nothing is done where only one folder is
    small. With `dry_run` nothing is written. Raises NotFiles for a sink that is not a folder, CompactionFailed, and
    InvalidRequest when another compaction committed first: then nothing has changed for readers.
    """
    files = Files(spark, settings.output)
    counted: dict[str, int] = {}
    folders = set(read_manifest(state, group, sink))
    for row in state.outputs.counted(group, sink):
        counted[row.location] = counted.get(row.location, 0) + row.records
    with reads_what_counts([*folders]):
        sizes = {folder: files.size(folder) for folder in counted if folder in folders}
    small = [folder for folder, size in sizes.items() if size < target_bytes / 2]
    done = Compactions(dry_run=dry_run)
    for at in range(0, len(small), MOST_FOLDERS):
        some = small[at : at + MOST_FOLDERS]
        if len(some) < 2:
            break
        compaction_id = uuid4()
        location = f"{sink_root(settings, sink)}/compacted={compaction_id}"
        compacted = Compacted(compaction_id, tuple(some), location, sum(counted[folder] for folder in some))
        if not dry_run:
            total = sum(sizes[folder] for folder in some)
            _replace(spark, settings, state, group, sink, compacted, -(-total // target_bytes), on_step)
        done.append(compacted)
    return done


def sweep_compactions(
    spark: SparkSession,
    settings: Settings,
    state: State,
    group: str,
    sink: str,
    *,
    grace: timedelta = GRACE,
    dry_run: bool = False,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Removed:
    """Remove folders replaced before the grace period, and those of killed compactions; return what was removed. With
    `dry_run` nothing is removed.
    """
    files = Files(spark, settings.output)
    removed = Removed(dry_run=dry_run)
    for compaction_id, folders in state.outputs.removable(group, sink, grace).items():
        for folder in folders:
            # Any role with rights on the group can write these names: only a sink's own folders are removed.
            if _OURS.search(folder) and files.exists(folder):
                if not dry_run:
                    remove_lease(files, folder)
                removed.append(folder)
        if not dry_run:
            on_step("removed")
            state.outputs.forget_compaction(compaction_id)
    return removed


def _replace(
    spark: SparkSession,
    settings: Settings,
    state: State,
    group: str,
    sink: str,
    wanted: Compacted,
    file_count: int,
    on_step: Callable[[Step], None],
) -> None:
    files = Files(spark, settings.output)
    state.outputs.begin_compaction(wanted.compaction_id, group, sink, wanted.location)
    on_step("begun")
    counted = Counted(read_counted(spark, wanted.replaced).coalesce(max(1, file_count)))
    counted.records.write.mode("append").parquet(wanted.location)
    all_read_back(sink, counted.rows, files.rows(wanted.location))
    written = spark.read.parquet(literal(wanted.location))
    found = _records_in(written)
    if found is not None and found != wanted.records:
        raise CompactionFailed(
            f"{len(wanted.replaced)} folders of {sink} count {wanted.records} records, and {found} were read from "
            "them: check whether files were removed or added by hand. Nothing was changed."
        )
    files.flush(wanted.location)
    on_step("written")
    state.outputs.commit_compaction(wanted.compaction_id, wanted.replaced, wanted.records)
    on_step("committed")


def _records_in(written: DataFrame) -> int | None:
    """Return how many records a manifest counts for these rows: accepted ones by row, others by offset, because a
    handler may make several rows of one record. Return None for a summary: its rows are sums, and its manifest counts
    the records that were summed.
    """
    if not {"outcome", "lease_id", "offset"} <= set(written.columns):
        return None
    accepted = fn.count_if(fn.col("outcome") == ACCEPT)
    others = fn.count_distinct(fn.when(fn.col("outcome") != ACCEPT, fn.struct("lease_id", "offset")))
    (row,) = written.select((accepted + others).alias("records")).collect()
    return int(row["records"])
