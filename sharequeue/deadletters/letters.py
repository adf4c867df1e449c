"""What does a dead letter contain, and how is it read back?

A dead letter is a Kafka record whose headers name where the record it stands for lies and why it was given
up. First come Kafka 4.4's own six, in Kafka's order and to the byte (KIP-1191; Kafka's
`ShareGroupDLQRecord`), then ours under the prefix ``sharequeue.``. Which topic takes it is
`deadletters.topic`'s question, that it gets there exactly once `deadletters`'. Reading is always
read_committed, and letters are counted by reading: the markers of transactions take offsets too, so
differences of offsets count nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sharequeue.errors import BrokerNotAvailable
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import LogOffsets, Topics
from sharequeue.offsets import OffsetSet
from sharequeue.settings import Settings
from sharequeue.values import DeadLetterBatch

Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]

TOPIC = "__dlq.errors.topic"
PARTITION = "__dlq.errors.partition"
OFFSET = "__dlq.errors.offset"
GROUP = "__dlq.errors.group"
DELIVERY_COUNT = "__dlq.errors.delivery.count"
MESSAGE = "__dlq.errors.message"
KAFKA_HEADERS = (TOPIC, PARTITION, OFFSET, GROUP, DELIVERY_COUNT, MESSAGE)
"""Kafka's headers, in the order in which the broker writes them."""

SEQUENCE = "sharequeue.dead.letter.sequence"
"""The number of the batch that wrote the letter, per group and source partition."""
BATCH = "sharequeue.dead.letter.batch"
"""The identity of that batch: the same for all letters of one attempt at it, and no other batch has it."""
EXCEPTION_CLASS = "sharequeue.exception.class"
EXCEPTION_MESSAGE = "sharequeue.exception.message"
ORIGINAL_TIMESTAMP = "sharequeue.original.timestamp"
"""Milliseconds since the epoch, as the source topic had it; there when the original was read."""
ORIGINAL_HEADER = "sharequeue.original.header."
"""The prefix under which copied headers of the original stand, in their order, doubles included."""
RECORD_MISSING = "sharequeue.record.missing"
"""``true``: a copy was asked for, and the original was not in the log any more."""
RECORD_OVERSIZED = "sharequeue.record.oversized"
"""``true``: a copy was asked for, and it would have been larger than the topic takes."""

MESSAGES = {
    "rejected": "Offset rejected by client.",
    "exceeded": "Offset delivery count exceeded the threshold.",
}
"""Kafka's two messages, by cause."""

READ_TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.05
"""A poll ends only when it is full or its time is up, so the last one of a reading takes this long."""
_BATCH_OVERHEAD_BYTES = 61
"""A record batch's own header (Kafka's message format 2)."""
_RECORD_OVERHEAD_BYTES = 32
"""The most that a record's length, attributes, deltas and counts take as varints."""
_FIELD_OVERHEAD_BYTES = 5
"""The most that the length in front of a key, a value, a header's key or its value takes."""


class Letter(NamedTuple):
    """One offset of a batch: a record that was given up, and why."""

    offset: int
    delivery_count: int
    cause: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of a dead-letter topic. A header that is absent or not readable leaves its field None."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: datetime | None
    """When the letter was written (CreateTime), UTC."""

    @classmethod
    def of(cls, message: Message) -> Self:
        """The letter that a consumed message is."""
        _, milliseconds = message.timestamp()
        return cls(
            partition=_known(message.partition()),
            offset=_known(message.offset()),
            key=_bytes(message.key()),
            value=_bytes(message.value()),
            headers=headers_of(message),
            timestamp=datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds >= 0 else None,
        )

    @property
    def source_topic(self) -> str | None:
        """The topic that the record given up lies in."""
        return self.header(TOPIC)

    @property
    def source_partition(self) -> int | None:
        """Its partition there."""
        return _number(self.header(PARTITION))

    @property
    def source_offset(self) -> int | None:
        """Its offset there."""
        return _number(self.header(OFFSET))

    @property
    def group(self) -> str | None:
        """The share group that gave it up."""
        return self.header(GROUP)

    @property
    def delivery_count(self) -> int | None:
        """How often it was delivered."""
        return _number(self.header(DELIVERY_COUNT))

    @property
    def message(self) -> str | None:
        """Kafka's sentence on why."""
        return self.header(MESSAGE)

    @property
    def cause(self) -> str | None:
        """``rejected`` or ``exceeded``, by the message; None when it is neither of Kafka's two."""
        return next((cause for cause, message in MESSAGES.items() if message == self.message), None)

    @property
    def foreign(self) -> bool:
        """Whether it is no dead letter at all: it names neither a group nor a topic."""
        return self.group is None and self.source_topic is None

    @property
    def exception_class(self) -> str | None:
        """The class of what its handler raised at the last attempt."""
        return self.header(EXCEPTION_CLASS)

    @property
    def exception_message(self) -> str | None:
        """The message of what its handler raised at the last attempt."""
        return self.header(EXCEPTION_MESSAGE)

    @property
    def error(self) -> str | None:
        """Both, on one line; None when there is neither."""
        parts = [part for part in (self.exception_class, self.exception_message) if part]
        return " ".join(": ".join(parts).split()) or None

    def header(self, name: str) -> str | None:
        """The text of the first header of that name; None when there is none, or it is null or not UTF-8."""
        content = next((value for key, value in self.headers if key == name), None)
        try:
            return None if content is None else content.decode()
        except UnicodeDecodeError:
            return None


