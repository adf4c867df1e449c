"""The report of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sharequeue.domain.names import plural
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.results.table import Shown, Table

_COUNTS = ("accepted", "accepted_rows", "released", "rejected", "without_row")
"""Counts of records, except `accepted_rows`."""


@dataclass(frozen=True, slots=True)
class ReplayedPartition:
    """The records of one topic-partition that a replay read."""

    topic: str
    partition: int
    topic_id: str
    offsets: OffsetSet
    """The offsets of records that are in the log, without gaps."""

    @property
    def records(self) -> int:
        """The number of these records."""
        return self.offsets.count


@dataclass(frozen=True, slots=True)
class ReplayReport(Shown):
    """The result of a replay, in records; after a dry run only the records that it would read.

    All counts are read from the files that were written. `accepted_rows` exceed `accepted` if the handler makes
    several rows of one record. `without_row` counts records without a row, which get the job's outcome of that name.
    """

    group: str
    sink: str
    name: str
    selection: str
    """A description of the selected records."""
    partitions: tuple[ReplayedPartition, ...]
    path: str | None = None
    """The folder with `accepted` and `exceptions`; None after a dry run."""
    accepted: int = 0
    accepted_rows: int = 0
    released: int = 0
    rejected: int = 0
    without_row: int = 0
    missing: tuple[str, ...] = ()
    """A description of what retention had removed, if the replay was allowed to continue without it."""
    scanned: int = 0
    """Offsets that were read to find the records."""
    seconds: float = field(default=0.0, compare=False)

    @property
    def records(self) -> int:
        """The number of records read."""
        return sum(each.records for each in self.partitions)

    @property
    def dry_run(self) -> bool:
        """Whether nothing was handled or written."""
        return self.path is None

    @property
    def accepted_path(self) -> str | None:
        """The folder of accepted rows."""
        return self.path and f"{self.path}/accepted"

    @property
    def exceptions_path(self) -> str | None:
        """The folder of released and rejected records, with `outcome` and `error`."""
        return self.path and f"{self.path}/exceptions"

    def figures(self) -> dict[str, int]:
        """Return the counts by name."""
        return {name: getattr(self, name) for name in ("records", *_COUNTS)}

    def plain(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        return {
            **{
                name: getattr(self, name)
                for name in ("group", "sink", "name", "selection", "dry_run", "path")
            },
            **({"records": self.records} if self.dry_run else self.figures()),
            "missing": list(self.missing),
            "scanned": self.scanned,
            "seconds": round(self.seconds, 3),
            "partitions": [
                {
                    **{name: getattr(each, name) for name in ("topic", "partition", "topic_id", "records")},
                    "offsets": str(each.offsets),
                }
                for each in self.partitions
            ],
        }

    @classmethod
    def of_plain(cls, found: Mapping[str, Any]) -> ReplayReport:
        """Return the report that `plain` wrote."""
        names = ("group", "sink", "name", "selection", "path", "scanned", "seconds", *_COUNTS)
        partitions = (
            ReplayedPartition(
                each["topic"], each["partition"], each["topic_id"], OffsetSet.parse(each["offsets"])
            )
            for each in found["partitions"]
        )
        return cls(
            **{name: found[name] for name in names},
            missing=tuple(found["missing"]),
            partitions=tuple(partitions),
        )

    def table(self) -> Table:
        """Return a row for each topic-partition, and the outcomes."""
        verb = "would replay" if self.dry_run else "replayed"
        outcomes = ", ".join(
            f"{count:,} {name.replace('_', ' ')}"
            for name, count in self.figures().items()
            if name != "records" and (count or name == "accepted")
        )
        return Table(
            f"{verb} {plural(self.records, 'record')} of group {self.group}, {self.selection}, in "
            f"{self.seconds:,.1f} s",
            ("topic", "partition", "records", "first", "last"),
            [
                (each.topic, each.partition, each.records, str(each.offsets.first), str(each.offsets.end - 1))
                for each in self.partitions
                if each.offsets
            ],
            (
                *self.missing,
                None if self.dry_run else outcomes,
                None if self.dry_run else f"output: {self.path}",
            ),
        )


_LEFT_OUT = "{} left out: put back from the dead-letter topic, and so processed at another offset"


@dataclass(frozen=True, slots=True)
class PublishReport(Shown):
    """The result of publishing a replay, or of its dry run, in rows."""

    group: str
    sink: str
    name: str
    records: int
    """Records that the replay read."""
    redriven: int
    """Those of them that are left out: their dead letters were put back, and the group has them at other offsets."""
    hidden_rows: int
    """Rows taken out of the live output."""
    added_rows: int
    """Rows of the replay that were put in."""
    folders: int
    """Folders that were rewritten; 0 for a table."""
    summaries: tuple[str, ...]
    """Summaries that were recomputed."""
    where: str
    published: bool

    def table(self) -> Table:
        """Return its figures."""
        done = "published" if self.published else "would publish"
        return Table(
            f"{done} replay {self.name} of group {self.group} into {self.where}",
            ("records", "redriven", "rows out", "rows in", "folders"),
            [(self.records, self.redriven, self.hidden_rows, self.added_rows, self.folders)],
            (
                _LEFT_OUT.format(plural(self.redriven, "record")) if self.redriven else None,
                f"recomputed: {', '.join(self.summaries)}" if self.summaries else None,
                None if self.published else "nothing was changed: execute to publish",
            ),
        )
