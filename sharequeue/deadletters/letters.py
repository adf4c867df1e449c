"""The content of a dead letter, and its parsing.

A dead letter is a Kafka record whose headers have the position of its source record and the reason why it was
archived. First come the six headers of Kafka 4.4, in Kafka's order and identical to the byte (KIP-1191; Kafka's
`ShareGroupDLQRecord`), then ours with the prefix ``sharequeue.``. The topic is chosen in `deadletters.topic`;
`outbox` writes each letter exactly once. Readers always use read_committed, and letters are counted by reading:
transaction markers take offsets too, so a difference of offsets is not a number of letters.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException, Message

from sharequeue.domain.errors import error_for
from sharequeue.domain.offsets import MAX_OFFSET, MAX_PARTITION, OffsetSet
from sharequeue.domain.record_bytes import number_of
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import READ_COMMITTED, DeadLetterBatch
from sharequeue.kafka.headers import PROBLEM, REMARK, Header, Headers, headers_of
from sharequeue.kafka.reading import TIMEOUT_SECONDS, Scanner, offset_of, place_of, scan
from sharequeue.kafka.topics import LogOffsets, Topics

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
"""The identity of that batch: the same for all letters of the batch, and different for every other batch."""
TOPIC_ID = "sharequeue.source.topic.id"
"""The id of the source topic: one that is created again with the same name has other records at the same offsets."""
EXCEPTION_CLASS = "sharequeue.exception.class"
EXCEPTION_MESSAGE = "sharequeue.exception.message"
EXCEPTION_UNREADABLE = "sharequeue.exception.unreadable"
"""``true``: the error of the last attempt was stored, but could not be read when the letter was written."""
ORIGINAL_TIMESTAMP = "sharequeue.original.timestamp"
"""The timestamp in the source topic, in milliseconds since the epoch; present if the original was read."""
ORIGINAL_HEADER = "sharequeue.original.header."
"""The prefix of the copied headers of the original, which are in their order, with duplicates."""
RECORD_MISSING = "sharequeue.record.missing"
"""``true``: a copy was requested, but the original was no longer in the log."""
RECORD_DAMAGED = "sharequeue.record.damaged"
"""``true``: a copy was requested, but the checksum of the original's log batch is wrong."""
RECORD_OVERSIZED = "sharequeue.record.oversized"
"""``true``: a copy was requested, but it would have exceeded the topic's size limit."""

MESSAGES = {
    "rejected": "Offset rejected by client.",
    "exhausted": "Offset delivery count exceeded the threshold.",
}
"""Kafka's two messages, by cause."""

MAX_DELIVERIES = 2**31 - 1
"""The highest delivery count that is read. Kafka's limits are far below."""

_BATCH_OVERHEAD_BYTES = 61
"""A record batch's own header (Kafka's message format 2)."""
_RECORD_OVERHEAD_BYTES = 32
"""The maximum bytes of a record's length, attributes, deltas and counts as varints."""
_FIELD_OVERHEAD_BYTES = 5
"""The maximum bytes of the length in front of a key, a value, a header's key or its value."""


