"""Discard dead letters: no redrive sends them any more.

The letters stay in their topic, until its retention removes them, and their records stay given up. Postgres records
which letters were discarded; the audit log has who did it, when, and how they were selected. A discarded letter no
longer holds its key, and neither does one that is no longer in the topic (`redrive.held_keys`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sharequeue.database import Database
from sharequeue.deadletters.hidden import HiddenRecords, hidden_records
from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.deadletters.redrive.batches import UNHANDLED, RedriveBatches
from sharequeue.deadletters.redrive.held_keys import HoldingLetters
from sharequeue.deadletters.redrive.selection import LettersSeen, Selection, check_offsets, check_same
from sharequeue.domain.offsets import EMPTY, OffsetSet, sets_of
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.topics import Topics
from sharequeue.state import State
from sharequeue.state.dead_letters import NOTHING_FREED, FreedKeys, HoldingBatch


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
    holding: HoldingLetters = field(default_factory=HoldingLetters, compare=False)
    """The letters of the topic that hold their keys."""
    handled: Mapping[int, OffsetSet] = field(default_factory=dict)
    """Selected letters that were sent or discarded before: those that still hold their keys let them go on."""
    absent: tuple[HoldingBatch, ...] = ()
    """Selected letters that hold a key and are not in the topic."""
    freed: FreedKeys = NOTHING_FREED
    """The keys that go on if the letters are discarded, and the held records behind them."""

    @property
    def absent_letters(self) -> int:
        """The number of letters that hold a key and are not in the topic."""
        return sum(batch.offsets.count for batch in self.absent)

    @property
    def letters(self) -> int:
        """The number of letters that would be discarded."""
        return self.by_source.total()

    @property
    def selected(self) -> int:
        """The number of letters that the selection takes."""
        return self.letters + self.sent_before + self.discarded_before + self.being_sent


class Discarded(NamedTuple):
    """What was discarded, in letters, and the keys that go on."""

    letters: int = 0
    freed: FreedKeys = NOTHING_FREED


class Discard:
    """The discarding of letters of one dead-letter topic.

    Raises `UnknownTopicOrPartition` if the topic does not exist.
    """

    def __init__(self, settings: Settings, database: Database, topic: str, selection: Selection) -> None:
        self._settings = settings
        self._database = database
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
        holding = self._batches.holding()
        done: dict[int, list[int]] = {}
        letters = LettersSeen()
        for letter in letters.of(read_dead_letters(self._settings, self._topic, logs=logs)):
            holding.note(letter)
            if letter.source_topic is None or not self._selection.takes(letter):
                continue
            earlier = handled.get(letter.partition, UNHANDLED)
            if letter.offset in earlier.sent:
                sent += 1
                done.setdefault(letter.partition, []).append(letter.offset)
            elif letter.offset in earlier.discarded:
                discarded += 1
                done.setdefault(letter.partition, []).append(letter.offset)
            elif letter.offset in earlier.being_sent:
                being_sent += 1
            else:
                chosen.setdefault(letter.partition, []).append(letter.offset)
                by_source[letter.source_topic, letter.cause or "unknown"] += 1
        letters.check(self._selection, self._topic, self._batches.group_names, self._topics)
        hidden = tuple(hidden_records(self._settings, self._topic, logs))
        self._check_same()
        # A letter that cannot be read now is not absent.
        all_read = not hidden and not letters.unreadable
        absent = holding.absent(self._selection, self._groups_writing(holding)) if all_read else []
        to_discard, handled_before = sets_of(dict(sorted(chosen.items()))), sets_of(done)
        freed = self._batches.held_behind([*holding.of(to_discard, handled_before), *absent])
        return DiscardPlan(
            to_discard,
            by_source,
            sent,
            discarded,
            being_sent,
            bool(letters.groups),
            letters.unreadable_note(self._topic),
            hidden,
            holding,
            handled_before,
            tuple(absent),
            freed,
        )

    def run(self, plan: DiscardPlan) -> Discarded:
        """Discard the letters of the plan, together; then let the keys go on that they hold.

        Letters that a redrive has taken since the plan are left out, and hold their keys until it has sent them.
        Raises RedriveRefused if the topic was created again since.
        """
        self._check_same()
        letters = self._batches.discard(self._selection, plan.chosen)
        being_sent = {at: handled.being_sent for at, handled in self._batches.handled().items()}
        left = {at: offsets - being_sent.get(at, EMPTY) for at, offsets in plan.chosen.items()}
        going = [*plan.holding.of(left, plan.handled), *plan.absent]
        return Discarded(letters, self._batches.free_keys(going))

    def _groups_writing(self, holding: HoldingLetters) -> set[str]:
        """Return the groups with letters that hold a key whose dead-letter topic this one is."""
        groups = {batch.share_partition.group_id for batch in holding.held.values()}
        return {
            group
            for group in groups
            if GroupConfigs.load(self._database, group).dead_letter_topic == self._topic
        }

    def _check_same(self) -> None:
        check_same(self._topics, {self._topic: self._batches.topic_id})