def header_texts(letter: DeadLetter) -> dict[str, str | None]:
    """What `header` returns for each name that the letter has; for whoever asks for many."""
    found: dict[str, str | None] = {}
    for name, content in letter.headers:
        if name not in found:
            try:
                found[name] = None if content is None else content.decode()
            except UnicodeDecodeError:
                found[name] = None
    return found


def letters_of(batch: DeadLetterBatch, wanted: OffsetSet) -> Iterator[Letter]:
    """The records of a batch whose offsets are wanted, ascending."""
    for first, end, delivery_count, cause in _alike(batch, wanted):
        for offset in range(first, end):
            yield Letter(offset, delivery_count, cause)


def _alike(batch: DeadLetterBatch, wanted: OffsetSet) -> list[tuple[int, int, int, str]]:
    """Ranges of offsets, ascending, with their delivery count and cause."""
    return sorted(
        (first, end, run.delivery_count, run.cause)
        for run in batch.letters
        for first, end in (run.offsets & wanted).ranges
    )


def batch_identity(batch: DeadLetterBatch) -> str:
    """A text that is the same for every attempt at this batch and for no other batch.

    The sequence number alone is not enough: it begins again at 1 when a group is deleted and made anew, while
    the broker still holds the marker and the letters of the group's earlier life. What the batch holds and when it
    was opened, to the microsecond, tell them apart.
    """
    source = batch.share_partition
    parts = [source.group_id, source.topic, source.partition, batch.topic_id, batch.sequence, batch.opened_at]
    for run in batch.letters:
        parts += [run.cause, run.delivery_count, str(run.offsets)]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


class LetterWriting:
    """Makes the headers of one batch's letters; what they have in common is made once."""

    def __init__(self, batch: DeadLetterBatch, explain: Callable[[int], Headers] | None = None) -> None:
        self.batch = batch
        source = batch.share_partition
        self._topic: Header = (TOPIC, source.topic.encode())
        self._partition: Header = (PARTITION, str(source.partition).encode())
        self._group: Header = (GROUP, source.group_id.encode())
        self._batch: Headers = (
            (SEQUENCE, str(batch.sequence).encode()),
            (BATCH, batch_identity(batch).encode()),
        )
        self._causes: dict[tuple[int, str], Headers] = {
            (run.delivery_count, run.cause): (
                (DELIVERY_COUNT, b"%d" % run.delivery_count),
                (MESSAGE, MESSAGES[run.cause].encode()),
                *self._batch,
            )
            for run in batch.letters
        }
        self._explain = explain or (lambda offset: ())

    def headers(self, letter: Letter, ours: Iterable[Header] = ()) -> list[Header]:
        """A letter's headers: Kafka's six, the batch's sequence and identity, what explains it, then `ours`."""
        offset, delivery_count, cause = letter
        return [
            self._topic,
            self._partition,
            (OFFSET, b"%d" % offset),
            self._group,
            *self._causes[delivery_count, cause],
            *self._explain(offset),
            *ours,
        ]

    def without_copies(self, wanted: OffsetSet) -> Iterator[dict[str, bytes | None]]:
        """The headers of all wanted letters, ascending, as `headers` has them; no name is there twice.

        One dict for all, good until the next is asked for, in which only the offset changes where the rest is as
        before: with `produce`, which takes from a dict what it sends, half the time of a list for each.
        """
        explain = self._explain
        for first, end, delivery_count, cause in _alike(self.batch, wanted):
            before: Headers | None = None
            headers: dict[str, bytes | None] = {}
            for offset in range(first, end):
                now = explain(offset)
                if now is not before:
                    headers, before = dict(self.headers(Letter(offset, delivery_count, cause))), now
                headers[OFFSET] = b"%d" % offset
                yield headers


