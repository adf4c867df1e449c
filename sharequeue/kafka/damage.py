"""Find the offsets of a log batch that cannot be read, and stand in for its records.

The client compares the checksum of each batch (`check.crcs`), and decompresses it. If one of them fails, it returns
an error with the batch's first offset, again and again: it does not go on by itself, and does not say where the batch
ends. So the end is searched here. Each offset of the batch gets a message with the error and without content: each
has an outcome of its own, and the records before and after are read.

Only a wrong checksum is damage. A batch that has the right one is as its producer wrote it: if it cannot be
decompressed, it exceeds a limit of this client (zstd: `receive.message.max.bytes`), and another client may read it.

This module is sent to Spark's executors by value: it needs nothing of this package.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

CHECKED = {"check.crcs": True}
"""The config of every consumer that reads records. librdkafka's default is to trust what arrives."""
DECOMPRESSED_BYTES = 500_000_000
"""The limit of a batch after its decompression. A producer limits it only before, so a batch of a megabyte may become
hundreds. librdkafka's default is a fifth; it doubles a buffer at most up to this limit.
"""
SEARCH_SECONDS = 30.0


def is_unreadable(message: Message) -> bool:
    """Return whether a message stands for a log batch that cannot be read, or for a record of one."""
    import confluent_kafka as kafka

    error = message.error()
    return error is not None and error.code() in (
        kafka.KafkaError._BAD_MSG,
        kafka.KafkaError._BAD_COMPRESSION,
    )


def is_damage(error: KafkaError) -> bool:
    """Return whether an error means that records are damaged: no client can read them."""
    import confluent_kafka as kafka

    return bool(error.code() == kafka.KafkaError._BAD_MSG)


def records_of_unreadable(
    consumer: Consumer, report: Message, position: int, seconds: float = SEARCH_SECONDS
) -> list[Message]:
    """Return a message with the error for each offset of such a batch from `position` on; at least one.

    `report` is the client's error about the batch. The consumer is used alone, and assigned elsewhere afterwards.
    Raises TimeoutError if the broker does not respond for `seconds`.
    """
    import confluent_kafka as kafka

    error = _in_words(report.error())
    topic, partition = report.topic(), report.partition()
    end = _end_of_batch(consumer, report, max(position, report.offset() or 0), seconds)
    # A message's value would be the error's text.
    return [
        kafka.Message(topic, partition, offset, error=error)
        for offset in range(max(position, report.offset() or 0), end)
    ]


def _in_words(error: KafkaError | None) -> KafkaError:
    import confluent_kafka as kafka

    assert error is not None  # noqa: S101 - the report of a batch has one
    if is_damage(error):
        return error
    words = (
        f"{error.str()}. Its checksum is right, so it is not damaged, but probably too large for this client: raise "
        "`receive.message.max.bytes` of the consumer (up to 2147483647), or read it with a Spark run"
    )
    return kafka.KafkaError(error.code(), words)


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
    """Return whether reading at an offset meets the same batch."""
    import confluent_kafka as kafka

    place: Any = (report.topic(), report.partition())
    consumer.assign([kafka.TopicPartition(place[0], place[1], offset)])
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        message = consumer.poll(0.1)
        if message is None:
            continue
        error = message.error()
        if is_unreadable(message):
            return bool(message.offset() == report.offset())
        # Any other error passes, or is met again by the next read.
        if error is None or error.code() in (
            kafka.KafkaError._PARTITION_EOF,
            kafka.KafkaError._AUTO_OFFSET_RESET,
        ):
            return False
    raise TimeoutError(
        f"the broker did not respond within {seconds:g} s while an unreadable batch of {place[0]}-{place[1]} was read"
    )
