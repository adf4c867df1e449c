"""The batches of dead letters of one share-partition, as the outbox writes them.

This module finds what is already written of a batch, builds its letters, and chooses their partition. The content of
a letter is in `deadletters.letters`, the writing to Kafka in `deadletters.outbox`.

The marker is lost when the broker removes it (`offsets.retention.minutes`, 7 days after the last batch by default) or
the source topic is deleted. Then, and if it belongs to a deleted group of the same name, the letters themselves are
read and only the missing ones are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import repeat
from typing import Any
from urllib.parse import quote
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, Message

from sharequeue.deadletters.attempts import Explanations, without_explanation
from sharequeue.deadletters.hidden import read_settled
from sharequeue.deadletters.letters import (
    BATCH,
    MISSING,
    NOTHING,
    Letter,
    LetterWriting,
    RecordCopy,
    copy_of,
    letters_of,
    record_bytes,
    without_content,
)
from sharequeue.deadletters.outbox import Fenced, Marker, Record
from sharequeue.deadletters.topic import CannotWrite, DeadLetterTopic, broker_refusal, unanswered
from sharequeue.domain.errors import ShareError
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.record_bytes import offsets_by_key
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import DeadLetterBatch, SharePartition
from sharequeue.kafka.headers import Header
from sharequeue.kafka.reading import RecordReader, offset_of
from sharequeue.kafka.topics import Topics
from sharequeue.kafka.transactions import FENCED, LARGEST_MESSAGE_BYTES, takes_commits
from sharequeue.state import State

LARGEST_LETTER_BYTES = 8_192
"""The maximum size of a letter without a copy; letters are measured only if the topic's limit is lower."""


def marker_group(group_id: str) -> str:
    """Return the consumer group under which the markers of a share group are committed.

    The client refuses to commit for a group whose name is not printable ASCII. Such a name is URL-encoded, after a
    prefix that no other group has.
    """
    if takes_commits(group_id):
        return f"sharequeue.dlq.{group_id}"
    return f"sharequeue.dlq-encoded.{quote(group_id, safe='')}"


def transactional_id(at: SharePartition) -> str:
    """Return the id for the letters of a share-partition. No topic has a colon, so that no other has the same id."""
    return f"sharequeue.dlq.{at.group_id}:{at.topic}-{at.partition}"


