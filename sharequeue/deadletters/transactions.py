"""How does a batch of dead letters reach its topic exactly once, whoever dies when?

Kafka itself promises at least once here. We write a batch in one Kafka transaction that also commits the batch's
number, as an offset of a consumer group that serves for nothing else: letters and number become visible together or
not at all. After a crash the number tells whether the batch was written. The order matters: `init_transactions` first
(it aborts what a dead or slow writer left hanging, and fences it), only then the state, then the number.

The marker: group `sharequeue.dlq.<group>`, topic-partition of the source, offset = sequence number of the batch,
metadata = the batch's identity, the topic it went to, and how far. It is lost when the broker forgets it
(`offsets.retention.minutes`, 7 days after the last batch by default) or the source topic is deleted; then, and
when it belongs to another life of the group, the letters themselves are read and only those missing are written.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from sharequeue.deadletters.letters import batch_identity
from sharequeue.deadletters.topic import DeadLetterTopic, passes, refusal
from sharequeue.kafka.clients import client_config
from sharequeue.settings import Settings
from sharequeue.values import DeadLetterBatch, SharePartition

TRANSACTION_TIMEOUT_MS = 60_000
"""How long an unfinished transaction of a dead writer can hold up read_committed readers of the topic."""
TIMEOUT_SECONDS = 30.0
ABORT_TIMEOUT_SECONDS = 10.0
ASK_AGAIN_SECONDS = 0.1

_log = logging.getLogger("sharequeue.librdkafka")
FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.CONCURRENT_TRANSACTIONS,
    }
)


class Fenced(Exception):
    """Another writer has taken the share-partition over, or the transaction outlived its time. Look again."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What the broker remembers of the last batch written from a share-partition."""

    sequence: int
    batch: str
    """The batch's identity."""
    topic: str
    topic_id: str
    through: int
    """The last source offset of the batch that was written; a batch is written by ascending offset."""

    @classmethod
    def of(cls, batch: DeadLetterBatch, topic: DeadLetterTopic) -> Self:
        """The marker of a batch of which nothing is written yet."""
        return cls(batch.sequence, batch_identity(batch), topic.name, topic.topic_id, -1)

    @classmethod
    def parse(cls, at: TopicPartition) -> Self | None:
        """The marker that a committed offset is; None when nothing is committed.

        What somebody else committed, or cut the metadata of, is a marker of no batch of ours.
        """
        if at.offset < 0:
            return None
        batch, topic, topic_id, through = [*(at.metadata or "").split(" "), "", "", "", ""][:4]
        return cls(int(at.offset), batch, topic, topic_id, int(through) if through.isdecimal() else -1)

    def committed_at(self, source: SharePartition) -> TopicPartition:
        """The offset to commit, with the rest as its metadata."""
        metadata = f"{self.batch} {self.topic} {self.topic_id} {self.through}"
        return TopicPartition(source.topic, source.partition, self.sequence, metadata=metadata)

    def is_of(self, sequence: int, batch: str) -> bool:
        """Whether that batch left it."""
        return (self.sequence, self.batch) == (sequence, batch)

    def wrote_all_of(self, batch: DeadLetterBatch) -> bool:
        """Whether that batch was written to its end."""
        last = max(run.offsets.end for run in batch.letters) - 1
        return self.is_of(batch.sequence, batch_identity(batch)) and self.through >= last


def marker_group(group_id: str) -> str:
    """The consumer group under which the markers of a share group are committed."""
    return f"sharequeue.dlq.{group_id}"


def transactional_id(source: SharePartition) -> str:
    """One writer at a time: the broker fences an older producer of the same transactional id."""
    return f"sharequeue.dlq.{source.group_id}.{source.topic}.{source.partition}"


