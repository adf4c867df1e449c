"""Compact many small files of a sink into few, during reads and writes.

The folders of small leases are read and written as one new folder of large files. Then the manifest moves from the
old folders to the new one, in one transaction of Postgres. Readers use the manifest: each sees either the old folders
or the new one. The old folders stay for a grace period, for readers that read the manifest before; then a sweep
removes them. A compaction is recorded in the state before it writes, so that the files of a killed one are found.
`sharequeue compact` does both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from uuid import UUID, uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.errors import PipelineError
from sharequeue.domain.results.table import Removed
from sharequeue.domain.settings import Settings
from sharequeue.outputs.manifest import read_manifest
from sharequeue.spark.handler import ACCEPT, LEASE
from sharequeue.spark.output.damaged import reads_what_counts
from sharequeue.spark.output.files import Files, literal
from sharequeue.spark.output.folders import is_ours, remove_lease, sink_root
from sharequeue.spark.output.manifest import read_counted
from sharequeue.spark.output.owners import refuse_other_database
from sharequeue.spark.output.shared_folder import Counted, all_read_back
from sharequeue.state import State

Step = Literal["begun", "written", "committed", "removed"]

TARGET_BYTES = 128 * 2**20
"""The target size of a file: Spark reads that much in one task."""
MOST_FOLDERS = 1000
"""The most folders of one compaction; more take several."""
_OURS = re.compile(rf"/(leases=[0-9a-f,-]+/{LEASE}=-?\d+|compacted=[0-9a-f-]{{36}})$")
GRACE = timedelta(hours=1)
"""The longest time that a reader or a compaction may take."""


class CompactionFailed(PipelineError):
    """The new folder does not hold the records of the old folders; the message has the difference. The old folders
    still count.
    """


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction: the replaced folders, and the one that now holds their records."""

    replaced: Sequence[str]
    location: str
    """Empty after a dry run."""
    records: int


@dataclass(frozen=True, slots=True)
class NewFolder:
    """A folder that was written and does not count yet, with its rows."""

    compaction_id: UUID
    location: str
    rows: DataFrame
    count: int


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
) -> list[Compacted]:
    """Merge the folders of a sink that are smaller than half of `target_bytes`; return the compactions.

    A sink is the job's own, or one of its `-exceptions` and summaries. Nothing is done where only one folder is
    small. With `dry_run` nothing is written. Raises NotFiles for a sink that is not a folder, CompactionFailed, and
    InvalidRequest when another compaction committed first: then nothing has changed for readers.
    """
    files = Files(spark, settings.output)
    refuse_other_database(files, state, sink_root(settings, sink))
    folders = read_manifest(state, group, sink)
    counted = dict.fromkeys(folders, 0)
    for row in state.outputs.counted(group, sink):
        if row.location in counted:
            counted[row.location] += row.records
    with reads_what_counts(folders):
        sizes = {folder: files.size(folder) for folder in folders}
    small = [folder for folder, size in sizes.items() if size < target_bytes / 2]
    done: list[Compacted] = []
    for at in range(0, len(small), MOST_FOLDERS):
        some = small[at : at + MOST_FOLDERS]
        if len(some) < 2:
            break
        records = sum(counted[folder] for folder in some)
        if dry_run:
            done.append(Compacted(some, "", records))
            continue
        file_count = max(1, -(-sum(sizes[folder] for folder in some) // target_bytes))
        rows = read_counted(spark, some).coalesce(file_count)
        with reads_what_counts(some):
            new = write_folder(spark, settings, state, group, sink, rows, on_step)
        found = _records_in(new.rows)
        if found is not None and found != records:
            raise CompactionFailed(
                f"{len(some)} folders of {sink} count {records} records, and {found} were read from them: check "
                "whether files were removed or added by hand. Nothing was changed."
            )
        on_step("written")
        state.outputs.commit_compaction(new.compaction_id, some, records)
        on_step("committed")
        done.append(Compacted(some, new.location, records))
    return done


def write_folder(
    spark: SparkSession,
    settings: Settings,
    state: State,
    group: str,
    sink: str,
    rows: DataFrame,
    on_step: Callable[[Step], None] = lambda step: None,
) -> NewFolder:
    """Write rows into a new folder of a sink, and flush it. It is announced in the state first, so that a sweep finds
    it in any case.
    """
    compaction_id = uuid4()
    location = f"{sink_root(settings, sink)}/compacted={compaction_id}"
    files = Files(spark, location)
    state.outputs.begin_compaction(compaction_id, group, sink, location)
    on_step("begun")
    counted = Counted(rows)
    counted.records.write.mode("append").parquet(location)
    written = counted.rows
    all_read_back(sink, written, files.rows(location))
    files.flush(location)
    return NewFolder(compaction_id, location, spark.read.parquet(literal(location)), written)


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
    removable = state.outputs.removable(group, sink, grace)
    folders_of = {
        compaction_id: [folder for folder in folders if _is_own(folder, state)]
        for compaction_id, folders in removable.items()
    }
    roots = {_OURS.sub("", folder) for folders in folders_of.values() for folder in folders}
    for root in {sink_root(settings, sink), *roots}:
        refuse_other_database(files, state, root)
    for compaction_id, folders in folders_of.items():
        for folder in folders:
            if files.exists(folder):
                if not dry_run:
                    remove_lease(files, folder)
                removed.append(folder)
        if not dry_run:
            on_step("removed")
            state.outputs.forget_compaction(compaction_id)
    return removed


def _is_own(folder: str, state: State) -> bool:
    """Return whether this state has written a folder. Any role with rights on the group can write the names of
    compactions: only folders of a sink are removed.
    """
    found = _OURS.search(folder)
    if found is None:
        return False
    written, _, _ = found[1].partition("/")
    return not written.startswith("leases=") or is_ours(written, state) is not None


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