class LetterBatches:
    """The dead letters of one share-partition: an `OutboxSource`.

    `originals` reads the source records if the letters are copies. With `messages`, letters have the messages of
    exceptions. With `hold_keys`, the state gets the key of each letter, which holds later records of its key.
    `max_records` limits a batch.
    """

    def __init__(
        self,
        settings: Settings,
        state: State,
        share_partition: SharePartition,
        topic: DeadLetterTopic,
        originals: RecordReader,
        *,
        copying: bool,
        messages: bool,
        hold_keys: bool,
        max_records: int,
    ) -> None:
        at = share_partition
        self._settings = settings
        self._letters = state.dead_letters
        self._at = at
        self._topic = topic
        self._originals = originals
        self._copying = copying
        self._hold_keys = hold_keys
        self._explanations = Explanations(messages=messages)
        self._max_records = max_records
        self.transactional_id = transactional_id(at)
        self.place = at.topic, at.partition
        self.producer: dict[str, Any] = {
            # Not compressed, as the broker's own dead letters.
            "compression.type": "none",
            # The client's own limit must not be lower than the topic's, within the bounds that the client allows.
            "message.max.bytes": min(max(topic.max_message_bytes, 1000), LARGEST_MESSAGE_BYTES),
            # A batch never exceeds the topic's limit.
            "batch.size": max(1, min(1_000_000, topic.max_message_bytes)),
        }

    def open(self) -> DeadLetterBatch | None:
        """Return the open batch, or a new one of the lowest waiting offsets."""
        return self._letters.open(self._at, self._max_records)

    def close(self, batch: DeadLetterBatch, *, dropped: bool = False) -> int:
        """Close a batch: its records become ARCHIVED."""
        keys = self._keys_of(batch) if self._hold_keys and not dropped else {}
        return self._letters.close(batch, dropped=dropped, keys=keys)

    def marker(self, batch: DeadLetterBatch) -> Marker | None:
        """Return the batch's marker; None if the source partition, for which it is committed, no longer exists."""
        if self._source_topic_id is None:
            return None
        return Marker(batch.sequence, batch.identity, self._topic.name, self._topic.topic_id)

    def written(self, batch: DeadLetterBatch) -> OffsetSet:
        """Return the offsets of a batch whose letters are in the topic."""
        identity = batch.identity
        try:
            offsets = {
                letter.source_offset
                for letter in read_settled(self._settings, self._topic.name, batch.opened_at)
                if letter.source_offset is not None and letter.header(BATCH) == identity
            }
        except ShareError as error:
            raise unanswered(error, f"grant READ on topic `{self._topic.name}`") from error
        return OffsetSet.from_offsets(offsets)

    def part(self, batch: DeadLetterBatch, written: Callable[[], OffsetSet]) -> DeadLetterBatch:
        """Return the whole batch: letters are written in the order of offsets, so the marker shows how far."""
        self._check_source(batch)
        return batch

    def refused(self, batch: DeadLetterBatch, reasons: Mapping[int, KafkaError]) -> None:
        """Raise why the letters are held: each fits into its topic as it was, and none is left out."""
        raise self.failure(KafkaException(next(iter(reasons.values()))))

    def records(self, batch: DeadLetterBatch, wanted: OffsetSet) -> Iterator[Record]:
        """Yield the letters of these offsets, ascending, each within the topic's size limit."""
        writing = LetterWriting(batch, self._explanations.of(batch.attempts))
        name, limit = self._topic.name, self._topic.max_message_bytes
        partition = self._topic.partition_for(self._at.partition)
        if not self._copying and limit >= LARGEST_LETTER_BYTES:
            # Nothing is copied, and every letter fits.
            measured, size = None, 0
            for offset, headers in zip(wanted.iter_offsets(), writing.without_copies(wanted), strict=True):
                if headers is not measured:
                    measured, size = headers, record_bytes(None, None, headers.items())
                yield offset, name, partition, None, None, headers, size, 0
            return
        for letter, copy in self._copies(batch, wanted):
            whole = writing.headers(letter, copy.headers)
            size = record_bytes(copy.key, copy.value, whole)
            if size > limit:
                copy, whole = _fitting(writing, letter, copy, limit)
                size = record_bytes(copy.key, copy.value, whole)
            yield letter.offset, name, partition, copy.key, copy.value, whole, size, 0

    def failure(self, error: KafkaException) -> Exception:
        """Return `Fenced` if another writer took over, else `CannotWrite` with what to do."""
        cause: Any = error.args[0]
        if cause.code() in FENCED:
            return Fenced(cause.str())
        if cause.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            grant = f"grant WRITE on transactional id `{self.transactional_id}`"
        elif cause.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            grant = f"grant READ on group `{marker_group(self._at.group_id)}`"
        else:
            grant = f"grant WRITE on topic `{self._topic.name}`, and READ on topic `{self._at.topic}`"
        return broker_refusal(error, grant)

    @cached_property
    def _source_topic_id(self) -> str | None:
        """The source topic's current id; None if the partition no longer exists."""
        topic = self._at.topic
        try:
            info = Topics(self._settings).describe([topic]).get(topic)
        except ShareError as error:
            raise unanswered(error, f"grant DESCRIBE on topic `{topic}`") from error
        return info.topic_id if info is not None and self._at.partition < info.partitions else None

    def _copies(self, batch: DeadLetterBatch, wanted: OffsetSet) -> Iterator[tuple[Letter, RecordCopy]]:
        """Yield every letter to write with its copy of the original; originals are read as needed."""
        letters = letters_of(batch, wanted)
        if not self._copying:
            yield from zip(letters, repeat(NOTHING))
            return
        # A topic that was created again holds other records.
        found = self._read(wanted) if self._source_topic_id == batch.topic_id else iter(())
        original = next(found, None)
        for letter in letters:
            if original is not None and offset_of(original) == letter.offset:
                yield letter, copy_of(original)
                original = next(found, None)
            else:
                yield letter, MISSING
        self._check_source(batch)

    def _keys_of(self, batch: DeadLetterBatch) -> dict[UUID | None, OffsetSet]:
        """Return the offsets of each key of a batch; without those whose record can no longer be read.

        They are read when the batch is closed, because an earlier writer may have written it.
        """
        if self._source_topic_id != batch.topic_id:
            return {}
        read = (message for message in self._read(batch.offsets) if message.error() is None)
        return offsets_by_key((offset_of(message), message.key()) for message in read)

    def _check_source(self, batch: DeadLetterBatch) -> None:
        """Raise `CannotWrite` if the source was created again while its records were copied: it holds others now."""
        if not self._copying or self._source_topic_id != batch.topic_id:
            return
        del self._source_topic_id
        if self._source_topic_id != batch.topic_id:
            raise CannotWrite(
                f"topic `{self._at.topic}` was deleted or created again while its records were copied: the records "
                "wait, and the next attempt writes them without a copy.",
                lasting=False,
            )

    def _read(self, offsets: OffsetSet) -> Iterator[Message]:
        grant = f"grant READ on topic `{self._at.topic}`"
        try:
            yield from self._originals.read(*self.place, offsets)
        except ShareError as error:
            raise unanswered(error, grant) from error
        except KafkaException as error:
            raise broker_refusal(error, grant) from error


def _fitting(
    writing: LetterWriting, letter: Letter, copy: RecordCopy, limit: int
) -> tuple[RecordCopy, list[Header]]:
    """Return a letter that fits the topic: without the record's content, and if necessary without the attempts'
    headers."""
    copy = without_content(copy) if copy.headers else copy
    headers = writing.headers(letter, copy.headers)
    if record_bytes(copy.key, copy.value, headers) > limit:
        headers = without_explanation(headers)
    return copy, headers
