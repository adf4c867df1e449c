"""The letters of one partition of a dead-letter topic, as a source of the outbox.

A record goes to its source partition if the topic has it, and records of one source partition are sent in the order
of their offsets there. So records with the same key keep their order, whichever partitioner their producer used.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import KafkaException

from sharequeue.deadletters.letters import DeadLetter
from sharequeue.deadletters.outbox import Marker, Record
from sharequeue.deadletters.redrive.batches import RedriveBatch, RedriveBatches
from sharequeue.deadletters.redrive.selection import Place, RedriveRefused, original_headers, redriven_headers
from sharequeue.kafka.reading import RecordReader
from sharequeue.kafka.topics import Topics
from sharequeue.kafka.transactions import FENCED
from sharequeue.words.offsets import EMPTY, OffsetSet

PARTITION_UA = -1
"""librdkafka's value for a partition that the client chooses."""


class RedrivenLetters:
    """Letters of one partition that are redriven in batches: a `Source` of the outbox.

    `wanted` has the letters to send together, in order. An open batch of a killed redrive comes first, because it was
    chosen earlier.
    """

    def __init__(
        self,
        batches: RedriveBatches,
        partition: int,
        redrive_id: uuid.UUID,
        wanted: Iterable[OffsetSet],
        max_records: int,
        *,
        topics: Topics,
        reader: RecordReader,
    ) -> None:
        self._batches = batches
        self._redrive_id = redrive_id
        self._wanted = deque(wanted)
        self._max_records = max_records
        self._topics = topics
        self._reader = reader
        self.gone = 0
        """Letters without a record to send."""
        self.place = batches.topic, partition
        self.transactional_id = f"sharequeue.redrive.{batches.topic}.{partition}"
        # The partitioner of Kafka's own producers, for records without a given partition.
        self.producer: dict[str, Any] = {"partitioner": "murmur2_random"}

    def open(self) -> RedriveBatch | None:
        """Return the open batch, or a new one of the next wanted letters that were never sent."""
        _, partition = self.place
        while self._wanted:
            batch = self._batches.open(partition, self._redrive_id, self._wanted[0], self._max_records)
            self._wanted[0] -= EMPTY if batch is None else batch.offsets
            if batch is None or not self._wanted[0]:
                self._wanted.popleft()
            if batch is not None:
                return batch
        return None

    def marker(self, batch: RedriveBatch) -> Marker:
        """Return the batch's marker."""
        return Marker(batch.sequence, batch.identity)

    def written(self, batch: RedriveBatch, found: Marker | None) -> OffsetSet:
        """Return nothing: without its marker, no record of a batch was sent."""
        return EMPTY

    def close(self, batch: RedriveBatch) -> int:
        """Close a batch: its letters were sent."""
        return self._batches.close(batch)

    def failure(self, error: KafkaException) -> RedriveRefused:
        """Return the error that ends the redrive, with what to do."""
        topic, partition = self.place
        cause = error.args[0]
        if cause.code() in FENCED:
            return RedriveRefused(
                f"another redrive of {topic}-{partition} has taken over: wait until it has ended, and "
                "check the rest."
            )
        return RedriveRefused(f"the broker does not accept the records ({cause.str()}): try again.")

    def records(self, batch: RedriveBatch, wanted: OffsetSet) -> list[Record]:
        """Return the record to send for each letter that has one, in the order of their sources.

        The batch is reduced by the letters without a record.
        """
        found = [DeadLetter.of(message) for message in self._reader.read(*self.place, wanted)]
        letters = sorted(found, key=Place.of)
        targets = {name for each in letters if (name := batch.target_topic or each.source_topic)}
        sizes = {name: info.partitions for name, info in self._topics.describe(targets).items()}
        originals = self._originals(letter for letter in letters if not letter.is_copy)
        records: list[Record] = []
        for letter in letters:
            target, source = batch.target_topic or letter.source_topic, Place.of(letter)
            original = letter if letter.is_copy else originals.get(source[:3])
            if target is None or original is None:
                continue
            own = original_headers(letter) if letter.is_copy else original.headers
            known = 0 <= source.source_partition < sizes.get(target, 0) and not batch.by_key
            records.append(
                (
                    letter.offset,
                    target,
                    source.source_partition if known else PARTITION_UA,
                    original.key,
                    original.value,
                    redriven_headers(letter, self._batches.topic, own, batch.only_group),
                    0,
                )
            )
        if lost := wanted.count - len(records):
            self.gone += lost
            self._batches.trim(batch, OffsetSet.from_offsets(offset for offset, *_ in records))
        return records

    def _originals(self, letters: Iterable[DeadLetter]) -> dict[tuple[str, int, int], DeadLetter]:
        """Return the source records of letters without a copy, if the source still has them."""
        wanted: dict[tuple[str, int], list[int]] = {}
        for source in map(Place.of, letters):
            if source.topic and source.source_partition >= 0 and source.source_offset >= 0:
                wanted.setdefault(source[:2], []).append(source.source_offset)
        is_source = source_check(self._batches, self._topics, {topic for topic, _ in wanted})
        return {
            (topic, partition, record.offset): record
            for (topic, partition), offsets in wanted.items()
            if is_source(topic)
            for message in self._reader.read(topic, partition, OffsetSet.from_offsets(offsets))
            if message.error() is None  # of a damaged batch there is nothing to send
            for record in [DeadLetter.of(message)]
        }


def source_check(batches: RedriveBatches, topics: Topics, names: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that checks whether one of these topics is still the one that letters name.

    It is not if it was deleted or created again since: then it holds other records.
    """
    there = topics.describe(names)
    found = {name for name, info in there.items() if batches.is_source(name, info.topic_id)}
    return lambda topic: topic in found
