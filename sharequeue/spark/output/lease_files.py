"""How do the rows of a lease become files, all of them or none?

Accepted rows and exceptions come from one pass over the records: Spark writes a staging folder, and only what was
written whole is moved to its folder (`folders.py`). A rerun of a lease replaces its folders. Nothing of it counts
before the lease's acknowledgement has committed (`manifest.py`). Every sink starts from these files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.settings import Settings
from sharequeue.spark.contract import ACCEPT, HandlerError
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import STAGING, SinkNames, claim, lease_folder, sink_root
from sharequeue.spark.output.shared_folder import Counted, all_read_back
from sharequeue.state import State
from sharequeue.values import Lease

_LEASE = "_lease"
_NULL = "__HIVE_DEFAULT_PARTITION__"
_PART = "_part"
"""Twice the lease id, plus one for accepted records. Spark finds one number faster among its open files than two
texts.
"""


@dataclass(frozen=True, slots=True)
class Written:
    """The folders of a round that have files in them, by lease id."""

    accepted: dict[int, str]
    exceptions: dict[int, str]
    rows: int
    """Rows in all of them, as counted by the tasks that wrote them."""

    @property
    def folders(self) -> list[str]:
        """All of them."""
        return [*self.accepted.values(), *self.exceptions.values()]


def write_leases(
    spark: SparkSession,
    settings: Settings,
    state: State,
    names: SinkNames,
    records: DataFrame,
    leases: Sequence[Lease],
) -> Written:
    """Write what the handler made of these leases, all of it or nothing. `durable` flushes it to disk.

    `records` has `outcome` and `error`. Raises SinkTaken when the sink belongs to another group, HandlerError for
    rows of leases that are not among these.
    """
    files = Files(spark, settings.output)
    claim(files, settings, state, names)
    lease_ids = sorted(lease.lease_id for lease in leases)
    staging = _staging(settings, state, names.sink, lease_ids)
    part = fn.col("lease_id") * 2 + (fn.col("outcome") == ACCEPT).cast("int")
    rows = _write(records.withColumn(_PART, part), staging, _PART)
    accepted = {lease_id: f"{_PART}={2 * lease_id + 1}" for lease_id in lease_ids}
    exceptions = {lease_id: f"{_PART}={2 * lease_id}" for lease_id in lease_ids}
    _refuse_other_leases(files.names(staging), {*accepted.values(), *exceptions.values()})
    written = Written(
        _move_staged(files, staging, settings, state, names.sink, accepted),
        _move_staged(files, staging, settings, state, names.exceptions, exceptions),
        rows,
    )
    files.remove(staging)
    return written


@contextmanager
def durable(spark: SparkSession, settings: Settings, written: Written) -> Iterator[None]:
    """Flush what was written to disk by the end of the block, which reads it meanwhile."""
    files = Files(spark, settings.output)
    with ThreadPoolExecutor(1) as pool:
        flushed = pool.submit(files.flush, *written.folders)
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
    """Write partial sums, which have `lease_id`, by lease; return the folders that have any.

    Raises HandlerError for sums of other leases, OutputNotShared when the driver does not find what the tasks wrote.
    """
    files = Files(spark, settings.output)
    staging = _staging(settings, state, name, sorted(lease_ids))
    # A few rows by lease: one task, one file each.
    rows = _write(partial.coalesce(1).withColumn(_LEASE, fn.col("lease_id")), staging, _LEASE)
    wanted = {at: f"{_LEASE}={at}" for at in sorted(lease_ids)}
    _refuse_other_leases(files.names(staging), set(wanted.values()))
    moved = _move_staged(files, staging, settings, state, name, wanted)
    all_read_back(name, rows, files.rows(*moved.values()))
    files.flush(*moved.values())
    files.remove(staging)
    return moved


def _staging(settings: Settings, state: State, sink: str, lease_ids: Sequence[int]) -> str:
    # The first and the last lease are enough to tell whether a run still works there; a name has 255 bytes.
    ends = sorted({lease_ids[0], lease_ids[-1]})
    return (
        f"{sink_root(settings, sink)}/{STAGING}/leases={state.outputs.state_id()}-{','.join(map(str, ends))}"
    )


def _write(records: DataFrame, folder: str, *partition_columns: str) -> int:
    """Write a folder, replacing one that is there; return how many rows the tasks wrote."""
    counted = Counted(records)
    counted.records.write.mode("overwrite").partitionBy(*partition_columns).parquet(folder)
    return counted.rows


def _refuse_other_leases(staged: Sequence[str], wanted: Set[str]) -> None:
    """Raise HandlerError when rows were staged under a lease that this round does not have."""
    for name in staged:
        column, _, value = name.partition("=")
        if column in (_PART, _LEASE) and name not in wanted:
            lease_id = "null" if value == _NULL else int(value) // (2 if column == _PART else 1)
            raise HandlerError(
                f"the result has rows with lease_id {lease_id}, which this round does not have: every row must pass "
                "on topic, partition, offset and lease_id of its record as it got them"
            )


def _move_staged(
    files: Files, staged: str, settings: Settings, state: State, sink: str, names: Mapping[int, str]
) -> dict[int, str]:
    """Move what was staged under a name to the folder of its lease; where nothing was staged, remove that folder."""
    have = set(files.names(staged))
    moved: dict[int, str] = {}
    for lease_id, name in names.items():
        target = lease_folder(settings, state, sink, lease_id)
        if name in have:
            files.replace(f"{staged}/{name}", target)
            moved[lease_id] = target
        else:
            files.remove(target)
    return moved