class Markers:
    """Reads the markers of one share group, and names it to the transactions that move them."""

    def __init__(self, settings: Settings, group_id: str) -> None:
        # read_committed, so that a marker in a transaction not yet finished is waited for and never guessed.
        config = client_config(
            settings,
            group_id=marker_group(group_id),
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        self._consumer = Consumer(config, logger=_log)
        self._group_id = group_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    @property
    def membership(self) -> Any:
        """What a transaction must know of the group to commit an offset of it."""
        return self._consumer.consumer_group_metadata()

    def of(self, source: SharePartition) -> Marker | None:
        """The marker of a share-partition, None without one. Raises `CannotWrite`."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                return Marker.parse(self._committed(source, deadline - time.monotonic()))
            except KafkaException as error:
                # The client does not ask again by itself when the group's coordinator is still being elected.
                if not passes(error.args[0]) or time.monotonic() >= deadline:
                    group = marker_group(self._group_id)
                    grants = f"grant READ on group `{group}` and DESCRIBE on topic `{source.topic}`"
                    raise refusal(error, grants) from error
            time.sleep(ASK_AGAIN_SECONDS)

    def _committed(self, source: SharePartition, seconds: float) -> TopicPartition:
        at = TopicPartition(source.topic, source.partition)
        committed = self._consumer.committed([at], timeout=max(seconds, ASK_AGAIN_SECONDS))[0]
        if committed.error is not None:
            raise KafkaException(committed.error)
        return committed


class LetterProducer:
    """A transactional producer for one share-partition. A context: leaving it aborts what is not committed.

    Every method raises `Fenced` when another writer took over and `CannotWrite` when the broker does not let it.
    """

    def __init__(
        self, settings: Settings, source: SharePartition, topic: DeadLetterTopic, markers: Markers
    ) -> None:
        self._source = source
        self._topic = topic
        self._partition = topic.partition_for(source.partition)
        self._markers = markers
        self._open = False
        config = client_config(
            settings,
            transactional_id=transactional_id(source),
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            # As the broker writes its own: not compressed.
            compression_type="none",
            # The client's own limit must not refuse what the topic takes; its least is 1000.
            message_max_bytes=max(topic.max_message_bytes, 1000),
            # A batch never grows past what the topic takes.
            batch_size=max(1, min(1_000_000, topic.max_message_bytes)),
            # Copies of large records wait on the disk of the source, not in memory here.
            queue_buffering_max_kbytes=64 * 1024,
        )
        self._producer = Producer(config, logger=_log)

    def __enter__(self) -> Self:
        try:
            self._producer.init_transactions(TIMEOUT_SECONDS)
        except KafkaException as error:
            raise self._failure(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            self._abort()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._open

    def begin(self) -> None:
        """Open the transaction."""
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._failure(error) from error
        self._open = True

    def produce(self, key: bytes | None, value: bytes | None, headers: list[Any] | dict[str, Any]) -> None:
        """Add one letter, with `Header`s; waits while more is in flight than memory is meant for."""
        while True:
            try:
                self._producer.produce(
                    self._topic.name, value=value, key=key, partition=self._partition, headers=headers
                )
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                raise self._failure(error) from error

    def mark(self, marker: Marker) -> None:
        """Make the marker part of the transaction."""
        try:
            self._producer.send_offsets_to_transaction(
                [marker.committed_at(self._source)], self._markers.membership, TIMEOUT_SECONDS
            )
        except KafkaException as error:
            raise self._failure(error) from error

    def commit(self) -> None:
        """Make letters and marker visible, both or none.

        An error here may hide a success. Nothing is lost by that: the next attempt asks the marker.
        """
        try:
            self._producer.commit_transaction(TIMEOUT_SECONDS)
        except KafkaException as error:
            raise self._failure(error) from error
        self._open = False

    def _abort(self) -> None:
        self._open = False
        try:
            self._producer.abort_transaction(ABORT_TIMEOUT_SECONDS)
        except KafkaException as error:
            # Fenced, or the broker is away: whoever comes next aborts it by init_transactions, or its time-out does.
            _log.debug("transaction of %s not aborted: %s", self._source, error)

    def _failure(self, error: KafkaException) -> Exception:
        cause: Any = error.args[0]
        if cause.code() in FENCED:
            return Fenced(cause.str())
        if cause.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
            what = f"raise `max.message.bytes` of topic `{self._topic.name}`, now {self._topic.max_message_bytes}"
        else:
            what = (
                f"grant WRITE on topic `{self._topic.name}` and on transactional id "
                f"`{transactional_id(self._source)}`, and READ on group `{marker_group(self._source.group_id)}` "
                f"and topic `{self._source.topic}`"
            )
        return refusal(error, what)
