"""The findings of a check, and the offsets where the next one continues.

Each check reads the dead-letter topic once, and continues where it ended. Its findings stay, so that a
check does not pass only because nothing new was written. A finding is dropped when the topic no longer has the
letter, when its position was read again, or when a person accepts it. Both are stored in the metadata of the check's
last evaluation. If they are lost, the topic is read again from its start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import dagster as dg

from sharequeue.dagster.quality.reading import Reading
from sharequeue.dagster.quality.reconciliation import BEGIN, Place
from sharequeue.dagster.tables import table
from sharequeue.words.offsets import OffsetSet
from sharequeue.words.values import SharePartition

CURSOR = "cursor"
SHOWN = 20
"""The number of rows in a check's table."""
_COLUMNS = {
    "dlq_partition": "int",
    "dlq_offset": "int",
    "source_topic": "string",
    "source_partition": "int",
    "source_offset": "int",
    "found": "string",
    "command": "string",
}
_HISTORY = 10
MISSING, INVENTED, DOUBLED = "missing", "invented", "doubled"
"""Findings of the reconciliation, which counts each kind."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A letter that breaks a check, or a record without a letter, which has neither partition nor offset."""

    found: str
    partition: int | None = None
    offset: int | None = None
    source_topic: str | None = None
    source_partition: int | None = None
    source_offset: int | None = None
    sequence: int | None = None
    """For a record without a letter, the number of its batch."""
    intact: bool = False
    """Whether a redrive of the letter sends the record as it was, and for the first time. It depends on the letter
    alone, so that all checks give the same advice for it."""

    @property
    def kind(self) -> str:
        """The kind of a finding of the reconciliation; an empty text for those of other checks."""
        return self.found if self.found in (MISSING, INVENTED, DOUBLED) else ""

    def record(self, topic: str) -> str:
        """Return topic, partition and offset of the record, or of the letter if it does not have them."""
        source = (self.source_topic, self.source_partition, self.source_offset)
        if None in source:
            return f"{topic}-{self.partition}@{self.offset}"
        return f"{self.source_topic}-{self.source_partition}@{self.source_offset}"

    def row(self, topic: str) -> tuple[int | str | None, ...]:
        """Return a row of the check's table, with a suitable command."""
        source = (self.source_topic, self.source_partition, self.source_offset)
        return (self.partition, self.offset, *source, self.found, self._command(topic))

    def _command(self, topic: str) -> str:
        if self.offset is None:
            return "the record has no letter: it is in its source topic until retention removes it"
        if self.intact:
            return f"sharequeue dlq redrive {topic} --offsets {self.partition}:{self.offset}"
        return f"sharequeue dlq show {topic} {self.partition} {self.offset}"


@dataclass(slots=True)
class Found:
    """The findings of one check in one reading."""

    elements: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """The number of findings, by kind; `findings` has the first."""
    findings: list[Finding] = field(default_factory=list)
    problem: str | None = None
    passed: bool = True


