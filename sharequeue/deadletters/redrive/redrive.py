"""Redrive dead letters to their topics, each exactly once, also after a kill.

The plan reads the dead-letter topic once, and chooses letters and their order; the run sends the letters of the plan.
Postgres records every letter that was sent, so no other redrive, later or at the same time, sends it again. The
conditions are in `redrive.selection`, the records to send in `redrive.redriven_letters`, the exactly-once writing in
`deadletters.outbox`.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from confluent_kafka import KafkaException

from sharequeue.database import Database
from sharequeue.deadletters.hidden import HiddenRecords, hidden_records
from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.deadletters.outbox import BatchStep, Outbox
from sharequeue.deadletters.redrive.batches import UNHANDLED, RedriveBatches, TargetLog
from sharequeue.deadletters.redrive.held_keys import HoldingLetters
from sharequeue.deadletters.redrive.originals import with_records
from sharequeue.deadletters.redrive.published_records import PublishedRecords
from sharequeue.deadletters.redrive.redriven_letters import RedrivenLetters, RefusedLetter
from sharequeue.deadletters.redrive.selection import (
    LetterPosition,
    LettersSeen,
    RedriveRefused,
    Selection,
    check_offsets,
    check_same,
    in_order,
    original_headers,
    redrive_count,
)
from sharequeue.domain.errors import InvalidRequest, ShareError
from sharequeue.domain.names import finite, is_topic_name, nearest, plural, shown
from sharequeue.domain.offsets import EMPTY, OffsetSet, sets_of
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.reading import RecordReader
from sharequeue.kafka.topics import TopicInfo, Topics, is_same
from sharequeue.kafka.transactions import MarkerGroup, producer_limits
from sharequeue.state import State
from sharequeue.state.dead_letters import NOTHING_FREED, FreedKeys

BATCH_RECORDS = 500
MAX_REDRIVES = 3
"""A record that was redriven this often is not redriven again: a fourth failure needs a person."""

MIN_RATE = 0.001
"""The lowest `rate`, in records per second: one in a thousand seconds."""


@dataclass(frozen=True, slots=True)
class RedrivePlan:
    """What a redrive would do, in letters."""

    batches: tuple[tuple[int, OffsetSet], ...] = ()
    """The letters that are sent together, in order: the partition of the dead-letter topic, and the offsets there."""
    targets: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    by_key: int = 0
    """Letters whose source partition the target does not have: their keys choose the partition."""
    sent_before: int = 0
    discarded: int = 0
    """Letters that somebody has discarded: they are never sent."""
    looping: int = 0
    """Redriven so often that the loop guard holds them."""
    gone: int = 0
    """Letters without a copy of the record, which is no longer in its topic: there is nothing to send."""
    without_headers: int = 0
    """Letters that would be sent from a copy without the record's headers, because the record is no longer in its
    topic."""
    published: int = 0
    """Letters whose records have rows in the output of their group, because a replay with them was published."""
    places: tuple[tuple[str, LetterPosition], ...] = ()
    """The letters that would be sent, each with the group that gave its record up and still reads its topic."""
    groups: frozenset[str] = frozenset()
    """The share groups that have letters in the topic."""
    other_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By target topic: other share groups, which also get the records."""
    unreadable: str | None = None
    """Which records of the topic could not be read, and why; they are left out."""
    hidden: tuple[HiddenRecords, ...] = ()
    """Records that an open transaction hides: they may be letters."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The dead-letter topic and the targets, with their ids: the plan holds only for these."""
    holding: HoldingLetters = field(default_factory=HoldingLetters, compare=False)
    """The letters of the topic that hold their keys."""
    handled: Mapping[int, OffsetSet] = field(default_factory=dict)
    """Selected letters that were sent or discarded before: those that still hold their keys let them go on."""
    freed: FreedKeys = NOTHING_FREED
    """The keys that go on if the letters are sent, and the held records behind them."""

    @property
    def chosen(self) -> dict[int, OffsetSet]:
        """The letters that would be sent, by partition of the dead-letter topic."""
        found: dict[int, list[tuple[int, int]]] = {}
        for partition, offsets in self.batches:
            found.setdefault(partition, []).extend(offsets.ranges)
        return {partition: OffsetSet.of(*ranges) for partition, ranges in sorted(found.items())}

    @property
    def letters(self) -> int:
        """The number of letters that would be sent."""
        return sum(offsets.count for _, offsets in self.batches)

    @property
    def has_letters(self) -> bool:
        """Whether the topic has any dead letters."""
        return bool(self.groups or self.selected)

    @property
    def selected(self) -> int:
        """The number of letters that the selection takes, sent or not."""
        left_out = self.sent_before + self.discarded + self.looping + self.gone + self.published
        return self.letters + left_out


