"""How do dead letters get back to work, each once, whoever dies when?

The same three steps by which dead letters get into their topic. A numbered batch of letters is stored in Postgres
before anything is sent. One Kafka transaction sends the records to their topic, with the marker of the batch
(`sharequeue.kafka.transactions`). The batch is closed once the broker has confirmed it. After a crash the next
redrive first ends the open transaction, then asks whether the batch was sent, then goes on. Postgres remembers every
letter that was sent, so no other redrive, later or at the same time, sends it again. Which letters, and what the
records look like, is in `redrive.selection`.

A record goes to the partition it came from, as long as the topic has it, and records of one source partition go in
the order of their offsets there. So records of one key keep their order, whichever client has placed them.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from confluent_kafka import KafkaException, TopicPartition

from sharequeue.database import Database
from sharequeue.deadletters.letters import (
    ORIGINAL_TIMESTAMP,
    DeadLetter,
    Header,
    headers_of,
    read_dead_letters,
)
from sharequeue.errors import ShareError
from sharequeue.kafka.records import Originals
from sharequeue.kafka.topics import Topics
from sharequeue.kafka.transactions import FENCED, MarkedProducer, MarkerGroup
from sharequeue.names import nearest
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.redrive.batches import RedriveBatch, RedriveBatches
from sharequeue.redrive.selection import (
    LettersSeen,
    Place,
    RedriveRefused,
    Selection,
    check_offsets,
    in_order,
    original_headers,
    redrive_count,
    redriven_headers,
)
from sharequeue.settings import Settings
from sharequeue.state import State

BATCH_RECORDS = 500
MAX_REDRIVES = 3
"""A record that was put back so often is not put back again: what fails a fourth time needs a person."""

PARTITION_UA = -1
"""librdkafka's name for: the client chooses the partition."""

Step = Literal["initialised", "opened", "produced", "marked", "committed", "closed"]


@dataclass(frozen=True, slots=True)
class RedrivePlan:
    """What a redrive would do, in letters."""

    batches: tuple[tuple[int, OffsetSet], ...] = ()
    """What is sent together, in its order: the partition of the dead-letter topic, and the offsets there."""
    targets: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    by_key: int = 0
    """Of partitions that their target does not have: their keys place them."""
    sent_before: int = 0
    looping: int = 0
    """Put back so often that the guard holds them."""
    groups: frozenset[str] = frozenset()
    """The share groups whose letters the topic holds."""
    other_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By target topic: share groups that get the records too, though the letters are not theirs."""

    @property
    def chosen(self) -> dict[int, OffsetSet]:
        """What would be sent, by partition of the dead-letter topic."""
        found: dict[int, list[tuple[int, int]]] = {}
        for partition, offsets in self.batches:
            found.setdefault(partition, []).extend(offsets.ranges)
        return {partition: OffsetSet.of(*ranges) for partition, ranges in sorted(found.items())}

    @property
    def letters(self) -> int:
        """How many would be sent."""
        return sum(offsets.count for _, offsets in self.batches)


@dataclass(slots=True)
class RedriveReport:
    """What a redrive did, in letters."""

    redrive_id: uuid.UUID
    sent: int = 0
    resumed: int = 0
    """Sent by an earlier redrive that died before it closed the batch; only closed by this one."""
    gone: int = 0
    """Neither copied into the letter nor in the source topic any more: there is nothing to send."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Record:
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


