"""What did a replay read, and what became of the records?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sharequeue.offsets import OffsetSet
from sharequeue.spark.showing import Shown, Table


@dataclass(frozen=True, slots=True)
class ReplayedPartition:
    """The records of one topic-partition that a replay read."""

    topic: str
    partition: int
    topic_id: str
    offsets: OffsetSet
    """Of records that the log had; gaps are not among them."""

    @property
    def records(self) -> int:
        """How many there are."""
        return self.offsets.count


@dataclass(frozen=True, slots=True)
class ReplayReport(Shown):
    """What a replay did, in records; after a dry run only what it would read.

    All counts are read from the files that were written. `accepted_rows` are more than `accepted` where the handler
    makes several rows of one record. `dropped` are records without a row, which have the job's outcome for such.
    """

    group: str
    sink: str
    name: str
    selection: str
    """Which records were meant, in words."""
    partitions: tuple[ReplayedPartition, ...]
    path: str | None = None
    """The folder with `accepted` and `exceptions`; None after a dry run."""
    accepted: int = 0
    accepted_rows: int = 0
    released: int = 0
    rejected: int = 0
    dropped: int = 0
    dead_letters: int = 0
    """Records that would become dead letters at this delivery."""
    missing: tuple[str, ...] = ()
    """What retention had removed, where the replay was allowed to go on without it."""
    scanned: int = 0
    """Offsets that were read to find the records."""
    seconds: float = field(default=0.0, compare=False)

    @property
    def records(self) -> int:
        """How many records were read."""
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
        """Return its counts by name."""
        names = ("records", "accepted", "accepted_rows", "released", "rejected", "dropped", "dead_letters")
        return {name: getattr(self, name) for name in names}

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "group": self.group,
            "sink": self.sink,
            "name": self.name,
            "selection": self.selection,
            "dry_run": self.dry_run,
            "path": self.path,
            **(self.figures() if not self.dry_run else {"records": self.records}),
            "missing": list(self.missing),
            "scanned": self.scanned,
            "seconds": round(self.seconds, 3),
            "partitions": [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "topic_id": each.topic_id,
                    "records": each.records,
                    "offsets": str(each.offsets),
                }
                for each in self.partitions
            ],
        }

    @classmethod
    def of_plain(cls, found: Mapping[str, Any]) -> ReplayReport:
        """Return the report that `plain` wrote."""
        counts = ("accepted", "accepted_rows", "released", "rejected", "dropped", "dead_letters")
        return cls(
            **{
                name: found[name]
                for name in ("group", "sink", "name", "selection", "path", "scanned", "seconds")
            },
            **{name: found[name] for name in counts},
            missing=tuple(found["missing"]),
            partitions=tuple(
                ReplayedPartition(
                    each["topic"], each["partition"], each["topic_id"], OffsetSet.parse(each["offsets"])
                )
                for each in found["partitions"]
            ),
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
            f"{verb} {self.records:,} records of group {self.group}, {self.selection}, in {self.seconds:,.1f} s",
            ("topic", "partition", "records", "first", "last"),
            [
                (each.topic, each.partition, each.records, str(each.offsets.first), str(each.offsets.end - 1))
                for each in self.partitions
                if each.offsets
            ],
            (
                *self.missing,
                None if self.dry_run else f"{outcomes}; nothing of the live group was touched",
                None if self.dry_run else f"output: {self.path}",
            ),
        )