@dataclass(slots=True)
class RedriveReport:
    """What a redrive did, in letters."""

    redrive_id: uuid.UUID
    sent: int = 0
    resumed: int = 0
    """Letters sent by an earlier redrive that died before it closed the batch; only closed by this one."""
    gone: int = 0
    """Letters without a copy whose record is no longer in the source topic: there was nothing to send."""
    without_headers: int = 0
    """Letters that were sent from a copy without the record's headers: the record is no longer in its topic."""
    looping: int = 0
    """Letters without a copy whose record was redriven too often, which is only seen when it is read."""
    freed: FreedKeys = NOTHING_FREED
    """The keys that go on, and the held records behind them."""
    refused: list[RefusedLetter] = field(default_factory=list)
    """Letters that could not be sent. Another redrive tries them again."""
    seconds: float = 0.0


class Redrive:
    """A redrive of letters of one dead-letter topic to their source topics, or to `target`.

    `only_group` is the one share group that gets the records: they have its name in a header, and runs of other
    groups skip them. `by_key` chooses partitions by the records' keys, as Kafka's own producers do, instead of the
    source partitions. `rate` is the maximum number of records per second (0.001 or more), `max_redrives` the loop
    guard. `on_step` is called at each step.

    Raises `UnknownTopicOrPartition` if the dead-letter topic does not exist, ValueError for a rate that is too low or
    not finite.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        topic: str,
        selection: Selection,
        *,
        target: str | None = None,
        only_group: str | None = None,
        by_key: bool = False,
        rate: float | None = None,
        max_redrives: int = MAX_REDRIVES,
        batch_records: int = BATCH_RECORDS,
        on_step: Callable[[BatchStep], None] = lambda step: None,
    ) -> None:
        if target == topic:
            raise RedriveRefused(f"`{topic}` is the dead-letter topic itself: choose another target topic.")
        if rate is not None:
            rate = finite("rate", rate, MIN_RATE)
        self._settings = settings
        self._topic = topic
        self._selection = selection
        self._target = target
        self._only_group = only_group
        self._by_key = by_key
        self._rate = rate
        self._max_redrives = max_redrives
        self._batch_records = batch_records if rate is None else max(1, min(batch_records, int(rate)))
        self._on_step = on_step
        self._topics = Topics(settings)
        State(database).administration.check_cluster(self._topics.cluster_id())
        info = self._topics.info(topic)
        self._partitions = info.partitions
        self._batches = RedriveBatches(database, topic, info.topic_id)

    def plan(self) -> RedrivePlan:
        """Return what would be sent now; nothing is changed.

        Raises RedriveRefused for a group, topic or partition in the selection that no letter has, for a target topic
        that does not exist, and while a replay with some of the records is being published.
        """
        logs = self._topics.offsets(self._topic)
        check_offsets(self._topic, self._partitions, self._selection.offsets, logs)
        handled = self._batches.handled()
        published = PublishedRecords(self._batches, self._topics, self._target, self._only_group)
        groups: dict[LetterPosition, str] = {}
        chosen: list[LetterPosition] = []
        targets, causes = Counter[str](), Counter[str]()
        sent_before = discarded = looping = in_output = 0
        without_copy: dict[LetterPosition, str] = {}
        with_content = set[LetterPosition]()
        content = dict[LetterPosition, int]()
        letters = LettersSeen()
        chosen_groups: set[str] = set()
        holding = self._batches.holding()
        done = dict[int, list[int]]()
        for letter in letters.of(read_dead_letters(self._settings, self._topic, logs=logs)):
            holding.note(letter)
            if letter.source_topic is None or not self._selection.takes(letter):
                continue
            earlier = handled.get(letter.partition, UNHANDLED)
            if letter.offset in earlier.sent:
                sent_before += 1
                done.setdefault(letter.partition, []).append(letter.offset)
            elif letter.offset in earlier.discarded:
                discarded += 1
                done.setdefault(letter.partition, []).append(letter.offset)
            elif redrive_count(original_headers(letter)) >= self._max_redrives:
                looping += 1
            elif published.has(letter):
                in_output += 1
            else:
                at, cause = LetterPosition.of(letter), letter.cause or "unknown"
                chosen.append(at)
                groups[at] = letter.group or ""
                targets[self._target or letter.source_topic] += 1
                chosen_groups.add(letter.group or "")
                causes[cause] += 1
                content[at] = len(letter.key or b"") + len(letter.value or b"")
                if not letter.is_copy:
                    without_copy[at] = cause
                    if letter.has_content:
                        with_content.add(at)
        letters.check(self._selection, self._topic, self._batches.group_names, self._topics)
        missing = self._gone(without_copy)
        gone = missing - with_content
        chosen = [at for at in chosen if at not in gone]
        targets -= Counter(self._target or at.topic for at in gone)
        causes -= Counter(without_copy[at] for at in gone)
        there = self._there({*targets, *([self._target] if self._target else [])})
        away = (not 0 <= at.source_partition < there[self._target or at.topic].partitions for at in chosen)
        readers = self._batches.groups_of({at.topic for at in chosen if at.is_known})
        hidden = tuple(hidden_records(self._settings, self._topic, logs))
        topic_ids = {name: info.topic_id for name, info in there.items() if name in targets}
        topic_ids[self._topic] = self._batches.topic_id
        check_same(self._topics, topic_ids)
        handled_before = sets_of(done)
        plan = RedrivePlan(
            tuple(in_order(chosen, self._batch_records, content)),
            targets,
            causes,
            0 if self._by_key else sum(away),
            sent_before,
            discarded,
            looping,
            len(gone),
            len(missing & with_content),
            in_output,
            tuple(
                (groups[at], at) for at in self._current(chosen) if groups[at] in readers.get(at.topic, ())
            ),
            frozenset(letters.groups),
            self._other_groups(targets, chosen_groups),
            letters.unreadable_note(self._topic),
            hidden,
            topic_ids,
            holding,
            handled_before,
        )
        return replace(plan, freed=self._batches.held_behind(holding.of(plan.chosen, handled_before)))

    def _current(self, letters: Collection[LetterPosition]) -> list[LetterPosition]:
        """Return the letters whose source topic was not created again since: only their records can be in replays."""
        named = [at for at in letters if at.is_known]
        there = self._topics.describe({at.topic for at in named})
        return [at for at in named if at.topic_id is None or is_same(there, at.topic, at.topic_id)]

    def _gone(self, without_copy: Collection[LetterPosition]) -> set[LetterPosition]:
        """Return the letters whose record is outside its log, or was in a topic that was deleted or created again.
        Records removed by compaction are only found when they are read."""
        found = with_records(self._batches, self._topics, without_copy)
        logs = {name: self._topics.offsets(name) for name in sorted({at.topic for at in found})}

        def is_there(at: LetterPosition) -> bool:
            log = logs[at.topic].get(at.source_partition) if at in found else None
            return log is not None and log.log_start <= at.source_offset < log.log_end

        return {at for at in without_copy if not is_there(at)}

    def _there(self, targets: set[str]) -> dict[str, TopicInfo]:
        """Return the target topics. Raises RedriveRefused if one does not exist."""
        # Any program may have written the name of a source topic into a letter.
        there = self._topics.describe(filter(is_topic_name, targets))
        if missing := sorted(targets - set(there)):
            near = nearest(missing[0], self._topics.names(), "topics")
            raise RedriveRefused(
                f"there is no topic {shown(missing[0])} to send to. {near} Create it, name another, or choose "
                "letters of other topics."
            )
        return there

    def _other_groups(self, targets: Iterable[str], chosen_groups: set[str]) -> dict[str, tuple[str, ...]]:
        """Return the other groups that get the records, by target; none if they are for one group only.

        Raises RedriveRefused if that one group would not get them: with a typo, no group would get them.
        """
        of = self._batches.groups_of(targets)
        group = self._only_group
        if group is None:
            others = {target: tuple(sorted(groups - chosen_groups)) for target, groups in sorted(of.items())}
            return {target: groups for target, groups in others.items() if groups}
        known = set(self._batches.group_names())
        if group not in known:
            raise RedriveRefused(
                f"there is no share group {group!r}. {nearest(group, known, 'share groups')}"
            )
        if without := sorted(target for target in targets if group not in of.get(target, ())):
            raise RedriveRefused(
                f"share group {group!r} has no share-partition of topic {without[0]!r}: no group would get "
                "the records. Name a group that reads the topic."
            )
        return {}

    def run(self, plan: RedrivePlan, progress: Callable[[str], None] = lambda line: None) -> RedriveReport:
        """Send the letters of the plan; `progress` gets a line for each batch.

        Raises RedriveRefused if another redrive of a partition takes over, if the broker refuses, if some of the
        records were published since the plan, or if one of its topics was created again; the letters sent until then
        are recorded, and another redrive continues after them.
        """
        began = time.monotonic()
        check_same(self._topics, plan.topic_ids)
        targets = {
            name: TargetLog(
                plan.topic_ids[name], {at: log.log_end for at, log in self._topics.offsets(name).items()}
            )
            for name in plan.targets
        }
        redrive_id = self._batches.begin(
            self._selection, self._target, self._only_group, targets, by_key=self._by_key
        )
        try:
            report = self._sent(redrive_id, plan, targets, progress)
        finally:
            # Also of one that fails: it sends nothing more, so that a publication need not wait for it.
            self._batches.end(redrive_id)
        if report.sent:
            with suppress(ShareError):
                self._topics.settle(plan.targets)
        report.seconds = time.monotonic() - began
        return report

    def _sent(
        self,
        redrive_id: uuid.UUID,
        plan: RedrivePlan,
        targets: Iterable[str],
        progress: Callable[[str], None],
    ) -> RedriveReport:
        try:
            self._batches.plan(redrive_id, plan.places)
        except InvalidRequest as error:
            raise RedriveRefused(str(error)) from error
        report = RedriveReport(redrive_id, gone=plan.gone)
        # Of letters that were sent or discarded by a process that died before it let their keys go on.
        report.freed = self._batches.free_keys(plan.holding.of(plan.handled))
        # The open batches of a killed redrive come first, because they were chosen earlier.
        left = [(partition, EMPTY) for partition in self._batches.open_partitions()]
        producer = self._producer({*targets, *(self._batches.open_targets() if left else ())})
        for partition, wanted in groupby((*left, *plan.batches), key=lambda batch: batch[0]):
            offsets = [offsets for _, offsets in wanted]
            for line in self._partition(partition, offsets, report, producer, plan.holding):
                progress(line)
        return report

    def _producer(self, targets: Iterable[str]) -> dict[str, Any]:
        """Return the configuration of a producer for these topics; configs that cannot be read are the defaults."""
        configs: list[dict[str, str]] = []
        for name in targets:
            found: dict[str, str] = {}
            with suppress(ShareError):
                found = self._topics.configs(name)
            configs.append(found)
        return producer_limits(configs)

    def _partition(
        self,
        partition: int,
        wanted: Iterable[OffsetSet],
        report: RedriveReport,
        producer: Mapping[str, Any],
        holding: HoldingLetters,
    ) -> Iterator[str]:
        with RecordReader(self._settings) as reader:
            letters = RedrivenLetters(
                self._settings,
                self._batches,
                partition,
                report.redrive_id,
                wanted,
                self._batch_records,
                max_redrives=self._max_redrives,
                topics=self._topics,
                reader=reader,
                producer=producer,
                holding=holding,
            )
            try:
                client = client_config(self._settings)
                with MarkerGroup(client, f"sharequeue.redrive.{self._topic}") as markers:
                    for done in Outbox(client, letters, markers, on_step=self._on_step).write():
                        report.sent += done.written
                        report.resumed += done.resumed
                        if not done.resumed:
                            at, count = f"{self._topic}-{partition}", done.written
                            yield f"{at}: {plural(count, 'record')} sent back (batch {done.sequence})"
                            self._wait(done.written)
            except KafkaException as error:
                raise letters.failure(error) from error
            finally:
                report.gone += letters.gone
                report.without_headers += letters.without_headers
                report.looping += letters.looping
                report.refused += letters.refused_letters
                report.freed += letters.freed

    def _wait(self, sent: int) -> None:
        if self._rate is not None:
            time.sleep(sent / self._rate)