class Redrive:
    """Puts letters of one dead-letter topic back into the topics they came from, or into `target`.

    `only_group` is the one share group that is to get the records: they carry its name in a header, and runs of other
    groups skip them. `by_key` places records by their keys, as Kafka's own producers do, and not in the partitions
    that they came from. `rate` is records a second at most, `max_redrives` the loop guard. `on_step` is called at
    each step.

    Raises `UnknownTopicOrPartition` when there is no such dead-letter topic.
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
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> None:
        if target == topic:
            raise RedriveRefused(f"`{topic}` is where the letters are: choose another topic to send them to.")
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
        """Return what would be sent now; nothing is changed by asking.

        Raises RedriveRefused for a group, topic or partition in the selection that no letter has and nobody knows,
        and for a topic to send to that there is not.
        """
        logs = self._topics.offsets(self._topic)
        check_offsets(self._topic, self._partitions, self._selection.offsets, logs)
        sent = self._batches.sent()
        chosen: list[Place] = []
        targets, causes = Counter[str](), Counter[str]()
        sent_before = looping = 0
        letters = LettersSeen()
        chosen_groups: set[str] = set()
        for letter in letters.of(read_dead_letters(self._settings, self._topic, logs=logs)):
            if letter.source_topic is None or not self._selection.takes(letter):
                continue
            if letter.offset in sent.get(letter.partition, EMPTY):
                sent_before += 1
            elif redrive_count(letter.headers) >= self._max_redrives:
                looping += 1
            else:
                chosen.append(Place.of(letter))
                targets[self._target or letter.source_topic] += 1
                chosen_groups.add(letter.group or "")
                causes[letter.cause or "unknown"] += 1
        letters.check(self._selection, self._topic, self._batches.group_names, self._topics)
        sizes = self._sizes({*targets, *([self._target] if self._target else [])})
        away = (not 0 <= at.source_partition < sizes[self._target or at.topic] for at in chosen)
        return RedrivePlan(
            tuple(in_order(chosen, self._batch_records)),
            targets,
            causes,
            0 if self._by_key else sum(away),
            sent_before,
            looping,
            frozenset(letters.groups),
            self._other_groups(targets, chosen_groups),
        )

    def _sizes(self, targets: set[str]) -> dict[str, int]:
        """Return the partitions of each target. Raises RedriveRefused where there is no such topic."""
        there = self._topics.describe(targets)
        if missing := sorted(targets - set(there)):
            raise RedriveRefused(
                f"there is no topic `{missing[0]}` to send to. {nearest(missing[0], self._topics.names(), 'topics')} "
                "Create it, name another, or choose letters of other topics."
            )
        return {topic: info.partitions for topic, info in there.items()}

    def _other_groups(self, targets: Iterable[str], chosen_groups: set[str]) -> dict[str, tuple[str, ...]]:
        """Return who else gets the records, by target; nobody where they are for one group only.

        Raises RedriveRefused where that one group would not get them: a typo would hide them from everybody.
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
                f"share group {group!r} has no share-partition of topic {without[0]!r}: it would not get the "
                "records, and nobody else would. Name a group that reads the topic."
            )
        return {}

    def run(self, progress: Callable[[str], None] = lambda line: None) -> RedriveReport:
        """Send the letters of the plan; `progress` gets a line for every batch.

        Raises RedriveRefused when another redrive of a partition takes over, or the broker refuses; what was sent
        until then is known, and a further redrive goes on behind it.
        """
        began = time.monotonic()
        plan = self.plan()
        redrive_id = self._batches.begin(
            str(self._selection), self._target, self._only_group, plan.targets, by_key=self._by_key
        )
        report = RedriveReport(redrive_id)
        # What a killed redrive left open comes first: it was chosen before.
        left = [(partition, EMPTY) for partition in sorted(self._batches.open_partitions())]
        for partition, wanted in groupby((*left, *plan.batches), key=lambda batch: batch[0]):
            for line in self._partition(partition, [offsets for _, offsets in wanted], report):
                progress(line)
        self._batches.end(redrive_id)
        if report.sent:
            with suppress(ShareError):
                self._topics.settle(plan.targets)
        report.seconds = time.monotonic() - began
        return report

    def _partition(self, partition: int, wanted: list[OffsetSet], report: RedriveReport) -> Iterator[str]:
        most = self._batch_records
        try:
            with (
                MarkerGroup(self._settings, f"sharequeue.redrive.{self._topic}") as markers,
                MarkedProducer(
                    self._settings,
                    f"sharequeue.redrive.{self._topic}.{partition}",
                    markers,
                    lambda error: self._refused(partition, error),
                    # As Kafka's own producers place a key, where the partition is not given.
                    partitioner="murmur2_random",
                ) as producer,
            ):
                self._on_step("initialised")
                for offsets in wanted:
                    while batch := self._batches.open(partition, report.redrive_id, offsets, most):
                        self._on_step("opened")
                        offsets -= batch.offsets
                        sent = self._batch(producer, markers, batch, report)
                        if sent is not None:
                            yield f"{self._topic}-{partition}: {sent} records put back (batch {batch.sequence})"
                            self._wait(sent)
        except KafkaException as error:
            raise self._refused(partition, error) from error

    def _batch(
        self, producer: MarkedProducer, markers: MarkerGroup, batch: RedriveBatch, report: RedriveReport
    ) -> int | None:
        """Send one batch and return the letters; None where an earlier redrive has sent it."""
        found = markers.committed(self._topic, batch.partition)
        if (found.offset, found.metadata) == (batch.sequence, batch.identity):
            report.resumed += self._close(batch)
            return None
        records = self._records(batch)
        if lost := batch.offsets.count - len(records):
            report.gone += lost
            batch = self._batches.trim(batch, OffsetSet.from_offsets(records))
        if records:
            self._send(producer, batch, records)
        sent = self._close(batch)
        report.sent += sent
        return sent

    def _refused(self, partition: int, error: KafkaException) -> RedriveRefused:
        cause = error.args[0]
        if cause.code() in FENCED:
            return RedriveRefused(
                f"another redrive of {self._topic}-{partition} has taken over: look again when it has ended."
            )
        return RedriveRefused(f"the broker does not take the records ({cause.str()}): try again.")

    def _send(self, producer: MarkedProducer, batch: RedriveBatch, records: dict[int, _Record]) -> None:
        producer.begin()
        for record in records.values():
            producer.produce(
                record.topic,
                partition=record.partition,
                value=record.value,
                key=record.key,
                headers=[*record.headers],
            )
        self._on_step("produced")
        producer.mark(TopicPartition(self._topic, batch.partition, batch.sequence, metadata=batch.identity))
        self._on_step("marked")
        producer.commit()
        self._on_step("committed")

    def _close(self, batch: RedriveBatch) -> int:
        closed = self._batches.close(batch)
        self._on_step("closed")
        return closed

    def _wait(self, sent: int) -> None:
        if self._rate is not None:
            time.sleep(sent / self._rate)

    def _records(self, batch: RedriveBatch) -> dict[int, _Record]:
        """Return what is sent for each letter that has a record, in the order of their sources."""
        with Originals(self._settings, self._topic) as letters_read:
            found = [DeadLetter.of(message) for message in letters_read.read(batch.partition, batch.offsets)]
        letters = sorted(found, key=Place.of)
        targets = {name for each in letters if (name := batch.target_topic or each.source_topic)}
        there = self._topics.describe(targets)
        originals = self._originals([letter for letter in letters if not _is_copy(letter)])
        records: dict[int, _Record] = {}
        for letter in letters:
            target = batch.target_topic or letter.source_topic
            record = (
                (letter.key, letter.value, original_headers(letter))
                if _is_copy(letter)
                else originals.get((letter.source_topic, letter.source_partition, letter.source_offset))
            )
            if target is not None and record is not None:
                key, value, own = record
                headers = redriven_headers(letter, self._topic, own, batch.only_group)
                partition = Place.of(letter).source_partition
                has_it = target in there and 0 <= partition < there[target].partitions
                partition = partition if has_it and not batch.by_key else PARTITION_UA
                records[letter.offset] = _Record(target, partition, key, value, headers)
        return records

    def _originals(
        self, letters: list[DeadLetter]
    ) -> dict[
        tuple[str | None, int | None, int | None], tuple[bytes | None, bytes | None, tuple[Header, ...]]
    ]:
        """The records that letters without a copy stand for, where the source still has them."""
        wanted: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for letter in letters:
            topic, partition, offset = letter.source_topic, letter.source_partition, letter.source_offset
            if topic is not None and partition is not None and offset is not None:
                wanted.setdefault((topic, partition), []).append((offset, offset + 1))
        there = self._topics.describe({topic for topic, _ in wanted})
        found: dict[
            tuple[str | None, int | None, int | None], tuple[bytes | None, bytes | None, tuple[Header, ...]]
        ] = {}
        for (topic, partition), ranges in wanted.items():
            if topic not in there or not self._batches.is_source(topic, there[topic].topic_id):
                continue  # deleted, or made again since: what lies there now is another record
            with Originals(self._settings, topic) as source:
                for message in source.read(partition, OffsetSet.of(*ranges)):
                    key, value = message.key(), message.value()
                    found[topic, partition, message.offset()] = (
                        key.encode() if isinstance(key, str) else key,
                        value.encode() if isinstance(value, str) else value,
                        headers_of(message),
                    )
        return found


def _is_copy(letter: DeadLetter) -> bool:
    """Whether the letter holds the record: ours then have the original's timestamp, a broker's have content."""
    return letter.value is not None or letter.header(ORIGINAL_TIMESTAMP) is not None
