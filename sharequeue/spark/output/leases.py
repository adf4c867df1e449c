"""Where does the output of a lease lie, and who may read it?

One folder by lease and sink, `<output>/<sink>/lease=<state's id>-<id>/part-*.parquet`, and beside it the exceptions
(released and rejected records, with outcome and error) in `<output>/<sink>-exceptions/lease=…/`. The id of the state
database is in the name, so that another one neither overwrites nor sweeps it. Both come
from one pass over the records: Spark writes a staging folder, and only what was written whole is moved to its
place. A rerun of a lease replaces its folders. A folder counts once the lease's acknowledgement has
committed, because readers go by the manifest that Postgres keeps (`State.outputs`) and never by a listing; a
folder whose lease was never acknowledged is swept. A sink that is no folder (`sinks.py`) starts from the same files,
and its rows in the manifest say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from sharequeue.settings import Settings
from sharequeue.spark.job import ACCEPT, HandlerError
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.sharing import Counted, all_read_back
from sharequeue.spark.output.stored import read_parquet
from sharequeue.state import State
from sharequeue.values import Lease

if TYPE_CHECKING:
    from sharequeue.spark.job import ShareGroupJob

ELSEWHERE = "sink:"
"""What a location in the manifest begins with that is no folder."""
STAGING = "_staging"
_OWNER = "_group"
_STATE = "_state"
"""Files in a sink's folder that say whose it is: which group's, and in which state database."""
_LEASE = "_lease"
_NULL = "__HIVE_DEFAULT_PARTITION__"
_PART = "_part"
"""Twice the lease id, one more for accepted records: one number is found faster among open files than two texts."""


class SinkTaken(Exception):
    """Another share group writes to this sink, or another state database; the message says which. Give each a sink
    of its own.
    """


class NotFiles(Exception):
    """What a sink's manifest counts is not in files; the message says where it is."""


@dataclass(frozen=True, slots=True)
class Written:
    """The folders of a round that have files in them, by lease id."""

    accepted: dict[int, str]
    exceptions: dict[int, str]
    rows: int
    """In all of them, as the tasks have counted that wrote them."""

    @property
    def folders(self) -> list[str]:
        """All of them."""
        return [*self.accepted.values(), *self.exceptions.values()]


def sink_root(settings: Settings, sink: str) -> str:
    """The folder of a sink, or of its exceptions or summaries."""
    return f"{settings.output}/{sink}"


def lease_folder(settings: Settings, state: State, sink: str, lease_id: int) -> str:
    """The folder of one lease in a sink: what the manifest calls its location."""
    return f"{sink_root(settings, sink)}/lease={state.state_id()}-{lease_id}"


def write_leases(
    spark: SparkSession,
    settings: Settings,
    state: State,
    job: ShareGroupJob,
    records: DataFrame,
    leases: Sequence[Lease],
) -> Written:
    """Write what the handler made of these leases, all of it or nothing. To have it on disk is `durable`'s matter.

    `records` has `outcome` and `error`. Raises SinkTaken when the sink belongs to another group, HandlerError for
    rows of other leases than these.
    """
    files = Files(spark, settings.output)
    claim(files, settings, state, job)
    lease_ids = sorted(lease.lease_id for lease in leases)
    staging = _staging(settings, state, job.sink, lease_ids)
    part = fn.col("lease_id") * 2 + (fn.col("outcome") == ACCEPT).cast("int")
    rows = _write(records.withColumn(_PART, part), staging, _PART)
    accepted = {lease_id: f"{_PART}={2 * lease_id + 1}" for lease_id in lease_ids}
    exceptions = {lease_id: f"{_PART}={2 * lease_id}" for lease_id in lease_ids}
    _refuse_astray(files.names(staging), {*accepted.values(), *exceptions.values()})
    written = Written(
        _place(files, staging, settings, state, job.sink, accepted),
        _place(files, staging, settings, state, job.exceptions_sink, exceptions),
        rows,
    )
    files.remove(staging)
    return written


@contextmanager
def durable(spark: SparkSession, settings: Settings, written: Written) -> Iterator[None]:
    """Have what was written on disk at the end of the block, which reads it meanwhile."""
    files = Files(spark, settings.output)
    with ThreadPoolExecutor(1) as beside:
        flushed = beside.submit(files.flush, *written.folders)
        yield
        flushed.result()


def write_summary(
    spark: SparkSession,
    settings: Settings,
    state: State,
    name: str,
    partial: DataFrame,
    lease_ids: Sequence[int],
) -> dict[int, str]:
    """Write partial sums, which have `lease_id`, by lease; answers the folders that have any.

    Raises HandlerError for sums of other leases, OutputNotShared when they are not where they were written.
    """
    files = Files(spark, settings.output)
    staging = _staging(settings, state, name, sorted(lease_ids))
    # A few rows by lease: one task, one file each.
    rows = _write(partial.coalesce(1).withColumn(_LEASE, fn.col("lease_id")), staging, _LEASE)
    wanted = {at: f"{_LEASE}={at}" for at in sorted(lease_ids)}
    _refuse_astray(files.names(staging), set(wanted.values()))
    placed = _place(files, staging, settings, state, name, wanted)
    all_read_back(name, rows, files.rows(*placed.values()))
    files.flush(*placed.values())
    files.remove(staging)
    return placed