class Letter(NamedTuple):
    """One offset of a batch: an archived record, and the reason."""

    offset: int
    delivery_count: int
    cause: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of a dead-letter topic. The field of a missing or unreadable header is None."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    written_ms: int | None
    """When the letter was written (CreateTime), in milliseconds since 1970; a producer may write any number."""
    problem: str | None = None
    """Why the record could not be read whole; None if it could."""

    @classmethod
    def of(cls, message: Message) -> Self:
        """Return the letter in a consumed message; only its place and the problem if it could not be read."""
        _, partition = place_of(message)
        if (error := message.error()) is not None:
            return cls(partition, offset_of(message), None, None, (), None, error.str())
        _, milliseconds = message.timestamp()
        headers = headers_of(message)
        return cls(
            partition=partition,
            offset=offset_of(message),
            key=_bytes(message.key()),
            value=_bytes(message.value()),
            headers=headers,
            written_ms=milliseconds if milliseconds >= 0 else None,
            problem=PROBLEM if headers == REMARK else None,
        )

    @property
    def source_topic(self) -> str | None:
        """The topic of the source record."""
        return self.header(TOPIC)

    @property
    def source_topic_id(self) -> str | None:
        """The id of that topic; a letter of a broker's own share group has none."""
        return self.header(TOPIC_ID)

    @property
    def source_partition(self) -> int | None:
        """The partition of the source record."""
        return number_of(self.header(PARTITION), MAX_PARTITION)

    @property
    def source_offset(self) -> int | None:
        """The offset of the source record."""
        return number_of(self.header(OFFSET), MAX_OFFSET)

    @property
    def group(self) -> str | None:
        """The share group that archived the record."""
        return self.header(GROUP)

    @property
    def delivery_count(self) -> int | None:
        """The number of deliveries of the record."""
        return number_of(self.header(DELIVERY_COUNT), MAX_DELIVERIES)

    @property
    def message(self) -> str | None:
        """Kafka's message with the reason."""
        return self.header(MESSAGE)

    @property
    def cause(self) -> str | None:
        """``rejected`` or ``exhausted``, by the message; None if it is neither of Kafka's two messages."""
        return next((cause for cause, message in MESSAGES.items() if message == self.message), None)

    @property
    def foreign(self) -> bool:
        """Whether it is not a dead letter: it names neither a group nor a topic."""
        return self.group is None and self.source_topic is None

    @property
    def is_copy(self) -> bool:
        """Whether it contains the whole record: our copies have the original's timestamp.

        One that was too large for the topic has neither key nor value of the record.
        """
        return self.header(ORIGINAL_TIMESTAMP) is not None and self.header(RECORD_OVERSIZED) is None

    @property
    def has_content(self) -> bool:
        """Whether it contains the record's key or value. A broker's own share groups copy only these."""
        return self.key is not None or self.value is not None

    @property
    def exception_class(self) -> str | None:
        """The class of the handler's exception at the last attempt."""
        return self.header(EXCEPTION_CLASS)

    @property
    def exception_message(self) -> str | None:
        """The message of the handler's exception at the last attempt."""
        return self.header(EXCEPTION_MESSAGE)

    @property
    def error(self) -> str | None:
        """Class and message on one line, or that they could not be read; None if no error was given."""
        if self.header(EXCEPTION_UNREADABLE) is not None:
            return "(not known: the error could not be read when the letter was written)"
        parts = [part for part in (self.exception_class, self.exception_message) if part]
        return " ".join(": ".join(parts).split()) or None

    @property
    def trace_command(self) -> str | None:
        """The command that shows the life of the source record; None if the letter does not name it."""
        if self.source_topic is None or self.source_partition is None or self.source_offset is None:
            return None
        return trace_command(self.source_topic, self.source_partition, self.source_offset, self.group)

    def header(self, name: str) -> str | None:
        """Return the text of the first header with that name; None if it is missing, null or not UTF-8."""
        content = next((value for key, value in self.headers if key == name), None)
        try:
            return None if content is None else content.decode()
        except UnicodeDecodeError:
            return None


def trace_command(topic: str, partition: int | str, offset: int | str, group: str | None = None) -> str:
    """Return the command that shows the life of a record, in one group or in all."""
    of_group = () if group is None else ("--group", group)
    return shlex.join(("sharequeue", "trace", topic, str(partition), str(offset), *of_group))


def letters_of(batch: DeadLetterBatch, wanted: OffsetSet) -> Iterator[Letter]:
    """Yield the records of a batch with these offsets, ascending."""
    for first, end, delivery_count, cause in _alike(batch, wanted):
        for offset in range(first, end):
            yield Letter(offset, delivery_count, cause)


def _alike(batch: DeadLetterBatch, wanted: OffsetSet) -> list[tuple[int, int, int, str]]:
    """Return ranges of offsets, ascending, with their delivery count and cause."""
    return sorted(
        (first, end, run.delivery_count, run.cause)
        for run in batch.letters
        for first, end in (run.offsets & wanted).ranges
    )


