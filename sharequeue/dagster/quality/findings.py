"""What did a check find, and where does the next one go on?

Each check reads the dead-letter topic once, and goes on where it ended itself. What it found stays found, so that a
check does not pass because nothing was written since; it is let go when the topic no longer holds the letter, when
its place was read anew, or when somebody accepts it. Both are in the metadata of the check's last evaluation. Where
they are lost, the topic is read from its start, and nothing else is lost with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from sharequeue.deadletters.reading import Reading
from sharequeue.deadletters.reconciliation import BEGIN, Place
from sharequeue.values import SharePartition

CURSOR = "cursor"
SHOWN = 20
"""Rows of a check's table."""
_HISTORY = 10
_NEVER_SENT = ("invented", "doubled")
"""Found by the reconciliation: no record of this group's, or one that has a letter already."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A letter that breaks a check, or a record that has none; then there is neither partition nor offset."""

    found: str
    partition: int | None = None
    offset: int | None = None
    source_topic: str | None = None
    source_partition: int | None = None
    source_offset: int | None = None
    sequence: int | None = None
    """Of a record that has no letter, the number of its batch."""

    def row(self, topic: str, *, shown_only: bool) -> dg.TableRecord:
        """A line of the check's table, with the command that fits."""
        return dg.TableRecord(
            {
                "dlq_partition": self.partition,
                "dlq_offset": self.offset,
                "source_topic": self.source_topic,
                "source_partition": self.source_partition,
                "source_offset": self.source_offset,
                "found": self.found,
                "command": self._command(topic, shown_only=shown_only),
            }
        )

    def _command(self, topic: str, *, shown_only: bool) -> str:
        if self.offset is None:
            return "the record has no letter: its source topic has it, as long as retention keeps it"
        unreadable = None in (self.source_topic, self.source_partition, self.source_offset)
        if shown_only or unreadable or self.found in _NEVER_SENT:
            # A redrive would send what was altered, or send a record once more, or has nowhere to send it.
            return f"sharequeue dlq show {topic} {self.partition} {self.offset}"
        return f"sharequeue dlq redrive {topic} --offsets {self.partition}:{self.offset}"


@dataclass(slots=True)
class Cursor:
    """Up to where a check has read, and what it has found that is still there."""

    topic_id: str = ""
    next: dict[int, int] = field(default_factory=dict)
    places: dict[SharePartition, Place] = field(default_factory=dict)
    found: list[Finding] = field(default_factory=list)
    unlisted: int = 0
    """How much more it has found, of which no more is known than where the letters end."""
    unlisted_before: dict[int, int] = field(default_factory=dict)
    """By partition of the topic, the offset before which that was."""
    unlisted_from: dict[int, int] = field(default_factory=dict)
    """And the offset up to which it was read anew since."""

    @classmethod
    def of(cls, instance: dg.DagsterInstance, key: dg.AssetCheckKey, group_id: str) -> Cursor:
        """The cursor of a check's last evaluation; an empty one where there is none that can be read."""
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
        """Let go of what was found."""
        self.found, self.unlisted, self.unlisted_before, self.unlisted_from = [], 0, {}, {}

    def begin(self, topic_id: str, *, full: bool) -> None:
        """Get ready to read a topic: from where this ended, or from the start if it was another topic or `full`."""
        if self.topic_id != topic_id:
            self.accept()
        if full or self.topic_id != topic_id:
            self.topic_id, self.next, self.places = topic_id, {}, {}

    def metadata(self) -> dg.JsonMetadataValue:
        """The cursor as the next check reads it."""
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
        """What was found before and is still there, as far as this reading has not read it again; `reconciled` is up
        to where the source partitions are reconciled now."""
        return [
            each
            for each in self.found
            if (self._unreconciled(each, reconciled) if each.offset is None else _unread(each, reading))
        ]

    def _unreconciled(self, finding: Finding, reconciled: Mapping[SharePartition, Place]) -> bool:
        """Whether a record that had no letter was not looked for again. Postgres no longer has it if it does not know
        its source partition any more."""
        place = Place(finding.sequence or 0, finding.source_offset or 0)
        for source, end in reconciled.items():
            if (source.topic, source.partition) == (finding.source_topic, finding.source_partition):
                return place <= self.places.get(source, BEGIN) or place > end
        return False

    def reread(self, reading: Reading) -> dict[int, int]:
        """Up to where the letters from before were read anew, by partition: by this reading and those before it that
        began at the start of the topic."""
        read: dict[int, int] = {}
        for partition in self.unlisted_before:
            read[partition] = self.unlisted_from.get(partition, 0)
            if (log := reading.logs.get(partition)) is not None:
                read[partition] = max(read[partition], log.log_start)
                if reading.first.get(partition, 0) <= read[partition]:
                    read[partition] = max(read[partition], reading.next[partition])
        return read

    def still_unlisted(self, reading: Reading) -> int:
        """How much of what was found and not listed may still be there: all of it, until the topic has let go of
        every letter from before, or all were read again."""
        read = self.reread(reading)
        gone = all(read[partition] >= end for partition, end in self.unlisted_before.items())
        return 0 if gone else self.unlisted


def _unread(finding: Finding, reading: Reading) -> bool:
    partition, offset = finding.partition or 0, finding.offset or 0
    log = reading.logs.get(partition)
    if log is None:
        return True  # it has no leader for the moment
    if offset < log.log_start:
        return False
    return offset < reading.first.get(partition, 0) or offset >= reading.next[partition]


def _as_kept(by_partition: Mapping[int, int]) -> dict[str, int]:
    """As JSON has it, whose keys are texts."""
    return {str(partition): offset for partition, offset in sorted(by_partition.items())}


def _by_partition(kept: Mapping[str, Any]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in kept.items()}


def together(cursors: Mapping[str, Cursor]) -> list[list[str]]:
    """The checks in groups of those that go on at the same place, and so read together."""
    groups: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for check, cursor in cursors.items():
        groups.setdefault(tuple(sorted(cursor.next.items())), []).append(check)
    return list(groups.values())


def table(findings: Sequence[Finding], topic: str, *, shown_only: bool = False) -> dg.TableMetadataValue:
    """The first of what was found, a line each."""
    return dg.MetadataValue.table(
        records=[each.row(topic, shown_only=shown_only) for each in findings[:SHOWN]],
        schema=dg.TableSchema(
            columns=[
                dg.TableColumn("dlq_partition", "int"),
                dg.TableColumn("dlq_offset", "int"),
                dg.TableColumn("source_topic", "string"),
                dg.TableColumn("source_partition", "int"),
                dg.TableColumn("source_offset", "int"),
                dg.TableColumn("found", "string"),
                dg.TableColumn("command", "string"),
            ]
        ),
    )