@dataclass(frozen=True, slots=True)
class RecordCopy:
    """What a letter takes over of its original; nothing when no copy is asked for or can be had."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


NOTHING = RecordCopy()
"""Where no copy is asked for."""
MISSING = RecordCopy(headers=((RECORD_MISSING, b"true"),))
"""Of an original that is not in the log any more."""


def copy_of(original: Message) -> RecordCopy:
    """Key and value as they are, the timestamp and the headers under our prefix."""
    _, milliseconds = original.timestamp()
    copied = tuple((ORIGINAL_HEADER + name, value) for name, value in headers_of(original))
    return RecordCopy(
        _bytes(original.key()),
        _bytes(original.value()),
        ((ORIGINAL_TIMESTAMP, b"%d" % milliseconds), *copied),
    )


def without_content(copy: RecordCopy) -> RecordCopy:
    """What is left of a copy that is larger than the topic takes: its timestamp, and that it was too large."""
    kept = tuple(header for header in copy.headers if header[0] == ORIGINAL_TIMESTAMP)
    return RecordCopy(headers=(*kept, (RECORD_OVERSIZED, b"true")))


def record_bytes(key: bytes | None, value: bytes | None, headers: Iterable[Header]) -> int:
    """The most bytes that a record can take alone in a batch; what `max.message.bytes` limits."""
    fields = [key or b"", value or b""]
    for header in headers:
        fields += [header[0].encode(), header[1] or b""]
    return (
        _BATCH_OVERHEAD_BYTES
        + _RECORD_OVERHEAD_BYTES
        + sum(len(content) + _FIELD_OVERHEAD_BYTES for content in fields)
    )


def headers_of(message: Message) -> Headers:
    """A consumed message's headers in their order, none left out."""
    return tuple((header[0], _bytes(header[1])) for header in message.headers() or ())


def read_dead_letters(
    settings: Settings,
    topic: str,
    first: Mapping[int, int] = MappingProxyType({}),
    logs: Mapping[int, LogOffsets] | None = None,
) -> Generator[DeadLetter, None, None]:
    """Every committed letter in the topic now, each partition in its order; then the end.

    Bounded by each partition's last stable offset at the start: an open transaction is waited for by nobody,
    and letters written meanwhile are for the next reading. `first` has the offset to begin at for partitions that
    are not read from their start, `logs` what the caller knows of their ends. Raises `UnknownTopicOrPartition` when
    there is no such topic and `BrokerNotAvailable` when the broker falls silent for 30 s.
    """
    logs = Topics(settings, READ_TIMEOUT_SECONDS).offsets(topic) if logs is None else logs
    ends = {partition: log.last_stable_offset for partition, log in logs.items()}
    starts = {partition: max(log.log_start, first.get(partition, 0)) for partition, log in logs.items()}
    starts = {partition: start for partition, start in starts.items() if start < ends[partition]}
    consumer = Consumer(
        client_config(
            settings,
            # librdkafka wants a name, though nothing is joined and nothing committed.
            group_id="sharequeue.dlq.reader",
            enable_auto_commit=False,
            enable_partition_eof=True,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            # A topic of letters ends with a marker: the fetch that finds the end would wait half a second for more.
            fetch_wait_max_ms=20,
        )
    )
    try:
        consumer.assign([TopicPartition(topic, partition, start) for partition, start in starts.items()])
        yield from _read(consumer, topic, {partition: ends[partition] for partition in starts})
    finally:
        consumer.close()


def _read(consumer: Consumer, topic: str, ends: dict[int, int]) -> Iterator[DeadLetter]:
    heard_at = time.monotonic()
    while ends:
        messages = consumer.consume(num_messages=5000, timeout=POLL_SECONDS)
        if messages:
            heard_at = time.monotonic()
        elif time.monotonic() - heard_at > READ_TIMEOUT_SECONDS:
            raise BrokerNotAvailable(
                f"nothing came of `{topic}` for {READ_TIMEOUT_SECONDS:.0f} s; try again."
            )
        for message in messages:
            partition, error = _known(message.partition()), message.error()
            if partition not in ends:
                continue
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            # A marker can be the last offset below the end: then only the end-of-partition event ends the
            # partition.
            if error is not None or _known(message.offset()) >= ends[partition]:
                del ends[partition]
                consumer.incremental_unassign([TopicPartition(topic, partition)])
                continue
            yield DeadLetter.of(message)


def _known(number: int | None) -> int:
    """A field that only messages from a consumer have."""
    if number is None:
        raise ValueError("a message that no consumer returned has neither partition nor offset")
    return number


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _number(content: str | None) -> int | None:
    try:
        return None if content is None else int(content)
    except ValueError:
        return None