class LetterWriting:
    """The headers of one batch's letters; their common part is built once."""

    def __init__(self, batch: DeadLetterBatch, explain: Callable[[int], Headers] | None = None) -> None:
        self.batch = batch
        source = batch.share_partition
        self._topic: Header = (TOPIC, source.topic.encode())
        self._partition: Header = (PARTITION, str(source.partition).encode())
        self._group: Header = (GROUP, source.group_id.encode())
        self._batch: Headers = (
            (SEQUENCE, str(batch.sequence).encode()),
            (BATCH, batch.identity.encode()),
            (TOPIC_ID, batch.topic_id.encode()),
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
        """Return a letter's headers: Kafka's six, those of the batch, its explanation, then `ours`."""
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
        """Yield the headers of all wanted letters, ascending, as in `headers`; no name occurs twice.

        All letters share one dict, valid until the next letter; only the offset changes if the rest is the same. With
        `produce`, which copies the dict, this takes half the time of one list per letter.
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
    """The copied parts of a letter's original; empty if no copy is requested or the original no longer exists."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


NOTHING = RecordCopy()
"""If no copy is requested."""
MISSING = RecordCopy(headers=((RECORD_MISSING, b"true"),))
"""For an original that is no longer in the log."""


DAMAGED = RecordCopy(headers=((RECORD_DAMAGED, b"true"),))
"""For an original in a damaged log batch: no byte of it is copied."""


def copy_of(original: Message) -> RecordCopy:
    """Return key and value unchanged, the timestamp, and the headers with our prefix, or a remark if they cannot be
    read."""
    if original.error() is not None:
        return DAMAGED
    _, milliseconds = original.timestamp()
    headers = headers_of(original)
    if headers != REMARK:
        headers = tuple((ORIGINAL_HEADER + name, value) for name, value in headers)
    return RecordCopy(
        _bytes(original.key()),
        _bytes(original.value()),
        ((ORIGINAL_TIMESTAMP, b"%d" % milliseconds), *headers),
    )


def without_content(copy: RecordCopy) -> RecordCopy:
    """Return the rest of a copy that exceeds the topic's size limit: its timestamp, and that it was too large."""
    kept = tuple(header for header in copy.headers if header[0] == ORIGINAL_TIMESTAMP)
    return RecordCopy(headers=(*kept, (RECORD_OVERSIZED, b"true")))


def record_bytes(key: bytes | None, value: bytes | None, headers: Iterable[Header]) -> int:
    """Return the maximum bytes of a record alone in a batch; `max.message.bytes` limits them."""
    fields = [key or b"", value or b""]
    for header in headers:
        fields += [header[0].encode(), header[1] or b""]
    return (
        _BATCH_OVERHEAD_BYTES
        + _RECORD_OVERHEAD_BYTES
        + sum(len(content) + _FIELD_OVERHEAD_BYTES for content in fields)
    )


def read_dead_letters(
    settings: Settings,
    topic: str,
    first: Mapping[int, int] = MappingProxyType({}),
    logs: Mapping[int, LogOffsets] | None = None,
    ends: Mapping[int, int] = MappingProxyType({}),
    scanner: Scanner | None = None,
) -> Generator[DeadLetter, None, None]:
    """Yield every committed letter in the topic now, each partition in its order; then end.

    The end is each partition's last stable offset at the start: open transactions are not waited for, and letters
    written meanwhile are left to the next reading. `first` has the first offset of partitions that are not read from
    their start, `ends` the end offset (exclusive) of those that are not read to their end, `logs` the offsets of the
    partitions, if the caller knows them; `scanner` is a client of the caller for committed records.

    Raises `UnknownTopicOrPartition` if the topic does not exist, `BrokerNotAvailable` if the broker does not respond
    for 30 s, and the error with which it refuses.
    """
    logs = Topics(settings, TIMEOUT_SECONDS).offsets(topic) if logs is None else logs
    starts = {(topic, at): max(log.log_start, first.get(at, 0)) for at, log in logs.items()}
    bounds = {
        (topic, at): min(log.last_stable_offset, ends.get(at, log.last_stable_offset))
        for at, log in logs.items()
    }
    found = scanner.scan(starts, bounds) if scanner else scan(settings, READ_COMMITTED, starts, bounds)
    with closing(found) as messages:
        try:
            for message in messages:
                yield DeadLetter.of(message)
        except KafkaException as error:
            refused = error.args[0]
            is_denied = refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            remedy = "grant READ on it" if is_denied else "try again"
            said = f"Topic {topic!r} cannot be read ({refused.str()}): {remedy}."
            raise error_for(int(refused.code()), said) from error


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