@dataclass(slots=True)
class Cursor:
    """The offsets up to which a check has read, and its findings that are still valid."""

    topic_id: str = ""
    next: dict[int, int] = field(default_factory=dict)
    places: dict[SharePartition, Place] = field(default_factory=dict)
    found: list[Finding] = field(default_factory=list)
    unlisted: Counter[str] = field(default_factory=Counter)
    """The number of findings that are not listed, by kind."""
    unlisted_in: dict[int, OffsetSet] = field(default_factory=dict)
    """The offsets of the topic, by partition, that may have them."""

    @classmethod
    def of(cls, instance: dg.DagsterInstance, key: dg.AssetCheckKey, group_id: str) -> Cursor:
        """Return the cursor of a check's last evaluation; an empty one if there is none or it cannot be read."""
        for record in instance.event_log_storage.get_asset_check_execution_history(key, _HISTORY):
            event = record.event.dagster_event if record.event else None
            if event is None or event.event_type != dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                continue
            kept = event.asset_check_evaluation_data.metadata.get(CURSOR)
            try:
                return cls.read(getattr(kept, "data", None), group_id)
            except (KeyError, TypeError, ValueError):
                return cls()
        return cls()

    @classmethod
    def read(cls, kept: Any, group_id: str) -> Cursor:
        """Return the cursor that `metadata` has stored."""
        return cls(
            kept["topic_id"],
            _by_partition(kept["next"]),
            {
                SharePartition(group_id, topic, partition): Place(sequence, offset)
                for topic, partition, sequence, offset in kept["places"]
            },
            [Finding(*each) for each in kept["found"]],
            Counter(kept["unlisted"]),
            {int(partition): OffsetSet.parse(offsets) for partition, offsets in kept["unlisted_in"].items()},
        )

    def accept(self) -> None:
        """Drop the findings."""
        self.found, self.unlisted, self.unlisted_in = [], Counter(), {}

    def begin(self, topic_id: str, *, full: bool) -> None:
        """Prepare to read a topic: from where this ended, or from the start if it was another topic or `full`."""
        if self.topic_id != topic_id:
            self.accept()
        if full or self.topic_id != topic_id:
            self.topic_id, self.next, self.places = topic_id, {}, {}

    def metadata(self) -> dg.JsonMetadataValue:
        """Return the cursor as metadata for the next check."""
        return dg.MetadataValue.json(
            {
                "topic_id": self.topic_id,
                "next": _as_kept(self.next),
                "places": [[at.topic, at.partition, *place] for at, place in sorted(self.places.items())],
                "found": [list(astuple(each)) for each in self.found],
                "unlisted": dict(self.unlisted),
                "unlisted_in": {str(partition): str(some) for partition, some in self.unlisted_in.items()},
            }
        )

    def after(self, reading: Reading, reconciled: Mapping[SharePartition, Place], found: Found) -> Cursor:
        """Return the cursor after a reading, with what it found and what is still valid of this one's findings.

        `reconciled` is the position up to which each source partition is reconciled now.
        """
        listed = [*found.findings, *self._still(reading, reconciled)]
        unlisted, unlisted_in = self._still_unlisted(reading)
        counts = found.counts + Counter(each.kind for each in listed[len(found.findings) :]) + unlisted
        left = counts - Counter(each.kind for each in listed[:SHOWN])
        if left.total() > unlisted.total():
            unlisted_in = {
                partition: OffsetSet.of((0, end)) for partition, end in reading.next.items() if end
            }
        return Cursor(
            reading.info.topic_id,
            {**self.next, **reading.next},
            {**self.places, **reconciled},
            listed[:SHOWN],
            left,
            unlisted_in if left else {},
        )

    @property
    def counts(self) -> Counter[str]:
        """The number of all findings, by kind."""
        return Counter(each.kind for each in self.found) + self.unlisted

    def _still(self, reading: Reading, reconciled: Mapping[SharePartition, Place]) -> list[Finding]:
        """Return the findings that are still valid and that this reading has not read again."""
        return [
            each
            for each in self.found
            if (
                self._unreconciled(each, reconciled)
                if each.offset is None
                else each.offset not in reading.done(each.partition or 0)
            )
        ]

    def _unreconciled(self, finding: Finding, reconciled: Mapping[SharePartition, Place]) -> bool:
        """Return whether this reading did not look for a record without a letter again.

        If Postgres no longer has the source partition, it no longer has the record.
        """
        place = Place(finding.sequence or 0, finding.source_offset or 0)
        for source, end in reconciled.items():
            if (source.topic, source.partition) == (finding.source_topic, finding.source_partition):
                return place <= self.places.get(source, BEGIN) or place > end
        return False

    def _still_unlisted(self, reading: Reading) -> tuple[Counter[str], dict[int, OffsetSet]]:
        """Return the number of findings that are not listed and may still be valid, and the offsets that may have
        them.

        It is all of them until each of these offsets was read again, or was removed from the topic.
        """
        left = {partition: some - reading.done(partition) for partition, some in self.unlisted_in.items()}
        left = {partition: some for partition, some in left.items() if some}
        return (self.unlisted, left) if left else (Counter(), {})


def _as_kept(by_partition: Mapping[int, int]) -> dict[str, int]:
    """Return the mapping for JSON, whose keys are strings."""
    return {str(partition): offset for partition, offset in sorted(by_partition.items())}


def _by_partition(kept: Mapping[str, Any]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in kept.items()}


def together(cursors: Mapping[str, Cursor]) -> list[list[str]]:
    """Group the checks that continue at the same position, and so read together."""
    groups: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for check, cursor in cursors.items():
        groups.setdefault(tuple(sorted(cursor.next.items())), []).append(check)
    return list(groups.values())


def table_of_findings(findings: Sequence[Finding], topic: str) -> dg.TableMetadataValue:
    """Return the findings as a table, one row each."""
    return table(_COLUMNS, (each.row(topic) for each in findings))
