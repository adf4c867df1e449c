"""Where does the output of a lease lie, and who may read it?

One folder by lease and sink, `<output>/<sink>/lease=<id>/part-*.parquet`, and beside it the exceptions
(released and rejected records, with outcome and error) in `<output>/<sink>-exceptions/lease=<id>/`. Both come
from one pass over the records: Spark writes a staging folder, and only what was written whole is moved to its
place. A rerun of a lease replaces its folders. A folder counts once the lease's acknowledgement has
committed, because readers go by the manifest that Postgres keeps (`State.outputs`) and never by a listing; a
folder whose lease was never acknowledged is swept. A sink that is no folder (`sinks.py`) starts from the same files,
and its rows in the manifest say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from pipelines.files import Files
from pipelines.job import ACCEPT
from sharequeue.settings import Settings
from sharequeue.state import Lease, State

if TYPE_CHECKING:
    from pipelines.job import ShareGroupJob

ELSEWHERE = "sink:"
"""What a location in the manifest begins with that is no folder."""
STAGING = "_staging"
_OWNER = "_group"
_LEASE = "_lease"
_PART = "_part"
"""Twice the lease id, one more for accepted records: one number is found faster among open files than two texts."""
_LEASE_FOLDER = re.compile(r"^lease=(\d+)$")
_STAGING_FOLDER = re.compile(r"^leases=(\d+(?:,\d+)*)")


class SinkTaken(Exception):
    """Another share group writes to this sink; the message says which. Give each group a sink of its own."""


class NotFiles(Exception):
    """What a sink's manifest counts is not in files; the message says where it is."""


@dataclass(frozen=True, slots=True)
class Written:
    """The folders of a round that have files in them, by lease id."""

    accepted: dict[int, str]
    exceptions: dict[int, str]

    @property
    def folders(self) -> list[str]:
        """All of them."""
        return [*self.accepted.values(), *self.exceptions.values()]


def sink_root(settings: Settings, sink: str) -> str:
    """The folder of a sink, or of its exceptions or summaries."""
    return f"{settings.output}/{sink}"


def lease_folder(settings: Settings, sink: str, lease_id: int) -> str:
    """The folder of one lease in a sink: what the manifest calls its location."""
    return f"{sink_root(settings, sink)}/lease={lease_id}"


def write_leases(
    spark: SparkSession, settings: Settings, job: ShareGroupJob, records: DataFrame, leases: Sequence[Lease]
) -> Written:
    """Write what the handler made of these leases, all of it or nothing. To have it on disk is `durable`'s matter.

    `records` has `outcome` and `error`. Raises SinkTaken when the sink belongs to another group.
    """
    files = Files(spark, str(settings.output))
    claim(files, settings, job)
    lease_ids = sorted(lease.lease_id for lease in leases)
    staging = _staging(settings, job.sink, lease_ids)
    part = fn.col("lease_id") * 2 + (fn.col("outcome") == ACCEPT).cast("int")
    _write(records.withColumn(_PART, part), staging, _PART)
    accepted = {lease_id: f"{_PART}={2 * lease_id + 1}" for lease_id in lease_ids}
    exceptions = {lease_id: f"{_PART}={2 * lease_id}" for lease_id in lease_ids}
    written = Written(
        _place(files, staging, settings, job.sink, accepted),
        _place(files, staging, settings, job.exceptions_sink, exceptions),
    )
    files.remove(staging)
    return written


@contextmanager
def durable(spark: SparkSession, settings: Settings, written: Written) -> Iterator[None]:
    """Have what was written on disk at the end of the block, which reads it meanwhile."""
    files = Files(spark, str(settings.output))
    with ThreadPoolExecutor(1) as beside:
        flushed = beside.submit(files.flush, *written.folders)
        yield
        flushed.result()


def write_summary(
    spark: SparkSession,
    settings: Settings,
    job: ShareGroupJob,
    name: str,
    partial: DataFrame,
    lease_ids: Sequence[int],
) -> dict[int, str]:
    """Write partial sums, which have `lease_id`, by lease; answers the folders that have any."""
    files = Files(spark, str(settings.output))
    staging = _staging(settings, name, sorted(lease_ids))
    # A few rows by lease: one task, one file each.
    _write(partial.coalesce(1).withColumn(_LEASE, fn.col("lease_id")), staging, _LEASE)
    placed = _place(files, staging, settings, name, {at: f"{_LEASE}={at}" for at in sorted(lease_ids)})
    files.flush(*placed.values())
    files.remove(staging)
    return placed


