"""The findings of a check, and the offsets where the next one continues.

Each check reads the dead-letter topic once, and continues where it ended. Its findings stay, so that a
check does not pass only because nothing new was written. A finding is dropped when the topic no longer has the
letter, when its position was read again, or when somebody accepts it. Both are stored in the metadata of the check's
last evaluation. If they are lost, the topic is read again from its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from sharequeue.dagster.quality.reading import Reading
from sharequeue.dagster.quality.reconciliation import BEGIN, Place
from sharequeue.dagster.tables import table
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
_NEVER_SENT = ("invented", "doubled")
"""Findings of the reconciliation: a letter without a record of this group, or with one that has another letter."""


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

    def row(self, topic: str, *, shown_only: bool) -> tuple[int | str | None, ...]:
        """Return a row of the check's table, with a suitable command."""
        source = (self.source_topic, self.source_partition, self.source_offset)
        return (self.partition, self.offset, *source, self.found, self._command(topic, shown_only=shown_only))

    def _command(self, topic: str, *, shown_only: bool) -> str:
        if self.offset is None:
            return "the record has no letter: it is in its source topic until retention removes it"
        unreadable = None in (self.source_topic, self.source_partition, self.source_offset)
        if shown_only or unreadable or self.found in _NEVER_SENT:
            # A redrive would send an altered record, send a record once more, or has no target.
            return f"sharequeue dlq show {topic} {self.partition} {self.offset}"
        return f"sharequeue dlq redrive {topic} --offsets {self.partition}:{self.offset}"


@dataclass(slots=True)
class Cursor:
    """The offsets up to which a check has read, and its findings that are still valid."""

    topic_id: str = ""
    next: dict[int, int] = field(default_factory=dict)
    places: dict[SharePartition, Place] = field(default_factory=dict)
    found: list[Finding] = field(default_factory=list)
    unlisted: int = 0
    """The number of findings that are not listed."""
    unlisted_before: dict[int, int] = field(default_factory=dict)
    """By partition of the topic, the offset before which they are."""
    unlisted_from: dict[int, int] = field(default_factory=dict)
    """And the offset up to which the topic was read again since."""

    @classmethod
    def of(cls, instance: dg.DagsterInstance, key: dg.AssetCheckKey, group_id: str) -> Cursor:
        """Return the cursor of a check's last evaluation; an empty one if there is none or it cannot be read."""
        for record in instance.event_log_storage.get_asset_check_execution_history(key, _HISTORY):
            event = record.event.dagster_event if record.event else None
            if event is None or event.event_type != dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                continue
            kept = event.asset_check_evaluation_data.metadata.get(CURSOR)
            try:
                return cls._read(getattr(kept, "data", None), group_id)
            except (KeyError, TypeError, ValueError):
                return cls()
        return cls()

    @classmethod
    def _read(cls, kept: Any, group_id: str) -> Cursor:
        return cls(
            kept["topic_id"],
            _by_partition(kept["next"]),
            {
                SharePartition(group_id, topic, partition): Place(sequence, offset)
                for topic, partition, sequence, offset in kept["places"]
            },
            [Finding(*each) for each in kept["found"]],
            kept.get("unlisted", 0),
            _by_partition(kept.get("unlisted_before", {})),
            _by_partition(kept.get("unlisted_from", {})),
        )

    def accept(self) -> None:
        """Drop the findings."""
        self.found, self.unlisted, self.unlisted_before, self.unlisted_from = [], 0, {}, {}

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
                "found": [
                    [
                        *(f.found, f.partition, f.offset),
                        *(f.source_topic, f.source_partition, f.source_offset, f.sequence),
                    ]
                    for f in self.found
                ],
                "unlisted": self.unlisted,
                "unlisted_before": _as_kept(self.unlisted_before),
                "unlisted_from": _as_kept(self.unlisted_from),
            }
        )

    def still(self, reading: Reading, reconciled: Mapping[SharePartition, Place]) -> list[Finding]:
        """Return the earlier findings that are still valid and that this reading has not read again.

        `reconciled` is the position up to which each source partition is reconciled now.
        """
        return [
            each
            for each in self.found
            if (self._unreconciled(each, reconciled) if each.offset is None else _unread(each, reading))
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

    def reread(self, reading: Reading) -> dict[int, int]:
        """Return the offset up to which the earlier letters were read again, by partition.

        This reading counts, and those before it that began at the start of the topic.
        """
        read: dict[int, int] = {}
        for partition in self.unlisted_before:
            read[partition] = self.unlisted_from.get(partition, 0)
            if (log := reading.logs.get(partition)) is not None:
                read[partition] = max(read[partition], log.log_start)
                if reading.first.get(partition, 0) <= read[partition]:
                    read[partition] = max(read[partition], reading.next[partition])
        return read

    def still_unlisted(self, reading: Reading) -> int:
        """Return the number of findings, not listed, that may still be valid.

        It is all of them until the topic has removed every earlier letter, or all were read again.
        """
        read = self.reread(reading)
        gone = all(read[partition] >= end for partition, end in self.unlisted_before.items())
        return 0 if gone else self.unlisted


def _unread(finding: Finding, reading: Reading) -> bool:
    partition, offset = finding.partition or 0, finding.offset or 0
    log = reading.logs.get(partition)
    if log is None:
        return True  # it has no leader at the moment
    if offset < log.log_start:
        return False
    return offset < reading.first.get(partition, 0) or offset >= reading.next[partition]


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


def table_of_findings(
    findings: Sequence[Finding], topic: str, *, shown_only: bool = False
) -> dg.TableMetadataValue:
    """Return the first findings as a table, one row each."""
    return table(_COLUMNS, (each.row(topic, shown_only=shown_only) for each in findings[:SHOWN]))
