"""The letters of one partition of a dead-letter topic, as a source of the outbox.

A record goes to its source partition if the topic has it, and records of one source partition are sent in the order
of their offsets there. So records with the same key keep their order, whichever partitioner their producer used.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from sharequeue.deadletters.hidden import read_settled
from sharequeue.deadletters.letters import DeadLetter, record_bytes
from sharequeue.deadletters.outbox import Marker, Record
from sharequeue.deadletters.redrive.batches import RedriveBatch, RedriveBatches
from sharequeue.deadletters.redrive.held_keys import HoldingLetters
from sharequeue.deadletters.redrive.originals import Originals
from sharequeue.deadletters.redrive.selection import (
    REDRIVE_BATCH,
    REDRIVE_FROM,
    LetterPosition,
    RedriveRefused,
    check_same,
    original_headers,
    redrive_count,
    redriven_headers,
)
from sharequeue.domain.offsets import EMPTY, MAX_OFFSET, OffsetSet
from sharequeue.domain.record_bytes import number_of
from sharequeue.domain.settings import Settings
from sharequeue.kafka.reading import RecordReader
from sharequeue.kafka.topics import Topics, is_same
from sharequeue.kafka.transactions import FENCED
from sharequeue.state.dead_letters import NOTHING_FREED

PARTITION_UA = -1
"""librdkafka's value for a partition that the client chooses."""
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})


@dataclass(frozen=True, slots=True)
class RefusedLetter:
    """A letter that could not be sent. It stays a letter, and the next redrive of it tries again."""

    partition: int
    offset: int
    reason: str
    """Why, and what to do."""


def refused_by_reason(letters: Iterable[RefusedLetter]) -> dict[str, list[str]]:
    """Return the letters by their reason, as texts that `parse_offsets` takes."""
    found: dict[str, dict[int, list[int]]] = {}
    for each in letters:
        found.setdefault(each.reason, {}).setdefault(each.partition, []).append(each.offset)
    return {
        reason: [
            f"{partition}:{first}" if first == last else f"{partition}:{first}-{last}"
            for partition, offsets in sorted(by_partition.items())
            for first, last in OffsetSet.from_offsets(offsets).runs()
        ]
        for reason, by_partition in found.items()
    }