def claim(files: Files, settings: Settings, job: ShareGroupJob) -> None:
    """Make the sink this group's, or raise SinkTaken: a sweep must know that every folder is its own."""
    marker = f"{sink_root(settings, job.sink)}/{_OWNER}"
    owner = files.read_text(marker)
    if not owner:
        files.write_text(marker, job.group)
    elif owner != job.group:
        raise SinkTaken(
            f"{sink_root(settings, job.sink)} holds the output of group {owner!r}, not of {job.group!r}."
        )


def read_manifest(state: State, group: str, sink: str) -> tuple[str, ...]:
    """The folders of a sink that count: their leases' acknowledgements have committed.

    Raises NotFiles when the sink's rows went elsewhere.
    """
    folders = dict.fromkeys(row.location for row in state.outputs(group, sink) if row.records)
    if elsewhere := next((folder for folder in folders if folder.startswith(ELSEWHERE)), None):
        raise NotFiles(
            f"the output of {sink} is not in files: it went to {elsewhere.removeprefix(ELSEWHERE)}"
        )
    return tuple(folders)


def read_output(
    spark: SparkSession, state: State, group: str, sink: str, schema: StructType | str | None = None
) -> DataFrame:
    """What a sink holds, as of now: of acknowledged leases only, each record once.

    Works for `<sink>-exceptions` and `<sink>-<summary>` too. Nothing acknowledged yet gives an empty
    DataFrame, which has columns only if `schema` names them.
    """
    folders = read_manifest(state, group, sink)
    if not folders:
        return spark.createDataFrame([], schema or StructType([]))
    reader = spark.read if schema is None else spark.read.schema(schema)
    return reader.option("mergeSchema", "true").parquet(*folders)


def sweep_outputs(
    spark: SparkSession, settings: Settings, state: State, job: ShareGroupJob, *, dry_run: bool = False
) -> list[str]:
    """Remove what leases left that are not held any more and do not count here; answers what.

    Folders of leases that were never acknowledged (their records were, or will be, delivered again under another
    lease) or whose rows count elsewhere, and what the job's sink has prepared for them. With `dry_run` nothing is
    removed.
    """
    files = Files(spark, str(settings.output))
    sinks = [job.sink, job.exceptions_sink, *(job.summary_sink(summary) for summary in job.summaries)]
    if files.read_text(f"{sink_root(settings, job.sink)}/{_OWNER}") not in (None, "", job.group):
        raise SinkTaken(
            f"{sink_root(settings, job.sink)} is not a sink of group {job.group!r}: nothing was swept."
        )
    found = [(sink, path, leases) for sink in sinks for path, leases in _folders(files, settings, sink)]
    # In this order: a lease that is answered between the two questions is in the second answer.
    held = {row.lease_id for row in state.leases(job.group)}
    counted = {
        (sink, row.lease_id)
        for sink in sinks
        for row in state.outputs(job.group, sink)
        if not row.location.startswith(ELSEWHERE)
    }
    orphans = [
        path
        for sink, path, leases in found
        if not leases & held
        and (
            path.rpartition("/")[2].startswith("leases=")
            or not any((sink, lease_id) in counted for lease_id in leases)
        )
    ]
    if not dry_run:
        for path in orphans:
            files.remove(path)
    if job.output is not None:
        orphans += job.output.sweep(state, job, dry_run=dry_run)
    return orphans


def _folders(files: Files, settings: Settings, sink: str) -> list[tuple[str, set[int]]]:
    root = sink_root(settings, sink)
    found: list[tuple[str, set[int]]] = []
    for name in files.names(root):
        if match := _LEASE_FOLDER.match(name):
            found.append((f"{root}/{name}", {int(match[1])}))
    for name in files.names(f"{root}/{STAGING}"):
        if match := _STAGING_FOLDER.match(name):
            found.append((f"{root}/{STAGING}/{name}", {int(i) for i in match[1].split(",")}))
    return found


def _staging(settings: Settings, sink: str, lease_ids: Sequence[int]) -> str:
    # The first and the last lease are enough to tell whether a run still works there; a name has 255 bytes.
    ends = sorted({lease_ids[0], lease_ids[-1]})
    return f"{sink_root(settings, sink)}/{STAGING}/leases={','.join(map(str, ends))}"


def _write(records: DataFrame, folder: str, *partition_columns: str) -> None:
    records.write.mode("overwrite").partitionBy(*partition_columns).parquet(folder)


def _place(
    files: Files, staged: str, settings: Settings, sink: str, names: Mapping[int, str]
) -> dict[int, str]:
    """Move what was staged under a name to its lease's place; where nothing was staged, nothing is left there."""
    have = set(files.names(staged))
    placed: dict[int, str] = {}
    for lease_id, name in names.items():
        target = lease_folder(settings, sink, lease_id)
        if name in have:
            files.replace(f"{staged}/{name}", target)
            placed[lease_id] = target
        else:
            files.remove(target)
    return placed
