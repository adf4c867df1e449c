"""The default sink: the files are the output, and the manifest counts each lease once.

To publish a replay into it, `FilesByLease` rewrites the folders that have rows of the replayed records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from sharequeue.spark.outcomes.acknowledging import ToAcknowledge, acknowledge_all
from sharequeue.spark.outcomes.offset_sets import offset_sets
from sharequeue.spark.output.compaction import CompactionFailed
from sharequeue.spark.output.files import Files, literal
from sharequeue.spark.output.folders import SinkNames, no_files, sink_root
from sharequeue.spark.output.manifest import ELSEWHERE, read_counted
from sharequeue.spark.output.shared_folder import Counted, all_read_back
from sharequeue.spark.reading.plan import TopicPartition
from sharequeue.spark.sinks.interface import (
    Accepted,
    OpenSink,
    Replaced,
    Replacement,
    Sink,
    SinkContext,
    Stored,
    WrittenRound,
)
from sharequeue.words.errors import InvalidRequest
from sharequeue.words.offsets import EMPTY, OffsetSet
from sharequeue.words.settings import Settings
from sharequeue.words.settings.addresses import is_uri
from sharequeue.words.values import Acknowledged, LeaseOutput, OutputRow

AT = ["topic", "partition", "offset"]


class FilesByLease:
    """The files of a sink, and the replacement of some of their rows."""

    def __init__(self, context: SinkContext, replacement: Replacement) -> None:
        self.replacement = replacement
        self.group, self.sink = context.names.group, context.names.sink
        self.settings, self.state, self.spark = context.settings, context.state, context.spark
        self.files = Files(context.spark, context.settings.output)

    def replace(self, execute: bool) -> Replaced:
        """Replace the rows; without `execute` only count them. Raises InvalidRequest and CompactionFailed."""
        counted = self.state.outputs.counted(self.group, self.sink)
        owners, hidden = self._owners(counted)
        touched = set(owners)
        folders = sorted({row.location for row in counted if row.lease_id in touched and row.records})
        # Leases without accepted records have no folder: their manifest row points to the place of the new rows.
        replaced = sorted({row.location for row in counted if row.lease_id in touched} | set(folders))
        summaries = tuple(self.replacement.summaries) if touched else ()
        if execute and touched:
            self._replace(counted, owners, replaced, folders, hidden)
        return Replaced(sink_root(self.settings, self.sink), hidden, len(folders), summaries)

    def _owners(self, counted: Sequence[OutputRow]) -> tuple[dict[int, dict[TopicPartition, OffsetSet]], int]:
        """Return the records of the replacement by the lease that owns them from now on, and the number of hidden
        rows.

        A record belongs to the lease that accepted it. If none did, it belongs to the last lease of its partition.
        """
        wanted = self.replacement.offsets
        rows = [row for row in counted if (row.topic, row.partition) in wanted]
        folders = sorted({row.location for row in rows if row.records})
        if elsewhere := next((folder for folder in folders if folder.startswith(ELSEWHERE)), None):
            raise InvalidRequest(
                f"Rows of {self.sink} are in {elsewhere.removeprefix(ELSEWHERE)}, others in files: publish into "
                "both with a program of your own."
            )
        owners: dict[int, dict[TopicPartition, OffsetSet]] = {}
        left = dict(wanted)
        hidden = 0
        if folders:
            live = read_counted(self.spark, folders)
            for (lease_id, topic, partition), offsets, _ in sorted(
                offset_sets(live, "lease_id", *AT[:2]), key=lambda group: group[0]
            ):
                at = topic, partition
                if at in wanted and (both := offsets & wanted[at]):
                    owners.setdefault(lease_id, {})[at] = both & left[at]
                    left[at] = left[at] - both
            if owners:
                hidden = live.join(self._records(owners), AT, "left_semi").count()
        for at, some in left.items():
            if not some:
                continue
            home = max((row.lease_id for row in rows if (row.topic, row.partition) == at), default=None)
            near = max((lease_id for lease_id, found in owners.items() if at in found), default=home)
            if near is None:
                raise InvalidRequest(
                    f"Group {self.group} has acknowledged no output of {at[0]}-{at[1]} in {self.sink}: there "
                    "is nothing to replace."
                )
            place = owners.setdefault(near, {})
            place[at] = place.get(at, EMPTY) | some
        return owners, hidden

    def _records(self, owners: Mapping[int, Mapping[TopicPartition, OffsetSet]]) -> DataFrame:
        """Return `topic, partition, offset` of every record of the replacement, and its `owner`."""
        runs = [
            (topic, partition, first, end - 1, lease_id)
            for lease_id, found in owners.items()
            for (topic, partition), offsets in found.items()
            for first, end in offsets.ranges
        ]
        names = ("topic", "partition", "first", "last", "owner")
        kinds = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int64())
        columns = [pa.array([run[at] for run in runs], kind) for at, kind in enumerate(kinds)]
        table = pa.table(dict(zip(names, columns, strict=True)))
        return self.spark.createDataFrame(table).selectExpr(
            "topic", "partition", "explode(sequence(first, last)) as offset", "owner"
        )

    def _replace(
        self,
        counted: Sequence[OutputRow],
        owners: Mapping[int, Mapping[TopicPartition, OffsetSet]],
        replaced: Sequence[str],
        folders: Sequence[str],
        hidden: int,
    ) -> None:
        sink, replacement, touched = self.sink, self.replacement, set(owners)
        records = self._records(owners)
        replayed = self.spark.read.parquet(literal(replacement.accepted_path)).drop("lease_id")
        added = replayed.join(records.withColumnRenamed("owner", "lease_id"), AT)
        before = sum(row.records for row in counted if row.location in set(replaced))
        rows = added
        if folders:
            every = sorted({row.location for row in counted if row.location in set(replaced) and row.records})
            live = read_counted(self.spark, every)
            if (found := live.count()) != before:
                raise CompactionFailed(
                    f"{len(every)} folders of {sink} count {before} rows, and {found} were read from them: check "
                    "whether files were removed or added by hand. Nothing was replaced."
                )
            rows = live.join(records, AT, "left_anti").unionByName(added, allowMissingColumns=True)
        new = self._write(sink, rows, before - hidden + replacement.accepted_rows)
        by_lease = {row["lease_id"]: row["count"] for row in new.rows.groupBy("lease_id").count().collect()}
        moves = [self._move(counted, new, replaced, before, by_lease)]
        for name, partial in replacement.summaries.items():
            moves.append(self._summary(name, partial, new.rows, touched, by_lease))
        with self.state.transaction() as (_, joined):
            for move in moves:
                joined.outputs.commit_replacement(
                    move.compaction_id, move.replaced, move.before, move.records
                )

    def _summary(
        self,
        name: str,
        partial: Callable[[DataFrame], DataFrame],
        accepted: DataFrame,
        touched: set[int],
        by_lease: Mapping[int, int],
    ) -> _Move:
        """Rewrite the folders with partial sums of these leases, with the sums of other leases in them."""
        counted = self.state.outputs.counted(self.group, name)
        replaced = sorted({row.location for row in counted if row.lease_id in touched})
        if not replaced:
            raise InvalidRequest(
                f"The summary {name} has no output of these leases yet: the new rows cannot be added to it."
            )
        old = read_counted(self.spark, replaced).filter(~fn.col("lease_id").isin(list(touched)))
        sums = partial(accepted.filter(fn.col("lease_id").isin(list(touched))))
        new = self._write(name, old.unionByName(sums, allowMissingColumns=True), None)
        before = sum(row.records for row in counted if row.location in set(replaced))
        others = {row.lease_id: row.records for row in counted if row.location in set(replaced)}
        return self._move(
            counted, new, replaced, before, {**others, **{at: by_lease.get(at, 0) for at in touched}}
        )

    def _write(self, sink: str, rows: DataFrame, expected: int | None) -> _New:
        """Write a folder that is not in a manifest yet. It is announced in the state, so that a sweep finds it in any
        case.
        """
        compaction_id = uuid4()
        location = f"{sink_root(self.settings, sink)}/compacted={compaction_id}"
        self.state.outputs.begin_compaction(compaction_id, self.group, sink, location)
        counted = Counted(rows)
        counted.records.write.mode("append").parquet(location)
        written = counted.rows
        all_read_back(sink, written, self.files.rows(location))
        if expected is not None and written != expected:
            raise CompactionFailed(
                f"{expected} rows of {sink} were expected and {written} were written: the new rows or the output "
                "have changed meanwhile. Nothing was replaced."
            )
        self.files.flush(location)
        return _New(compaction_id, self.spark.read.parquet(literal(location)))

    def _move(
        self,
        counted: Sequence[OutputRow],
        new: _New,
        replaced: Sequence[str],
        before: int,
        by_lease: Mapping[int, int],
    ) -> _Move:
        leases = {row.lease_id for row in counted if row.location in set(replaced)}
        records = {lease_id: by_lease.get(lease_id, 0) for lease_id in sorted(leases)}
        return _Move(new.compaction_id, tuple(replaced), before, records)


@dataclass(frozen=True, slots=True)
class _New:
    """A new folder, and its rows."""

    compaction_id: UUID
    rows: DataFrame


@dataclass(frozen=True, slots=True)
class _Move:
    """The change in the manifest of one sink: the replaced folders, their number of records, and the new numbers by
    lease.
    """

    compaction_id: UUID
    replaced: tuple[str, ...]
    before: int
    records: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ParquetByLease(Sink):
    """The files are the output. Readers use the manifest, which counts each file once."""

    @contextmanager
    def open(self, context: SinkContext) -> Iterator[OpenSink]:
        """Prepare a run."""
        yield _OpenFiles(context)

    def stored(self, settings: Settings, names: SinkNames) -> Stored:
        """Return the folder of the sink; the manifest has the files of it that count."""
        root = sink_root(settings, names.sink)
        uri = root if is_uri(root) else Path(root).absolute().as_uri()
        return Stored("parquet", uri=uri, for_the_queue=True)

    def replace(self, context: SinkContext, replacement: Replacement, *, execute: bool) -> Replaced:
        """Rewrite the folders that have rows of these records. Raises InvalidRequest and CompactionFailed."""
        return FilesByLease(context, replacement).replace(execute)


@dataclass(frozen=True, slots=True)
class _OpenFiles(OpenSink):
    context: SinkContext
    overlaps = True

    def acknowledge(self, round: WrittenRound) -> list[Acknowledged]:
        with round.stage("acknowledge"):
            given = [
                ToAcknowledge(each.lease, each.acknowledgement, [self._output(each), *each.outputs])
                for each in round.leases
            ]
            return acknowledge_all(self.context.state, round.keeper, given)

    def _output(self, accepted: Accepted) -> LeaseOutput:
        sink, state = self.context.names.sink, self.context.state
        folder = accepted.folder or no_files(self.context.settings, state, sink, accepted.lease.lease_id)
        return LeaseOutput(sink, folder, accepted.rows)
