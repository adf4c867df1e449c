"""The findings of the checks of a dead-letter topic, and the position at which the next run of them continues.

The checks read the topic once, and each run continues where the last one ended. Findings stay, so that a check does
not pass only because nothing new was written. A finding is dropped when the topic no longer has the letter, when a
person accepts it, or when the group is deleted. Dagster's storage keeps both, next to the cursors of its own daemon;
if they are lost, the topic is read again from its start.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

import dagster as dg

from sharequeue.deadletters.letters import trace_command
from sharequeue.domain.values import SharePartition
from sharequeue.kafka.topics import LogOffsets

SHOWN = 20
"""The number of findings of a check that are kept with their positions; all are counted."""
COLUMNS = {
    "dlq_partition": "int",
    "dlq_offset": "int",
    "source_topic": "string",
    "source_partition": "int",
    "source_offset": "int",
    "found": "string",
    "command": "string",
}
MISSING, INVENTED, DOUBLED = "missing", "invented", "doubled"
"""Findings of the reconciliation, which counts each kind."""


class BatchPosition(NamedTuple):
    """The position of a letter among those of its source partition: its batch's number and its record's offset."""

    sequence: int
    offset: int


@dataclass(frozen=True, slots=True)
class LetterFinding:
    """A letter that breaks a check, or a record without a letter, which has neither partition nor offset."""

    found: str
    partition: int | None = None
    offset: int | None = None
    source_topic: str | None = None
    source_partition: int | None = None
    source_offset: int | None = None
    intact: bool = False
    """Whether a redrive of the letter sends the record as it was, and for the first time. It depends on the letter
    alone, so that all checks give the same advice for it."""

    def record(self, topic: str) -> str:
        """Return topic, partition and offset of the record, or of the letter if it does not have them."""
        if None in (self.source_topic, self.source_partition, self.source_offset):
            return f"{topic}-{self.partition}@{self.offset}"
        return f"{self.source_topic}-{self.source_partition}@{self.source_offset}"

    def row(self, topic: str, status: str | None = None) -> tuple[int | str | None, ...]:
        """Return a row of the check's table, with a suitable command.

        `status` is what became of the letter, if a redrive has sent it, or somebody has discarded it.
        """
        show = f"sharequeue dlq show {topic} {self.partition} {self.offset}"
        source = (self.source_topic, self.source_partition, self.source_offset)
        if self.offset is None:
            # It is in its source topic until retention removes it.
            command = trace_command(*(str(part) for part in source))
        elif status is not None:
            command = f"{show}  # status: {status}"
        elif self.intact:
            command = f"sharequeue dlq redrive {topic} --offsets {self.partition}:{self.offset}"
        else:
            command = show
        return (self.partition, self.offset, *source, self.found, command)


@dataclass(slots=True)
class Found:
    """The findings of one check: those of one reading, or those that are kept."""

    counts: Counter[str] = field(default_factory=Counter)
    """The number of findings, by kind (the reconciliation has several); `findings` has the first."""
    findings: list[LetterFinding] = field(default_factory=list)
    unlisted_below: dict[int, int] = field(default_factory=dict)
    """The end of the offsets, by partition, that may have those that are not listed."""
    problem: str | None = None

    def add(self, kind: str, number: int, findings: Iterable[LetterFinding] = ()) -> None:
        """Count findings of a kind, and keep those for which there is room."""
        if number:
            self.counts[kind] += number
            self.findings += [
                each for each, _ in zip(findings, range(SHOWN - len(self.findings)), strict=False)
            ]

    def extend(self, new: Found) -> None:
        """Add what was found in the next letters of the same reading."""
        self.add("", new.counts.total(), new.findings)
        self.problem = self.problem or new.problem

    @property
    def unlisted(self) -> int:
        """The number of findings that are not listed."""
        return self.counts.total() - len(self.findings)

    def merged(self, new: Found, end: Mapping[int, int]) -> Found:
        """Return these findings and those of a reading that ended at `end`."""
        merged = Found(
            self.counts + new.counts,
            [*new.findings, *self.findings][:SHOWN],
            self.unlisted_below,
            new.problem,
        )
        if merged.unlisted > self.unlisted:
            merged.unlisted_below = dict(end)
        return merged

    def still(self, logs: Mapping[int, LogOffsets]) -> Found:
        """Return the findings of which the topic still has the letter, or may have it."""

        def has(partition: int | None, offset: int) -> bool:
            log = logs.get(-1 if partition is None else partition)
            return log is None or offset >= log.log_start

        kept = [each for each in self.findings if each.offset is None or has(each.partition, each.offset)]
        kinds = Counter(_kind(each) for each in self.findings)
        unlisted = self.counts - kinds
        if not any(has(partition, end - 1) for partition, end in self.unlisted_below.items()):
            unlisted = Counter()
        return Found(Counter(map(_kind, kept)) + unlisted, kept, self.unlisted_below)


def _kind(finding: LetterFinding) -> str:
    return finding.found if finding.found in (MISSING, INVENTED, DOUBLED) else ""


@dataclass(slots=True)
class KeptFindings:
    """What the checks of a group keep from one run to the next."""

    topic_id: str = ""
    next: dict[int, int] = field(default_factory=dict)
    """The offsets at which they continue."""
    places: dict[SharePartition, BatchPosition] = field(default_factory=dict)
    """The positions up to which each source partition is reconciled."""
    found: dict[str, Found] = field(default_factory=dict)
    """The findings of each check."""
    created_at: str = ""
    """When the group was created: a later group of the same name numbers its batches from 1 again."""
    letters_at: str = ""
    """When a run of the checks has last read letters of the group, in UTC; empty if none has."""

    @classmethod
    def of(cls, instance: dg.DagsterInstance, asset: dg.AssetKey, group_id: str) -> KeptFindings:
        """Return what the last run of the checks on an asset has kept; nothing if it cannot be read."""
        text = instance.daemon_cursor_storage.get_cursor_values({_key(asset)}).get(_key(asset))
        try:
            kept = json.loads(text or "")
            return cls(
                kept["topic_id"],
                {int(partition): offset for partition, offset in kept["next"].items()},
                {
                    SharePartition(group_id, topic, partition): BatchPosition(sequence, offset)
                    for topic, partition, sequence, offset in kept["places"]
                },
                {
                    check: Found(
                        Counter(counts),
                        [LetterFinding(*each) for each in findings],
                        {int(partition): end for partition, end in below.items()},
                    )
                    for check, (counts, findings, below) in kept["found"].items()
                },
                kept["created_at"],
                kept["letters_at"],
            )
        except (KeyError, TypeError, ValueError):
            return cls()

    def store(self, instance: dg.DagsterInstance, asset: dg.AssetKey) -> None:
        """Keep this for the next run."""
        kept = {
            "topic_id": self.topic_id,
            "next": self.next,
            "places": [[at.topic, at.partition, *place] for at, place in sorted(self.places.items())],
            "found": {
                check: [found.counts, list(map(astuple, found.findings)), found.unlisted_below]
                for check, found in self.found.items()
                if found.counts
            },
            "created_at": self.created_at,
            "letters_at": self.letters_at,
        }
        instance.daemon_cursor_storage.set_cursor_values({_key(asset): json.dumps(kept)})


def _key(asset: dg.AssetKey) -> str:
    return f"sharequeue/dead_letter_checks/{asset.to_user_string()}"
