"""How do many small files of a sink become few, while others read and write it?

The folders of small leases are read and written as one new folder of large files. Then the manifest moves from the
old folders to the new one, in one transaction of Postgres. Readers use the manifest: each sees the old folders or the
new one, never both, and never none. The old folders stay for a grace period, for readers who looked before; then a
sweep removes them. A compaction is announced in the state before it writes, so that what a killed one leaves is
found.

    python -m sharequeue.spark.output.compaction GROUP SINK [--dry-run] [--sweep-only] [--grace-seconds 3600]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal
from uuid import UUID, uuid4

import click
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.errors import GroupIdNotFound
from sharequeue.groups.known import require_group
from sharequeue.names import nearest
from sharequeue.settings import Settings
from sharequeue.spark.contract import ACCEPT
from sharequeue.spark.output.damaged import reads_what_counts
from sharequeue.spark.output.files import Files, literal
from sharequeue.spark.output.folders import LEASE, remove_lease, sink_root
from sharequeue.spark.output.manifest import read_counted, read_manifest
from sharequeue.spark.output.shared_folder import Counted, all_read_back, refuse_unusable
from sharequeue.spark.session import spark_session
from sharequeue.spark.showing import Removed, Shown, Table
from sharequeue.state import State

Step = Literal["begun", "written", "committed", "removed"]

TARGET_BYTES = 128 * 2**20
"""Wanted size of a file: Spark reads that much in one task."""
MOST_FOLDERS = 1000
"""Folders brought together by one compaction; more take several."""
_OURS = re.compile(
    rf"/(lease=([0-9a-f-]{{36}}-)?\d+|leases=[0-9a-f,-]+/{LEASE}=-?\d+|compacted=[0-9a-f-]{{36}})$"
)
GRACE = timedelta(hours=1)
"""How long a reader may take, and a compaction."""


class CompactionFailed(Exception):
    """What was written does not hold what the old folders count; the message says how. They count as before."""


@dataclass(frozen=True, slots=True)
class Compacted(Shown):
    """What a compaction did: folders that were replaced, and the one that holds their records now."""

    compaction_id: UUID
    replaced: tuple[str, ...]
    location: str
    records: int

    def table(self) -> Table:
        """Return its figures."""
        return Table(f"{len(self.replaced):,} folders, {self.records:,} records -> {self.location}")


class Compactions(Shown, list[Compacted]):
    """What one call of `compact` did, or with `dry_run` would do."""

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
    """Bring the folders of a sink that are smaller than half of `target_bytes` together; return what was done.

    A sink is the job's own, or one of its `-exceptions` and summaries. Nothing is done where only one folder is
    small. With `dry_run` nothing is written. Raises NotFiles for a sink that is no folder, CompactionFailed,
    and InvalidRequest when another compaction was quicker: nothing has changed for readers then.
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
    on_step: Callable[[Step], None] = lambda step: None,
) -> Removed:
    """Remove what was replaced before the grace, and what killed compactions left; return what was removed."""
    files = Files(spark, settings.output)
    removed = Removed()
    for compaction_id, folders in state.outputs.removable(group, sink, grace).items():
        for folder in folders:
            # The names come from whoever may work on the group: nothing but a sink's own folders is removed.
            if _OURS.search(folder) and files.exists(folder):
                remove_lease(files, folder)
                removed.append(folder)
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
            "them: were files removed or added by hand? They count as before."
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


def _require_sink(database: Database, group: str, sink: str) -> None:
    """Refuse a name that nobody knows, with the names most like it, before Spark starts."""
    try:
        require_group(database, group)
    except GroupIdNotFound as error:
        raise click.ClickException(str(error)) from error
    rows = database.rows(
        sa.text("select distinct sink from sharequeue.counted_outputs where group_id = :group_id"),
        group_id=group,
    )
    known = {row["sink"] for row in rows}
    if sink not in known:
        raise click.ClickException(
            f"group {group} has no acknowledged output in a sink {sink}. {nearest(sink, known, 'sinks')}"
        )


@click.command()
@click.option("--home", type=click.Path(path_type=Path), help="The data folder (default: .sharequeue).")
@click.argument("group")
@click.argument("sink")
@click.option("--target-bytes", default=TARGET_BYTES, show_default=True, help="Size of a file aimed at.")
@click.option("--dry-run", is_flag=True, help="Say what would be brought together, and change nothing.")
@click.option("--sweep-only", is_flag=True, help="Only remove what earlier compactions have replaced.")
@click.option(
    "--grace-seconds", default=GRACE.total_seconds(), show_default=True, help="For readers of the old."
)
def main(
    home: Path | None,
    group: str,
    sink: str,
    target_bytes: int,
    dry_run: bool,
    sweep_only: bool,
    grace_seconds: float,
) -> None:
    """Bring the small files of a sink together, then remove what was replaced longer ago than the grace."""
    settings = Settings.load(home)
    with Database.open(settings) as database:
        _require_sink(database, group, sink)
        state, spark = State(database), spark_session(settings, "compaction")
        refuse_unusable(spark, settings, settings.output)
        if not sweep_only:
            for done in compact(
                spark, settings, state, group, sink, target_bytes=target_bytes, dry_run=dry_run
            ):
                click.echo(str(done))
        if not dry_run:
            grace = timedelta(seconds=grace_seconds)
            for folder in sweep_compactions(spark, settings, state, group, sink, grace=grace):
                click.echo(f"removed {folder}")


if __name__ == "__main__":
    main()
