"""Find the offsets of a damaged log batch, and stand in for its records.

The client compares the checksum of each batch (`check.crcs`). For a damaged one it returns an error with the batch's
first offset, again and again: it does not go on by itself, and does not say where the batch ends. So the end is
searched here. Each offset of the batch gets a message with the error and without content: each has an outcome of its
own, and the records before and after are read.

This module is sent to Spark's executors by value: it needs nothing of this package.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

CHECKED = {"check.crcs": True}
"""The config of every consumer that reads records. librdkafka's default is to trust what arrives."""
SEARCH_SECONDS = 30.0


def is_damaged(message: Message) -> bool:
    """Return whether a message stands for a damaged log batch, or for a record of one."""
    import confluent_kafka as kafka

    error = message.error()
    return error is not None and error.code() in (
        kafka.KafkaError._BAD_MSG,
        kafka.KafkaError._BAD_COMPRESSION,
    )


def records_of_damaged(
    consumer: Consumer, report: Message, position: int, seconds: float = SEARCH_SECONDS
) -> list[Message]:
    """Return a message with the error for each offset of a damaged batch from `position` on; at least one.

    `report` is the client's error about the batch. The consumer is used alone, and assigned elsewhere afterwards.
    Raises TimeoutError if the broker does not respond for `seconds`.
    """
    import confluent_kafka as kafka

    error = report.error()
    topic, partition = report.topic(), report.partition()
    end = _end_of_batch(consumer, report, max(position, report.offset() or 0), seconds)
    # A message's value would be the error's text.
    return [
        kafka.Message(topic, partition, offset, error=error)
        for offset in range(max(position, report.offset() or 0), end)
    ]


def _end_of_batch(consumer: Consumer, report: Message, inside: int, seconds: float) -> int:
    """Return the offset after the batch that holds `inside`: with few reads, whatever the size of the batch."""
    step = 1
    while _is_inside(consumer, report, inside + step, seconds):
        inside, step = inside + step, 2 * step
    outside = inside + step
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if _is_inside(consumer, report, middle, seconds):
            inside = middle
        else:
            outside = middle
    return outside


def _is_inside(consumer: Consumer, report: Message, offset: int, seconds: float) -> bool:
    """Return whether reading at an offset meets the same damaged batch."""
    import confluent_kafka as kafka

    place: Any = (report.topic(), report.partition())
    consumer.assign([kafka.TopicPartition(place[0], place[1], offset)])
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        message = consumer.poll(0.1)
        if message is None:
            continue
        error = message.error()
        if is_damaged(message):
            return bool(message.offset() == report.offset())
        # Any other error passes, or is met again by the next read.
        if error is None or error.code() in (
            kafka.KafkaError._PARTITION_EOF,
            kafka.KafkaError._AUTO_OFFSET_RESET,
        ):
            return False
    raise TimeoutError(
        f"the broker did not respond within {seconds:g} s while a damaged batch of {place[0]}-{place[1]} was read"
    )
