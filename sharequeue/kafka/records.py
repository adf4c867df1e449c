"""What did the record hold that became a dead letter?

Reads originals for copy mode (`errors.deadletterqueue.copy.record.enable`; kafka-semantics R-DL-8) by their
offsets: near ones in one pass, far ones by a seek each. Read uncommitted, as the record was delivered or not,
whatever became of its transaction; transaction markers never come out of a consumer, so none becomes a
letter, as happens in Kafka. An offset that yields nothing is gone from the log, and whoever asked sees it
missing: silence of the broker is an error instead, never an absence.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sharequeue.errors import BrokerNotAvailable
from sharequeue.kafka.clients import client_config
from sharequeue.offsets import OffsetSet, Range
from sharequeue.settings import Settings

NEAR = 1000
"""Offsets this far apart, or less, are read in one pass: cheaper than a seek for records of ordinary size."""
TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.01


def passes(offsets: OffsetSet, near: int = NEAR) -> list[Range]:
    """The ranges to read so that every offset is covered, each once, holes of at most `near` offsets read over."""
    covering: list[Range] = []
    for first, end in offsets.ranges:
        if covering and first - covering[-1][1] <= near:
            covering[-1] = (covering[-1][0], end)
        else:
            covering.append((first, end))
    return covering


class Originals:
    """Reads records of one topic by offset. Joins no group and commits nothing; close it after use."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._topic = topic
        self._partition: int | None = None
        self._position = 0
        self._ahead: deque[Message] = deque()
        self._consumer = Consumer(
            client_config(
                settings,
                group_id="sharequeue.dlq.reader",
                enable_auto_commit=False,
                enable_partition_eof=True,
                isolation_level="read_uncommitted",
                auto_offset_reset="earliest",
                # A pass may end soon: no more is fetched ahead than a few large records.
                queued_max_messages_kbytes=16 * 1024,
                # At the log's end a fetch waits this long for more, and a seek waits for the fetch.
                fetch_wait_max_ms=20,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def read(self, partition: int, offsets: OffsetSet) -> Iterator[Message]:
        """The records at these offsets that are in the log, ascending; what does not come is gone.

        Raises `BrokerNotAvailable` when the broker falls silent for 30 s, KafkaException when it refuses.
        """
        at = TopicPartition(self._topic, partition)
        start, end = self._consumer.get_watermark_offsets(at, timeout=TIMEOUT_SECONDS)
        if start < end:
            # A position past the end would make the client begin again at the start of the log.
            offsets = offsets & OffsetSet.of((start, end))
            for first, last in passes(offsets):
                yield from (
                    record for record in self._pass(partition, first, last) if record.offset() in offsets
                )

    def _pass(self, partition: int, first: int, end: int) -> Iterator[Message]:
        self._move_to(partition, first)
        while (message := self._next()) is not None:
            offset = message.offset()
            if offset is None or offset >= end:
                return
            self._ahead.popleft()
            self._position = offset + 1
            yield message
            if self._position == end:
                return

    def _move_to(self, partition: int, offset: int) -> None:
        """Go on from where the last pass ended if the offset is near, because a seek throws away what was fetched."""
        if self._partition == partition and self._position <= offset <= self._position + NEAR:
            return
        self._consumer.assign([TopicPartition(self._topic, partition, offset)])
        self._ahead.clear()
        self._partition, self._position = partition, offset

    def _next(self) -> Message | None:
        """The next record, left where it is; None at the end of the partition."""
        heard_at = time.monotonic()
        while not self._ahead:
            self._ahead.extend(self._consumer.consume(num_messages=500, timeout=POLL_SECONDS))
            if time.monotonic() - heard_at > TIMEOUT_SECONDS:
                raise BrokerNotAvailable(
                    f"nothing came of `{self._topic}` for {TIMEOUT_SECONDS:.0f} s; try again."
                )
        error = self._ahead[0].error()
        if error is None:
            return self._ahead[0]
        # The client reports the end once: a later pass has to ask again.
        self._partition = None
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        return None
