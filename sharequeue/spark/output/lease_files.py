"""Write the rows of a lease to files, all of them or none.

Accepted rows, exceptions and raw records to keep come from one pass over the records. Spark writes them into a folder
used by no other write (`folders.py`), and nothing is moved afterwards: on an object store a rename is a copy. The
files count only once the lease's acknowledgement has committed (`manifest.py`). The files of a failed or killed write
are swept. If a task runs twice, Spark's committer shows the files of one attempt (`session.py` chooses the committer
for S3). Every sink starts from these files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Lease
from sharequeue.spark.handler import ACCEPT, KEPT_AS_GIVEN, LEASE, REJECT, HandlerError
from sharequeue.spark.output.files import Files, literal
from sharequeue.spark.output.folders import KeptAs, SinkNames, is_kept, lease_in, new_folder, remove_lease
from sharequeue.spark.output.reachable import failed_by_store
from sharequeue.spark.output.shared_folder import Counted, all_read_back
from sharequeue.spark.raw_records import KEEP
from sharequeue.spark.sql_texts import select_texts
from sharequeue.state import State

_LEASE_ID, _OFFSET, _REASON = "sharequeue_lease_id", "sharequeue_offset", "sharequeue_reason"
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """The folders of a round that contain files, by lease id."""

    accepted: dict[int, str]
    exceptions: dict[int, str]
    rows: int
    """Rows in these, as counted by the tasks that wrote them."""
    kept: dict[int, str] = field(default_factory=dict)
    """The folders of raw records."""

    @property
    def folders(self) -> list[str]:
        """All folders of rows with an outcome."""
        return [*self.accepted.values(), *self.exceptions.values()]

    def with_rewritten(self, leases: Sequence[Lease], files: WrittenFiles) -> WrittenFiles:
        """Return the folders of the round after `files` of some leases took the place of their earlier ones."""
        ours = {lease.lease_id for lease in leases}
        accepted, exceptions = (
            {at: folder for at, folder in by_lease.items() if at not in ours}
            for by_lease in (self.accepted, self.exceptions)
        )
        # The number of rows must be the same: reading them back compares it.
        return WrittenFiles(accepted | files.accepted, exceptions | files.exceptions, self.rows, self.kept)


@dataclass(frozen=True, slots=True)
class LeaseFiles:
    """The files of the leases of a run: where they are written, and under which names."""

    spark: SparkSession
    settings: Settings
    state: State
    names: SinkNames
    files: Files
    """The file system of the output, created once because that takes longer than most calls to it."""
    keep: KeptAs | None = None
    """How raw records are kept; None if results have none (`raw_records.kept_apart`)."""

    def write(self, records: DataFrame, leases: Sequence[Lease]) -> WrittenFiles:
        """Write the handler's result for these leases, all of it or nothing. `durable` flushes it to disk.

        `records` has `outcome` and `error`. Raises HandlerError for rows of other leases.
        """
        lease_ids = [lease.lease_id for lease in leases]
        folder = new_folder(self.settings, self.state, self.names.sink, lease_ids)
        number, numbers = f"if(outcome = '{ACCEPT}', lease_id, -lease_id)", {*lease_ids}
        numbers |= {-lease_id for lease_id in lease_ids}
        rows = "count(1)"
        if self.keep is not None:
            others = f"if(outcome = '{KEEP}', {self.keep.value}L + lease_id, -lease_id)"
            # Accepted rows, the most, are compared once.
            number = f"if(outcome = '{ACCEPT}', lease_id, {others})"
            numbers |= {self.keep + lease_id for lease_id in lease_ids}
            rows = f"count(if({LEASE} > {KeptAs.WITH_HEADERS.value}L, null, 1))"
        count = _write(records, number, folder, rows)
        found = _found(self.files, folder, numbers)
        kept = {lease_in(at): path for at, path in found.items() if is_kept(at)}
        accepted = {at: path for at, path in found.items() if at > 0 and not is_kept(at)}
        return WrittenFiles(accepted, {-at: path for at, path in found.items() if at < 0}, count, kept)

    def rewrite(
        self,
        before: WrittenFiles,
        columns: StructType,
        leases: Sequence[Lease],
        change: Callable[[DataFrame], DataFrame],
    ) -> WrittenFiles:
        """Write the rows of these leases again, from their files with these columns, after a `change` of their
        outcomes, and remove the files.
        """
        ours = {lease.lease_id for lease in leases}
        folders = [
            at for by_lease in (before.accepted, before.exceptions) for i, at in by_lease.items() if i in ours
        ]
        written = self.write(change(self.spark.read.schema(columns).parquet(*map(literal, folders))), leases)
        for folder in folders:
            remove_lease(self.files, folder)
        return replace(written, kept={i: at for i, at in before.kept.items() if i in ours})

    def write_summary(self, name: str, partial: DataFrame, lease_ids: Sequence[int]) -> dict[int, str]:
        """Write partial sums, which have `lease_id`, by lease; return the folders that contain any.

        Raises HandlerError for sums of other leases, OutputNotShared if the driver does not find the files of the
        tasks.
        """
        folder = new_folder(self.settings, self.state, name, lease_ids)
        # A few rows for each lease: one task, one file each.
        rows = _write(partial.coalesce(1), "lease_id", folder)
        found = _found(self.files, folder, set(lease_ids))
        all_read_back(name, rows, self.files.rows(*found.values()))
        self.files.flush(*found.values())
        return found

    @contextmanager
    def durable(self, written: WrittenFiles) -> Iterator[None]:
        """Flush the written files to disk while the block reads them; they are flushed when it ends."""
        with ThreadPoolExecutor(1) as pool:
            flushed = pool.submit(self.files.flush, *written.folders, *written.kept.values())
            yield
            flushed.result()


def rejected(rows: DataFrame, refused: Mapping[int, Mapping[int, str]]) -> DataFrame:
    """Return the rows, with these records rejected: the reasons by lease id and offset."""
    reasons = [(i, offset, reason) for i, of_lease in refused.items() for offset, reason in of_lease.items()]
    given = rows.sparkSession.createDataFrame(
        pa.table(dict(zip((_LEASE_ID, _OFFSET, _REASON), map(list, zip(*reasons, strict=True)), strict=True)))
    )
    same = (rows["lease_id"] == given[_LEASE_ID]) & (rows["offset"] == given[_OFFSET])
    found = fn.col(_REASON).isNotNull()
    joined = rows.join(given, same, "left").withColumns(
        {
            "outcome": fn.when(found, fn.lit(REJECT)).otherwise(fn.col("outcome")),
            "error": fn.when(found, fn.col(_REASON)).otherwise(fn.col("error")),
        }
    )
    return joined.drop(_LEASE_ID, _OFFSET, _REASON)


def _write(records: DataFrame, lease: str, folder: str, rows: str = "count(1)") -> int:
    """Write a new folder, partitioned by `lease`, an expression; return how many `rows` the tasks wrote."""
    counted = Counted(select_texts(records, "*", f"cast({lease} as bigint) as {LEASE}"), rows)
    # Append mode saves the check for an existing folder.
    with failed_by_store(folder):
        counted.records.write.mode("append").partitionBy(LEASE).parquet(folder)
    return counted.rows


def _found(files: Files, folder: str, wanted: Set[int]) -> dict[int, str]:
    """Return the folders that were written, by lease id. Raise HandlerError for a folder that is not `wanted`: rows
    of a lease that this round does not have.
    """
    found: dict[int, str] = {}
    for name in files.names(folder):
        column, _, value = name.partition("=")
        if column != LEASE:
            continue
        lease_id = None if value == _NULL else int(value)
        if lease_id is None or lease_id not in wanted:
            files.remove(folder)
            raise HandlerError(
                f"the result has rows with lease_id {'null' if lease_id is None else lease_in(lease_id)}, which this "
                f"round does not have: {KEPT_AS_GIVEN}"
            )
        found[lease_id] = f"{folder}/{name}"
    if not found:
        files.remove(folder)
    return found