def claim(files: Files, settings: Settings, state: State, job: ShareGroupJob) -> None:
    """Make the sink this group's, or raise SinkTaken: a sweep must know that every folder is its own."""
    for marker, ours in _refuse_taken(files, settings, state, job).items():
        files.write_text(marker, ours)


def _refuse_taken(files: Files, settings: Settings, state: State, job: ShareGroupJob) -> dict[str, str]:
    """Raise SinkTaken for another's sink; answers the markers that are not there yet, with what is to be in them."""
    root, ours = sink_root(settings, job.sink), str(state.state_id())
    owner, theirs = files.read_text(f"{root}/{_OWNER}"), files.read_text(f"{root}/{_STATE}")
    if owner and owner != job.group:
        raise SinkTaken(
            f"{root} holds the output of group {owner!r}, not of {job.group!r}: nothing was changed there. Give each "
            "group's pipeline a sink of its own (`sink=`; without it, the function's name is taken)."
        )
    if theirs and theirs != ours:
        raise SinkTaken(
            f"{root} holds the output of another state database (its id is {theirs}, this one's {ours}): nothing was "
            "changed there. Set SHAREQUEUE_OUTPUT to a folder of this database's own; or, if that database is gone "
            "for good, move its output away."
        )
    missing = {}
    if not theirs:
        missing[f"{root}/{_STATE}"] = ours
    if not owner:
        missing[f"{root}/{_OWNER}"] = job.group
    return missing


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
    DataFrame, which has columns only if `schema` names them. A column whose type was widened is read as the wider;
    raises ColumnChanged for one that became another.
    """
    folders = read_manifest(state, group, sink)
    if not folders:
        return spark.createDataFrame([], schema or StructType([]))
    return read_parquet(spark, folders, schema)


def sweep_outputs(
    spark: SparkSession, settings: Settings, state: State, job: ShareGroupJob, *, dry_run: bool = False
) -> list[str]:
    """Remove what leases left that are not held any more and do not count here; answers what.

    Folders of leases that were never acknowledged (their records were, or will be, delivered again under another
    lease) or whose rows count elsewhere, and what the job's sink has prepared for them. Folders of another state
    database are none of ours. With `dry_run` nothing is removed. Raises SinkTaken when the sink is another's.
    """
    files = Files(spark, settings.output)
    sinks = [job.sink, job.exceptions_sink, *(job.summary_sink(summary) for summary in job.summaries)]
    _refuse_taken(files, settings, state, job)
    found = [
        (sink, path, leases) for sink in sinks for path, leases in _folders(files, settings, state, sink)
    ]
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


def _folders(files: Files, settings: Settings, state: State, sink: str) -> list[tuple[str, set[int]]]:
    root, ours = sink_root(settings, sink), state.state_id()
    found: list[tuple[str, set[int]]] = []
    for name in files.names(root):
        if match := re.match(rf"^lease={ours}-(\d+)$", name):
            found.append((f"{root}/{name}", {int(match[1])}))
    for name in files.names(f"{root}/{STAGING}"):
        if match := re.match(rf"^leases={ours}-(\d+(?:,\d+)*)", name):
            found.append((f"{root}/{STAGING}/{name}", {int(i) for i in match[1].split(",")}))
    return found


def _staging(settings: Settings, state: State, sink: str, lease_ids: Sequence[int]) -> str:
    # The first and the last lease are enough to tell whether a run still works there; a name has 255 bytes.
    ends = sorted({lease_ids[0], lease_ids[-1]})
    return f"{sink_root(settings, sink)}/{STAGING}/leases={state.state_id()}-{','.join(map(str, ends))}"


def _write(records: DataFrame, folder: str, *partition_columns: str) -> int:
    """Write it in place of what may be there; answers how many rows the tasks wrote."""
    counted = Counted(records)
    counted.records.write.mode("overwrite").partitionBy(*partition_columns).parquet(folder)
    return counted.rows


def _refuse_astray(staged: Sequence[str], wanted: Set[str]) -> None:
    """Raise HandlerError when rows were staged under a lease that this round does not have."""
    for name in staged:
        column, _, value = name.partition("=")
        if column in (_PART, _LEASE) and name not in wanted:
            told = "null" if value == _NULL else int(value) // (2 if column == _PART else 1)
            raise HandlerError(
                f"the result has rows with lease_id {told}, which this round does not have: every row must pass on "
                "topic, partition, offset and lease_id of its record as it got them"
            )


def _place(
    files: Files, staged: str, settings: Settings, state: State, sink: str, names: Mapping[int, str]
) -> dict[int, str]:
    """Move what was staged under a name to its lease's place; where nothing was staged, nothing is left there."""
    have = set(files.names(staged))
    placed: dict[int, str] = {}
    for lease_id, name in names.items():
        target = lease_folder(settings, state, sink, lease_id)
        if name in have:
            files.replace(f"{staged}/{name}", target)
            placed[lease_id] = target
        else:
            files.remove(target)
    return placed