class RedrivenLetters:
    """Letters of one partition that are redriven in batches: an `OutboxSource`.

    `wanted` has the letters to send together, in order. An open batch of a killed redrive comes first, because it was
    chosen earlier. A letter that cannot be sent is left out of its batch: `gone`, `looping`, `refused_letters`.
    """

    def __init__(
        self,
        settings: Settings,
        batches: RedriveBatches,
        partition: int,
        redrive_id: uuid.UUID,
        wanted: Iterable[OffsetSet],
        max_records: int,
        *,
        max_redrives: int,
        topics: Topics,
        reader: RecordReader,
        producer: Mapping[str, Any],
        holding: HoldingLetters,
    ) -> None:
        self._settings = settings
        self._batches = batches
        self._wanted = deque((redrive_id, offsets) for offsets in wanted)
        self._redrive_id = redrive_id
        self._max_records = max_records
        self._max_redrives = max_redrives
        self._topics = topics
        self._reader = reader
        self._originals = Originals(batches, topics, reader)
        self._holding = holding
        self.freed = NOTHING_FREED
        """The keys that go on because their letters were sent."""
        self.gone = 0
        """Letters without a record to send."""
        self.looping = 0
        """Letters without a copy, whose record was redriven too often."""
        self._bare = set[int]()
        """Letters that are sent from a copy without the record's headers."""
        self._refused: dict[int, str] = {}
        """Why letters could not be sent, by offset."""
        self._left_out: set[int] = set()
        self._targets: dict[int, str] = {}
        """The target of each letter of the batch that was built."""
        self.place = batches.topic, partition
        self.transactional_id = f"sharequeue.redrive.{batches.topic}.{partition}"
        # The partitioner of Kafka's own producers, for records without a given partition.
        self.producer: dict[str, Any] = {"partitioner": "murmur2_random", **producer}

    @property
    def refused_letters(self) -> list[RefusedLetter]:
        """The letters that could not be sent."""
        return [
            RefusedLetter(self.place[1], offset, reason) for offset, reason in sorted(self._refused.items())
        ]

    @property
    def without_headers(self) -> int:
        """The number of letters that were sent from a copy without the record's headers: the record is gone."""
        return len(self._bare - set(self._refused))

    def open(self) -> RedriveBatch | None:
        """Return the open batch, or a new one of the next wanted letters that were never sent."""
        while True:
            redrive_id, wanted = self._wanted[0] if self._wanted else (self._redrive_id, EMPTY)
            batch = self._batches.open(self.place[1], redrive_id, wanted, self._max_records)
            left = wanted - (EMPTY if batch is None else batch.offsets)
            if self._wanted:
                self._wanted.popleft()
            if batch is not None and left:
                self._wanted.appendleft((redrive_id, left))
            if batch is not None or not self._wanted:
                return batch

    def marker(self, batch: RedriveBatch) -> Marker:
        """Return the batch's marker."""
        return Marker(batch.sequence, batch.identity)

    def written(self, batch: RedriveBatch) -> OffsetSet:
        """Return the letters of a batch whose records are in one of the targets."""
        sent = set[int]()
        for topic, info in self._topics.describe(batch.targets).items():
            known = batch.targets[topic]
            first = known.ends if known.topic_id == info.topic_id else {}
            for record in read_settled(self._settings, topic, first):
                offset = number_of((record.header(REDRIVE_FROM) or "").rpartition(":")[2], MAX_OFFSET)
                if record.header(REDRIVE_BATCH) == batch.identity and offset is not None:
                    sent.add(offset)
        return OffsetSet.from_offsets(sent)

    def part(self, batch: RedriveBatch, written: Callable[[], OffsetSet]) -> RedriveBatch:
        """Return the batch cut to what is written; the rest is the next batch of the same redrive.

        Letters are not sent in the order of their offsets, so that no offset shows how far a batch is written.
        """
        self._check_same(batch)
        done = written()
        left = batch.offsets - done - OffsetSet.from_offsets(self._left_out)
        if left:
            self._wanted.appendleft((batch.redrive_id, left))
        return self._batches.trim(batch, done)

    def refused(self, batch: RedriveBatch, reasons: Mapping[int, KafkaError]) -> None:
        """Leave these letters out of the batch, and remember why."""
        for offset, error in sorted(reasons.items()):
            self._refuse(offset, _reason(self._targets[offset], error))
        self._batches.trim(batch, batch.offsets - OffsetSet.from_offsets(self._left_out))

    def close(self, batch: RedriveBatch) -> int:
        """Close a batch: its letters were sent, also those that an earlier redrive could not send elsewhere."""
        sent = batch.offsets - OffsetSet.from_offsets(self._left_out)
        for offset in sent.iter_offsets():
            self._refused.pop(offset, None)
        closed = self._batches.close(batch)
        self.freed += self._batches.free_keys(self._holding.of({batch.partition: sent}))
        return closed

    def failure(self, error: KafkaException) -> RedriveRefused:
        """Return the error that ends the redrive, with what to do."""
        topic, partition = self.place
        cause = error.args[0]
        if cause.code() in FENCED:
            return RedriveRefused(
                f"another redrive of {topic}-{partition} has taken over: wait until it has ended, and "
                "check the rest."
            )
        if cause.code() == KafkaError.UNKNOWN:
            # A commit between another producer's fence and the abort that follows it has no other error.
            return RedriveRefused(
                f"the broker does not accept the records ({cause.str()}): another redrive of {topic}-{partition} may "
                "have taken over. Wait until it has ended, and try again."
            )
        return RedriveRefused(f"the broker does not accept the records ({cause.str()}): try again.")

    def records(self, batch: RedriveBatch, wanted: OffsetSet) -> Iterator[Record]:
        """Yield the record to send for each letter that has one, in the order of their sources.

        Then the batch is reduced by the letters that are left out. Raises RedriveRefused if one of the topics was
        created again meanwhile, before anything is committed.
        """
        self._originals = Originals(self._batches, self._topics, self._reader)
        self._targets = {}
        self._check_same(batch)
        found = [DeadLetter.of(message) for message in self._reader.read(*self.place, wanted)]
        letters = sorted(found, key=LetterPosition.of)
        gone = wanted - OffsetSet.from_offsets(each.offset for each in letters)
        self.gone += gone.count
        self._left_out = set(gone.iter_offsets())
        self._targets = {each.offset: batch.target_topic or each.source_topic or "" for each in letters}
        sizes, refusals = self._sizes(batch, set(self._targets.values()) - {""})
        for letter, original in self._originals.of(letters):
            target = self._targets[letter.offset]
            if refusal := original if isinstance(original, str) else refusals.get(target):
                self._refuse(letter.offset, refusal)
            elif original is None or isinstance(original, str) or not target:
                self.gone += 1
                self._left_out.add(letter.offset)
            elif original is not letter and redrive_count(original.headers) >= self._max_redrives:
                self.looping += 1
                self._left_out.add(letter.offset)
            else:
                if original is letter and not letter.is_copy:
                    self._bare.add(letter.offset)
                yield self._record(batch, letter, original, target, sizes[target])
        self._check_same(batch)
        if self._left_out:
            self._batches.trim(batch, batch.offsets - OffsetSet.from_offsets(self._left_out))

    def _check_same(self, batch: RedriveBatch) -> None:
        """Raise RedriveRefused if the dead-letter topic, a source that was read, or a target was created again."""
        sent_to = {self._targets[offset] for offset in self._targets.keys() - self._left_out}
        targets = {name: log.topic_id for name, log in batch.targets.items() if name in sent_to}
        own = {self._batches.topic: self._batches.topic_id}
        check_same(self._topics, {**targets, **self._originals.topic_ids, **own})

    def _record(
        self, batch: RedriveBatch, letter: DeadLetter, original: DeadLetter, target: str, partitions: int
    ) -> Record:
        """Return the record to send for a letter, whose content is in `original`."""
        own = original_headers(letter) if original is letter else original.headers
        headers = redriven_headers(letter, self._batches.topic, own, batch.only_group, batch.identity)
        partition = LetterPosition.of(letter).source_partition
        return (
            letter.offset,
            target,
            partition if 0 <= partition < partitions and not batch.by_key else PARTITION_UA,
            original.key,
            original.value,
            headers,
            record_bytes(original.key, original.value, headers),
            0,
        )

    def _refuse(self, offset: int, reason: str) -> None:
        """Leave a letter out of its batch, and remember why."""
        self._left_out.add(offset)
        self._refused[offset] = reason

    def _sizes(self, batch: RedriveBatch, targets: Collection[str]) -> tuple[dict[str, int], dict[str, str]]:
        """Return the number of partitions of the targets, and why others take no records."""
        found = self._topics.ask(targets)
        sizes, refusals = dict[str, int](), dict[str, str]()
        for topic in targets:
            known = batch.targets.get(topic)
            if topic in found.refused:
                refusals[topic] = found.refused[topic].message
            elif topic not in found.known:
                refusals[topic] = f"there is no topic {topic} any more"
            elif known is None or not is_same(found.known, topic, known.topic_id):
                refusals[topic] = f"{topic} was created again since its redrive began: start another one"
            else:
                sizes[topic] = found.known[topic].partitions
        return sizes, refusals


def _reason(topic: str, error: KafkaError) -> str:
    """Return why a topic does not take a record, and what to do."""
    if error.code() in _TOO_LARGE:
        remedy = f"raise max.message.bytes of {topic}, or send it to a topic that takes it (--to)"
    elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        remedy = f"grant WRITE on topic {topic}"
    elif error.code() == KafkaError.INVALID_RECORD:
        remedy = "a compacted topic takes no record without a key; else see the broker's log"
    else:
        remedy = "see the broker's log"
    return f"{topic} refuses the record ({error.str()}): {remedy}"
