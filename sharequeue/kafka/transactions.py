"""Write a batch of records to its topics exactly once, even if the process is killed.

Kafka's producer alone guarantees at least once. A batch is sent in one Kafka transaction that also commits the number
of the batch, as an offset of a consumer group that has no other use: the marker. Records and marker become visible
together or not at all. After a crash the marker shows whether the batch was sent. The order matters: first open the
producer (it aborts a transaction that a dead or slow producer left open, and fences that producer), then read the
state, then the marker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from sharequeue.kafka.clients import client_config
from sharequeue.words.settings import Settings

TRANSACTION_TIMEOUT_MS = 60_000
"""How long an unfinished transaction of a dead producer can delay read_committed readers of the topic."""
TIMEOUT_SECONDS = 30.0
ABORT_TIMEOUT_SECONDS = 10.0
ASK_AGAIN_SECONDS = 0.1
LARGEST_MESSAGE_BYTES = 1_000_000_000
"""The highest limit that the client knows. The broker checks the topic's limit, after compression."""

_log = logging.getLogger(__name__)
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
"""Another producer with the same transactional id has started, or the transaction has timed out."""
_PASSING = frozenset(
    {
        # A coordinator is being elected, loaded or moved: always so for the first group of a new broker.
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
        # An error without a code in the broker. One is known: a commit between another producer's fence and the
        # abort that follows it. The broker then logs `Preparing transaction state transition`.
        KafkaError.UNKNOWN,
    }
)


def is_passing(cause: KafkaError) -> bool:
    """Return whether the same request may succeed in a moment without any change."""
    return bool(cause.code() in _PASSING or cause.retriable())


class MarkerGroup:
    """The consumer group of the markers. A context manager: leaving it closes the client."""

    def __init__(self, settings: Settings, group: str) -> None:
        # read_committed, so that the client waits for a marker in an unfinished transaction.
        config = client_config(
            settings, group_id=group, enable_auto_commit=False, isolation_level="read_committed"
        )
        self._consumer = Consumer(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    @property
    def membership(self) -> Any:
        """The group metadata that a transaction needs to commit an offset of the group."""
        return self._consumer.consumer_group_metadata()

    def committed(self, topic: str, partition: int) -> TopicPartition:
        """Return the marker of a partition; its offset is negative if there is none. Raises KafkaException."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            seconds = max(deadline - time.monotonic(), ASK_AGAIN_SECONDS)
            try:
                (found,) = self._consumer.committed([TopicPartition(topic, partition)], timeout=seconds)
                if found.error is not None:
                    raise KafkaException(found.error)
                return found
            except KafkaException as error:
                # The client does not retry by itself while the group's coordinator is being elected.
                if not is_passing(error.args[0]) or time.monotonic() >= deadline:
                    raise
            time.sleep(ASK_AGAIN_SECONDS)


class MarkedProducer:
    """A transactional producer whose transactions commit a marker.

    A context manager: leaving it aborts an open transaction. The broker fences an older producer with the same
    `transactional_id`. `failure` makes the exception for an error of the broker.
    """

    def __init__(
        self,
        settings: Settings,
        transactional_id: str,
        markers: MarkerGroup,
        failure: Callable[[KafkaException], Exception],
        **config: Any,
    ) -> None:
        self._id, self._markers, self._failure, self._open = transactional_id, markers, failure, False
        self._producer = Producer(
            client_config(
                settings,
                transactional_id=transactional_id,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                **config,
            ),
        )

    def __enter__(self) -> Self:
        self._asked(self._producer.init_transactions, TIMEOUT_SECONDS)
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
        self._asked(self._producer.begin_transaction)
        self._open = True

    def produce(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Any
    ) -> None:
        """Add one record; wait while the client's queue is full."""
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                raise self._refusal(error) from error

    def mark(self, marker: TopicPartition) -> None:
        """Add the marker to the transaction."""
        self._asked(
            self._producer.send_offsets_to_transaction, [marker], self._markers.membership, TIMEOUT_SECONDS
        )

    def commit(self) -> None:
        """Make records and marker visible, both or neither.

        The commit may have succeeded despite an error here. Nothing is lost: the next attempt reads the marker.
        """
        self._asked(self._producer.commit_transaction, TIMEOUT_SECONDS)
        self._open = False

    def _asked(self, request: Callable[..., Any], *arguments: Any) -> None:
        try:
            request(*arguments)
        except KafkaException as error:
            raise self._refusal(error) from error

    def _refusal(self, error: KafkaException) -> Exception:
        """Return the exception to raise for an error.

        For a producer that cannot continue, for example a fenced one, the client reports only a fatal error; a call
        on its transaction returns the cause.
        """
        if error.args[0].code() == KafkaError._FATAL:
            try:
                self._producer.abort_transaction(ABORT_TIMEOUT_SECONDS)
            except KafkaException as cause:
                return self._failure(cause)
        return self._failure(error)

    def _abort(self) -> None:
        self._open = False
        try:
            self._producer.abort_transaction(ABORT_TIMEOUT_SECONDS)
        except KafkaException as error:
            # Fenced, or the broker is away: the next producer aborts it with init_transactions, or its time-out does.
            _log.debug("transaction of %s not aborted: %s", self._id, error)
