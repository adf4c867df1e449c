"""Discard dead letters: no redrive sends them any more.

The letters stay in their topic, until its retention removes them, and their records stay given up. Postgres records
which letters were discarded; the audit log has who did it, when, and how they were selected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from sharequeue.database import Database
from sharequeue.deadletters.hidden import HiddenRecords, hidden_records
from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.deadletters.redrive.batches import UNHANDLED, RedriveBatches
from sharequeue.deadletters.redrive.selection import LettersSeen, Selection, check_offsets, check_same
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.state import State


@dataclass(frozen=True, slots=True)
class DiscardPlan:
    """The letters that would be discarded, and how many others the selection takes."""

    chosen: Mapping[int, OffsetSet] = field(default_factory=dict)
    """The letters, by partition of the dead-letter topic."""
    by_source: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Their number, by source topic and cause."""
    sent_before: int = 0
    discarded_before: int = 0
    being_sent: int = 0
    """Letters in the batch of a redrive that has not closed it: they may be in the target topic already."""
    has_letters: bool = False
    """Whether the topic has any dead letters."""
    unreadable: str | None = None
    """Which records of the topic could not be read, and why; they are left out."""
    hidden: tuple[HiddenRecords, ...] = ()
    """Records that an open transaction hides: they may be letters."""

    @property
    def letters(self) -> int:
        """The number of letters that would be discarded."""
        return self.by_source.total()

    @property
    def selected(self) -> int:
        """The number of letters that the selection takes."""
        return self.letters + self.sent_before + self.discarded_before + self.being_sent


class Discard:
    """The discarding of letters of one dead-letter topic.

    Raises `UnknownTopicOrPartition` if the topic does not exist.
    """

    def __init__(self, settings: Settings, database: Database, topic: str, selection: Selection) -> None:
        self._settings = settings
        self._topic = topic
        self._selection = selection
        self._topics = Topics(settings)
        State(database).administration.check_cluster(self._topics.cluster_id())
        info = self._topics.info(topic)
        self._partitions = info.partitions
        self._batches = RedriveBatches(database, topic, info.topic_id)

    def plan(self) -> DiscardPlan:
        """Return what would be discarded now; nothing is changed.

        Raises RedriveRefused for a group, topic, partition or offset in the selection that does not exist.
        """
        logs = self._topics.offsets(self._topic)
        check_offsets(self._topic, self._partitions, self._selection.offsets, logs)
        handled = self._batches.handled()
        sent = discarded = being_sent = 0
        chosen: dict[int, list[int]] = {}
        by_source = Counter[tuple[str, str]]()
        letters = LettersSeen()
        for letter in letters.of(read_dead_letters(self._settings, self._topic, logs=logs)):
            if letter.source_topic is None or not self._selection.takes(letter):
                continue
            earlier = handled.get(letter.partition, UNHANDLED)
            if letter.offset in earlier.sent:
                sent += 1
            elif letter.offset in earlier.discarded:
                discarded += 1
            elif letter.offset in earlier.being_sent:
                being_sent += 1
            else:
                chosen.setdefault(letter.partition, []).append(letter.offset)
                by_source[letter.source_topic, letter.cause or "unknown"] += 1
        letters.check(self._selection, self._topic, self._batches.group_names, self._topics)
        hidden = tuple(hidden_records(self._settings, self._topic, logs))
        self._check_same()
        return DiscardPlan(
            {partition: OffsetSet.from_offsets(offsets) for partition, offsets in sorted(chosen.items())},
            by_source,
            sent,
            discarded,
            being_sent,
            bool(letters.groups),
            letters.unreadable_note(self._topic),
            hidden,
        )

    def run(self, plan: DiscardPlan) -> int:
        """Discard the letters of the plan, together; return how many.

        Those that a redrive has taken since the plan are left out. Raises RedriveRefused if the topic was created
        again since.
        """
        self._check_same()
        return self._batches.discard(self._selection, plan.chosen)

    def _check_same(self) -> None:
        check_same(self._topics, {self._topic: self._batches.topic_id})
