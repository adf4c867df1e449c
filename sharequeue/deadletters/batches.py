"""What of an open batch is still to be written, and how is it written?

The inside of a drain, for one share-partition under one fence: open a batch, ask whether it was written already,
produce what is absent with the marker in one transaction, close it, open the next. What happens when it cannot be
written, or another writer takes over, is `deadletters`' matter; the transaction is `deadletters.transactions`'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Literal

from confluent_kafka import KafkaException, Message

from sharequeue.deadletters.attempts import Explanations, without_explanation
from sharequeue.deadletters.letters import (
    BATCH,
    MISSING,
    NOTHING,
    Header,
    Letter,
    LetterWriting,
    RecordCopy,
    copy_of,
    letters_of,
    read_dead_letters,
    record_bytes,
    without_content,
)
from sharequeue.deadletters.topic import DeadLetterTopic, refusal, unanswered
from sharequeue.deadletters.transactions import LetterProducer, Marker, Markers
from sharequeue.errors import ShareError
from sharequeue.kafka.records import Originals
from sharequeue.kafka.topics import Topics
from sharequeue.offsets import OffsetSet
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.values import DeadLetterBatch, SharePartition

PRODUCED_STEP = 1_000
"""The step `producing` is called after so many letters; in a smaller batch, after its half."""

LARGEST_LETTER_BYTES = 8_192
"""More than a letter without a copy can take; only a topic that takes less has to be measured against."""

Step = Literal["initialised", "opened", "begun", "producing", "marked", "committed", "closed"]
OnStep = Callable[[Step, SharePartition], None]


@dataclass(frozen=True, slots=True)
class BatchDone:
    """A batch that was closed, in records: written now, or found written by an earlier drain."""

    sequence: int
    written: int
    resumed: int


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """What is done at a time, so that a transaction ends well inside its time-out whatever the records hold."""

    records: int
    """Records of a batch at most."""
    transaction_bytes: int
    """A transaction that copies is committed once it holds so much, and the batch goes on in another."""


class BatchWriter:
    """Writes the batches of one share-partition to a topic that was found fit for them."""

    def __init__(
        self,
        settings: Settings,
        state: State,
        source: SharePartition,
        topic: DeadLetterTopic,
        markers: Markers,
        *,
        copying: bool,
        messages: bool,
        bounds: BatchBounds,
        on_step: OnStep,
    ) -> None:
        self._settings = settings
        self._state = state
        self._source = source
        self._topic = topic
        self._markers = markers
        self._copying = copying
        self._messages = messages
        self._bounds = bounds
        self._on_step = on_step

    def write(self) -> Iterator[BatchDone]:
        """Write every batch that waits, one after the other; yield each when it is closed.

        Raises `Fenced` when another writer took over, `CannotWrite` when the broker does not let it; the batch that
        was at work is then still open, and nothing of it is visible unless all of it is.
        """
        with ExitStack() as open_clients:
            producer = open_clients.enter_context(
                LetterProducer(self._settings, self._source, self._topic, self._markers)
            )
            self._step("initialised")
            source_id = self._source_topic_id()
            originals: Originals | None = None
            explanations = Explanations(messages=self._messages)
            # Opened only under the fence: nobody else's commit can come between what we read here and what we write.
            batch = self._open()
            asked = False
            while batch is not None:
                self._step("opened")
                marker = Marker.of(batch, self._topic)
                # Once we have written one ourselves, nobody but us can have written the next.
                absent = _records(batch) if asked else self._absent(batch, marker, source_id is not None)
                asked = True
                if absent:
                    if self._copying and source_id == batch.topic_id and originals is None:
                        originals = open_clients.enter_context(Originals(self._settings, self._source.topic))
                    explain = explanations.of(self._state.dead_letters.attempts(self._source, batch.sequence))
                    writing = LetterWriting(batch, explain)
                    placed = marker if source_id is not None else None
                    if self._copying or self._topic.max_message_bytes < LARGEST_LETTER_BYTES:
                        copies = self._copies(
                            batch, absent, originals if source_id == batch.topic_id else None
                        )
                        self._transact(producer, writing, absent, copies, placed)
                    else:
                        self._transact_all(producer, writing, absent, placed)
                closed = self._state.dead_letters.close(self._source, batch.sequence)
                self._step("closed")
                written = min(absent.count, closed)
                yield BatchDone(batch.sequence, written, closed - written)
                batch = self._open()

    def _open(self) -> DeadLetterBatch | None:
        return self._state.dead_letters.open(self._source, self._bounds.records)

    def _step(self, step: Step) -> None:
        self._on_step(step, self._source)

    def _source_topic_id(self) -> str | None:
        """The source topic's id now; None when the partition is gone, and with it the marker."""
        topic = self._source.topic
        try:
            info = Topics(self._settings).describe([topic]).get(topic)
        except ShareError as error:
            raise unanswered(error, f"grant DESCRIBE on topic `{topic}`") from error
        return info.topic_id if info is not None and self._source.partition < info.partitions else None

    def _absent(self, batch: DeadLetterBatch, marker: Marker, markable: bool) -> OffsetSet:
        """What of a batch is not in the topic yet."""
        records = _records(batch)
        found = self._markers.of(self._source) if markable else None
        if found is not None and found.is_of(marker.sequence, marker.batch):
            # A topic deleted and made again since has lost what was written. One of another name still has it.
            lost = found.topic == marker.topic and found.topic_id != marker.topic_id
            return records if lost else records - OffsetSet.of((0, found.through + 1))
        if found is not None and found.sequence < marker.sequence:
            return records
        if found is None and markable and marker.sequence == 1:
            return records
        # No marker, or one of another history: the letters themselves are asked.
        return records - self._present(marker)

    def _present(self, marker: Marker) -> OffsetSet:
        try:
            offsets = {
                letter.source_offset
                for letter in read_dead_letters(self._settings, self._topic.name)
                if letter.source_offset is not None and letter.header(BATCH) == marker.batch
            }
        except ShareError as error:
            raise unanswered(error, f"grant READ on topic `{self._topic.name}`") from error
        return OffsetSet.from_offsets(offsets)

    def _transact_all(
        self, producer: LetterProducer, writing: LetterWriting, absent: OffsetSet, marker: Marker | None
    ) -> None:
        """Write what is absent in one transaction: nothing is copied, and every letter fits."""
        every = _told_every(absent)
        producer.begin()
        self._step("begun")
        for number, headers in enumerate(writing.without_copies(absent), start=1):
            producer.write(None, None, headers)
            if number % every == 0:
                self._step("producing")
        self._commit(producer, marker, absent.end - 1)

    def _transact(
        self,
        producer: LetterProducer,
        writing: LetterWriting,
        absent: OffsetSet,
        copies: Iterable[tuple[Letter, RecordCopy]],
        marker: Marker | None,
    ) -> None:
        """Write what is absent, each letter no larger than the topic takes; in one transaction, unless copies make it
        too large for one.
        """
        every = _told_every(absent)
        last = absent.end - 1
        limit = self._topic.max_message_bytes
        produced_bytes = 0
        for number, (letter, copy) in enumerate(copies, start=1):
            if not producer.in_transaction:
                producer.begin()
                self._step("begun")
            headers = writing.headers(letter, copy.headers)
            size = record_bytes(copy.key, copy.value, headers)
            if size > limit:
                copy, headers = _fitting(writing, letter, copy, limit)
            else:
                produced_bytes += size
            producer.write(copy.key, copy.value, headers)
            if number % every == 0:
                self._step("producing")
            if letter.offset == last or produced_bytes >= self._bounds.transaction_bytes:
                self._commit(producer, marker, letter.offset)
                produced_bytes = 0

    def _commit(self, producer: LetterProducer, marker: Marker | None, through: int) -> None:
        if marker is not None:
            producer.mark(replace(marker, through=through).committed_at(self._source))
            self._step("marked")
        producer.commit()
        self._step("committed")

    def _copies(
        self, batch: DeadLetterBatch, absent: OffsetSet, originals: Originals | None
    ) -> Iterator[tuple[Letter, RecordCopy]]:
        """Every letter to write with what it takes over of its original; originals come as they are read."""
        letters = letters_of(batch, absent)
        if not self._copying:
            yield from zip(letters, repeat(NOTHING))
            return
        found = self._read(originals, absent)
        original = next(found, None)
        for letter in letters:
            if original is not None and original.offset() == letter.offset:
                yield letter, copy_of(original)
                original = next(found, None)
            else:
                yield letter, MISSING

    def _read(self, originals: Originals | None, offsets: OffsetSet) -> Iterator[Message]:
        if originals is None:
            return
        grant = f"grant READ on topic `{self._source.topic}`"
        try:
            yield from originals.read(self._source.partition, offsets)
        except ShareError as error:
            raise unanswered(error, grant) from error
        except KafkaException as error:
            raise refusal(error, grant) from error


def _fitting(
    writing: LetterWriting, letter: Letter, copy: RecordCopy, limit: int
) -> tuple[RecordCopy, list[Header]]:
    """A letter that the topic takes: without the record's content, and if need be without what explains it."""
    copy = without_content(copy) if copy.headers else copy
    headers = writing.headers(letter, copy.headers)
    if record_bytes(copy.key, copy.value, headers) > limit:
        headers = without_explanation(headers)
    return copy, headers


def _told_every(absent: OffsetSet) -> int:
    """After how many letters the step `producing` is called."""
    return max(1, min(PRODUCED_STEP, absent.count // 2))


def _records(batch: DeadLetterBatch) -> OffsetSet:
    return OffsetSet.of(*(bounds for run in batch.letters for bounds in run.offsets.ranges))
