"""The raw records that a group has kept: where they are, whether their files are intact, and the records from them.

The config `sharequeue.retry.keep.enable` decides whether records are kept and read from there at all. Those of a
compacted topic are not: the log may have lost a record, or its key a tombstone, since it was kept. Kept files are
never a second truth. Before anything is read from them, their offsets are compared with those in the state. Files
that are missing or damaged are forgotten, with a warning, and their records are read from the log in the same round.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from sharequeue.domain.errors import first_line
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, KeptRecords, KeptRow, Lease
from sharequeue.groups.configs import GroupConfigs
from sharequeue.spark.job_errors import SPARK_ERRORS, cause_of
from sharequeue.spark.outcomes.offset_sets import OffsetGroup, offset_sets_of_folders
from sharequeue.spark.outcomes.outcomes import Acknowledgement
from sharequeue.spark.output.damaged import is_damage, named_folders
from sharequeue.spark.output.files import Files, literal
from sharequeue.spark.output.folders import KeptAs, has_headers, remove_lease
from sharequeue.spark.output.lease_files import LeaseFiles
from sharequeue.spark.output.reachable import whole_text
from sharequeue.spark.raw_records import DAMAGED, as_kept
from sharequeue.spark.reading.kept import divide, is_scattered, is_sparse, records_from
from sharequeue.spark.reading.source import TopicSource
from sharequeue.state import State

_log = logging.getLogger(__name__)

_ROW = "topic string, partition int, offset long, lease_id long, error string"
"""The columns of a kept row that are read, in DDL."""


@dataclass(frozen=True, slots=True)
class KeptReads:
    """What is kept of the records of leases, in intact files."""

    rows: Mapping[int, Sequence[KeptRow]] = field(default_factory=dict)
    """By lease id."""
    in_files: Mapping[int, OffsetSet] = field(default_factory=dict)
    """The offsets in the files of each lease that has kept records."""


NOTHING_KEPT = KeptReads()


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """The files of raw records of one group, as a run or a lease uses them."""

    group: str
    source: TopicSource
    files: Files
    topics: frozenset[str]
    """The topics whose records are kept."""
    may_forget: bool = True
    """Whether damaged files are forgotten. A program that only leases may run where they cannot be reached."""

    @classmethod
    def of(
        cls,
        source: TopicSource,
        configs: GroupConfigs,
        topics: Collection[str],
        *,
        files: Files | None = None,
        may_forget: bool = True,
    ) -> Self | None:
        """Return the files of a group; None if it keeps nothing. Raises BrokerNotAvailable and
        OutputNotReachable.

        A topic whose configs the broker does not show counts as compacted. `files` is the file system of the output,
        if the caller has it.
        """
        if not configs.retry_keep_enable:
            return None
        found = source.topics.configs_of(topics)
        files = files or Files(source.spark, source.settings.output)
        some = (topic for topic, of in found.items() if "compact" not in of.get("cleanup.policy", ""))
        return cls(configs.group_id, source, files, frozenset(some), may_forget)

    @property
    def keep(self) -> KeptAs:
        """How records are kept."""
        return KeptAs.WITH_HEADERS if self.source.headers else KeptAs.WITHOUT_HEADERS

    def find(self, leases: Sequence[Lease]) -> KeptReads:
        """Return what of these leases is kept in intact files. Damaged files are forgotten, with a warning."""
        again = [
            lease
            for lease in leases
            if lease.share_partition.topic in self.topics
            and any(delivery.delivery_count > 1 for delivery in lease.deliveries)
        ]
        found = {
            at: [row for row in rows if has_headers(row.location) or not self.source.headers]
            for at, rows in self.source.state.kept.of(again).items()
        }
        asked: dict[int, KeptRow] = {}
        for row in (row for rows in found.values() for row in rows):
            before = asked.get(row.lease_id)
            offsets = row.offsets if before is None else before.offsets | row.offsets
            asked[row.lease_id] = KeptRow(row.lease_id, row.location, offsets)
        in_files, damaged = self._checked(asked)
        if damaged:
            self._forget([asked[at] for at in damaged], next(iter(damaged.values())))
        intact = {
            at: some
            for at, rows in found.items()
            if (some := [row for row in rows if row.lease_id in in_files])
        }
        return KeptReads(intact, in_files)

    def records(self, leases: Sequence[Lease], kept: KeptReads, *, by_offset: bool = False) -> DataFrame:
        """Return the records of these leases, from kept files and from the log (`TopicSource.records`)."""
        pieces, rest = divide(leases, kept.rows)
        if not pieces:
            return self.source.records(leases, by_offset=by_offset)
        folders = sorted({piece.row.location for piece in pieces})
        try:
            rows = _rows_in(self.source.spark, folders)
        except AnalysisException as error:  # a folder has gone since
            if not self.found_damaged(error, leases, kept):
                raise
            return self.source.records(leases, by_offset=by_offset)
        records = records_from(rows, pieces, kept.in_files, headers=self.source.headers)
        return records.unionByName(self.source.records(rest, by_offset=by_offset)) if rest else records

    def found_damaged(self, error: Exception, leases: Sequence[Lease], kept: KeptReads) -> bool:
        """Return whether an error of a job that read these leases comes from kept files. They are then forgotten,
        with a warning.
        """
        pieces, _ = divide(leases, kept.rows)
        rows = {piece.row.lease_id: piece.row for piece in pieces}
        text = whole_text(error)
        changed = [row for row in rows.values() if f"{DAMAGED} {row.lease_id}" in text]
        missing = [row for row in rows.values() if is_damage(error, [row.location])]
        if not (changed or missing):
            return False
        self._forget(changed or missing, cause_of(error))
        return True

    def _checked(self, asked: Mapping[int, KeptRow]) -> tuple[dict[int, OffsetSet], dict[int, str]]:
        """Return the offsets in the files of each keeper, if they have one row for each of those asked for; and the
        keepers of other files, with the reason.
        """
        in_files: dict[int, OffsetSet] = {}
        damaged: dict[int, str] = {}
        if not asked:
            return in_files, damaged
        try:
            found = _by_keeper(self._offsets(row.location for row in asked.values()))
        except Exception as error:
            _log.debug("kept files are read one by one: %s", error)
            found = {}
        for at, row in asked.items():
            reason = "records are missing in it, or are there twice"
            if not _has(found.get(at), row.offsets):
                # Alone: files of another lease may have failed.
                try:
                    found |= _by_keeper(self._offsets([row.location]))
                except Exception as error:
                    if isinstance(error, SPARK_ERRORS) and not is_damage(error, [row.location]):
                        raise
                    reason = cause_of(error)
            if _has(found.get(at), row.offsets):
                in_files[at] = found[at][0]
            else:
                damaged[at] = reason
        return in_files, damaged

    def _offsets(self, locations: Iterable[str]) -> Sequence[OffsetGroup]:
        return _offsets_in(self.source.spark, self.files, sorted(set(locations)))

    def _forget(self, rows: Sequence[KeptRow], reason: str) -> None:
        if self.may_forget:
            self.source.state.kept.drop(self.group, [row.lease_id for row in rows])
        _log.warning(
            "kept records cannot be read: %s. They are read from the log. Somebody has removed or changed the files. "
            "The error: %s",
            named_folders([row.location for row in rows]),
            reason,
        )


def sweep_kept(
    spark: SparkSession,
    settings: Settings,
    state: State,
    configs: GroupConfigs,
    *,
    files: Files | None = None,
    dry_run: bool = False,
) -> list[str]:
    """Remove the kept records of a group that no lease needs any more, or all if it keeps none; return their folders.

    `files` is the file system of the output, if the caller has it. With `dry_run` nothing is removed.
    """
    rows = state.kept.removable(configs.group_id, all_rows=not configs.retry_keep_enable)
    if rows and not dry_run:
        output = files or Files(spark, settings.output)
        for row in rows:
            # The output may have been elsewhere when they were kept.
            here = row.location.startswith(f"{settings.output}/")
            remove_lease(output if here else Files(spark, row.location), row.location)
        # After the files: if this is killed in between, the next one finds the rows again.
        state.kept.drop(configs.group_id, [row.lease_id for row in rows])
    return [row.location for row in rows]


def keep_scanned(
    files: KeptFiles, lease_files: LeaseFiles, leases: Sequence[Lease], kept: KeptReads
) -> tuple[KeptReads, dict[int, KeptRecords]]:
    """Keep the records of these leases that come again, are scattered and are not kept yet, for a handler that does
    not pass on the raw record: one scan writes them, so that this delivery and all later ones read files.

    Return what is kept then, and what is new of it, by lease id. Does nothing if that takes longer than it saves, or
    if the records cannot be scanned.
    """
    again = [
        replace(lease, deliveries=deliveries)
        for lease in divide(leases, kept.rows)[1]
        if lease.share_partition.topic in files.topics and not lease.suspects and not lease.last_attempt
        if (deliveries := tuple(each for each in lease.deliveries if each.delivery_count > 1))
    ]
    if not is_scattered(again):
        return kept, {}
    try:
        written = lease_files.write(as_kept(files.source.records(again)), again)
        found = kept_in(files.source.spark, files.files, written.kept)
    except SPARK_ERRORS as error:  # the job of the round finds out why
        _log.debug("records that come again are not kept: %s", first_line(error))
        return kept, {}
    rows = {at: [*kept.rows.get(at, ()), KeptRow(at, of.location, of.offsets)] for at, of in found.items()}
    in_files = {at: of.offsets for at, of in found.items()}
    return KeptReads({**kept.rows, **rows}, {**kept.in_files, **in_files}), found


def kept_in(spark: SparkSession, files: Files, folders: Mapping[int, str]) -> dict[int, KeptRecords]:
    """Return the raw records in the folders of leases, by lease id.

    A lease with two raw records for one offset, which a handler with several rows for a record may give, has none.
    """
    if not folders:
        return {}
    found = _by_keeper(_offsets_in(spark, files, list(folders.values())))
    return {
        at: KeptRecords(folders[at], offsets)
        for at, (offsets, rows) in found.items()
        if rows == offsets.count
    }


def few_released(lease: Lease, wanted: Acknowledgement, raw: KeptRecords | None) -> KeptRecords | None:
    """Return those raw records of a lease that its acknowledgement releases, if these are few of the lease."""
    released = wanted.outcomes.get(AcknowledgeType.RELEASE, EMPTY)
    kept = None if raw is None else raw.within(released)
    return kept if kept is not None and is_sparse(kept.offsets, lease.offsets) else None


def _rows_in(spark: SparkSession, folders: Sequence[str]) -> DataFrame:
    reader = spark.read.options(ignoreMissingFiles="false", ignoreCorruptFiles="false")
    return reader.schema(_ROW).parquet(*map(literal, folders))


def _offsets_in(spark: SparkSession, files: Files, folders: Sequence[str]) -> Sequence[OffsetGroup]:
    return offset_sets_of_folders(files, folders, lambda: _rows_in(spark, folders), "lease_id")


def _by_keeper(groups: Sequence[OffsetGroup]) -> dict[int, tuple[OffsetSet, int]]:
    return {lease_id: (offsets, rows) for (lease_id,), offsets, rows in groups}


def _has(found: tuple[OffsetSet, int] | None, asked: OffsetSet) -> bool:
    """Return whether files have each of these offsets, and none of their offsets twice."""
    offsets, rows = found or (EMPTY, 0)
    return rows == offsets.count and not asked - offsets
