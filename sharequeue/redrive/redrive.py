"""How do dead letters get back to work, each once, whoever dies when?

The same three steps by which dead letters get into their topic. A numbered batch of letters is stored in Postgres
before anything is sent. One Kafka transaction sends the records to their topic, with the marker of the batch
(`sharequeue.kafka.transactions`). The batch is closed once the broker has confirmed it. After a crash the next
redrive first ends the open transaction, then asks whether the batch was sent, then goes on. Postgres remembers every
letter that was sent, so no other redrive, later or at the same time, sends it again. Which letters, and what the
records look like, is in `redrive.selection`.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
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
    RedriveRefused,
    Selection,
    check_offsets,
    original_headers,
    redrive_count,
    redriven_headers,
)
from sharequeue.settings import Settings
from sharequeue.state import State

BATCH_RECORDS = 500
MAX_REDRIVES = 3
"""A record that was put back so often is not put back again: what fails a fourth time needs a person."""

Step = Literal["initialised", "opened", "produced", "marked", "committed", "closed"]


@dataclass(frozen=True, slots=True)
class RedrivePlan:
    """What a redrive would do, in letters."""

    chosen: dict[int, OffsetSet] = field(default_factory=dict)
    """By partition of the dead-letter topic."""
    targets: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    sent_before: int = 0
    looping: int = 0
    """Put back so often that the guard holds them."""
    groups: frozenset[str] = frozenset()
    """The share groups whose letters the topic holds."""
    other_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By target topic: share groups that get the records too, though the letters are not theirs."""

    @property
    def letters(self) -> int:
        """How many would be sent."""
        return sum(offsets.count for offsets in self.chosen.values())


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
    key: bytes | None
    value: bytes | None
    headers: list[Header]


class Redrive:
    """Puts letters of one dead-letter topic back into the topics they came from, or into `target`.

    `only_group` is the one share group that is to get the records: they carry its name in a header, and runs of other
    groups skip them. `rate` is records a second at most, `max_redrives` the loop guard. `on_step` is called at each
    step.

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
        chosen: dict[int, list[tuple[int, int]]] = {}
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
                chosen.setdefault(letter.partition, []).append((letter.offset, letter.offset + 1))
                targets[self._target or letter.source_topic] += 1
                chosen_groups.add(letter.group or "")
                causes[letter.cause or "unknown"] += 1
        letters.check(self._selection, self._topic, self._batches.group_names, self._topics)
        self._require_targets({*targets, *([self._target] if self._target else [])})
        return RedrivePlan(
            {partition: OffsetSet.of(*ranges) for partition, ranges in sorted(chosen.items())},
            targets,
            causes,
            sent_before,
            looping,
            frozenset(letters.groups),
            self._other_groups(targets, chosen_groups),
        )

    def _require_targets(self, targets: set[str]) -> None:
        missing = sorted(targets - set(self._topics.describe(targets)))
        if missing:
            raise RedriveRefused(
                f"there is no topic `{missing[0]}` to send to. {nearest(missing[0], self._topics.names(), 'topics')} "
                "Create it, name another, or choose letters of other topics."
            )

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
        redrive_id = self._batches.begin(str(self._selection), self._target, self._only_group, plan.targets)
        report = RedriveReport(redrive_id)
        partitions = {**dict.fromkeys(self._batches.open_partitions(), EMPTY), **plan.chosen}
        for partition, wanted in sorted(partitions.items()):
            for line in self._partition(partition, wanted, report):
                progress(line)
        self._batches.end(redrive_id)
        if report.sent:
            with suppress(ShareError):
                self._topics.settle(plan.targets)
        report.seconds = time.monotonic() - began
        return report

    def _partition(self, partition: int, wanted: OffsetSet, report: RedriveReport) -> Iterator[str]:
        try:
            with (
                MarkerGroup(self._settings, f"sharequeue.redrive.{self._topic}") as markers,
                MarkedProducer(
                    self._settings,
                    f"sharequeue.redrive.{self._topic}.{partition}",
                    markers,
                    lambda error: self._refused(partition, error),
                    # As Kafka's own producers choose a partition, so that a key stays where it was.
                    partitioner="murmur2_random",
                ) as producer,
            ):
                self._on_step("initialised")
                while batch := self._batches.open(partition, report.redrive_id, wanted, self._batch_records):
                    self._on_step("opened")
                    wanted = wanted - batch.offsets
                    found = markers.committed(self._topic, partition)
                    if (found.offset, found.metadata) == (batch.sequence, batch.identity):
                        report.resumed += self._close(batch)
                        continue
                    records = self._records(batch)
                    if lost := batch.offsets.count - len(records):
                        report.gone += lost
                        batch = self._batches.trim(batch, OffsetSet.from_offsets(records))
                    if records:
                        self._send(producer, batch, records)
                    sent = self._close(batch)
                    report.sent += sent
                    yield f"{self._topic}-{partition}: {sent} records put back (batch {batch.sequence})"
                    self._wait(sent)
        except KafkaException as error:
            raise self._refused(partition, error) from error

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
            producer.produce(record.topic, value=record.value, key=record.key, headers=[*record.headers])
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
        """What is sent for each letter of a batch; a letter without a record is left out."""
        with Originals(self._settings, self._topic) as letters_read:
            letters = [
                DeadLetter.of(message) for message in letters_read.read(batch.partition, batch.offsets)
            ]
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
                records[letter.offset] = _Record(target, key, value, headers)
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
