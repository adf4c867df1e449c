"""How many records are so many bytes?

A broker keeps Kafka's `fetch.max.bytes` while it reads. A lease is given in records, before anything is read. So the
bound in bytes becomes a number of records, by the mean size of key and value. It is measured anew for every round,
from up to a thousand records of each topic, where its next lease begins. The means are kept in the run's memory only.
Compression, headers and the error of the mean are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, TopicPartition

from sharequeue.kafka.clients import client_config
from sharequeue.settings import Settings
from sharequeue.values import READ_UNCOMMITTED, SharePartition, SharePartitionStatus

SAMPLE_RECORDS = 1000
WAIT_SECONDS = 5.0
"""Longest wait for the first record of a sample: there may be none to read, only gaps."""
ASSUMED_BYTES = 1024.0
"""Mean size of a topic of which nothing could be read yet."""


class RecordSizes:
    """Mean sizes of records, by topic. A context manager; joins no group and commits nothing."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._consumer: Consumer | None = None
        self._means: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def measure(
        self, share_partitions: Sequence[SharePartition], statuses: Sequence[SharePartitionStatus]
    ) -> Mapping[str, float]:
        """Return mean bytes of key and value by topic, measured in the partition with most lag, where its next lease
        begins.
        """
        assigned = set(share_partitions)
        ours = sorted((s for s in statuses if s.share_partition in assigned), key=lambda status: status.lag)
        for status in {status.topic: status for status in ours}.values():
            fresh = status.speo < status.log_end
            first = max(status.log_start, status.speo if fresh else status.spso)
            mean = self._mean(status.topic, status.partition, first) if first < status.log_end else None
            if mean is not None:
                self._means[status.topic] = mean
        return {at.topic: self._means.get(at.topic, ASSUMED_BYTES) for at in assigned}

    def _mean(self, topic: str, partition: int, first: int) -> float | None:
        if self._consumer is None:
            self._consumer = Consumer(
                client_config(
                    self._settings,
                    group_id="sharequeue.sizes",
                    enable_auto_commit=False,
                    isolation_level=READ_UNCOMMITTED,  # a mean: those of an open transaction count
                    auto_offset_reset="earliest",
                    queued_max_messages_kbytes=16 * 1024,
                )
            )
        self._consumer.assign([TopicPartition(topic, partition, first)])
        records = size = 0
        deadline = time.monotonic() + WAIT_SECONDS
        while records < SAMPLE_RECORDS and time.monotonic() < deadline:
            batch = self._consumer.consume(SAMPLE_RECORDS - records, timeout=0.2)
            if records and not batch:
                break
            for message in batch:
                if message.error() is None:
                    records += 1
                    size += len(message.value() or b"") + len(message.key() or b"")
        self._consumer.unassign()
        return max(1.0, size / records) if records else None
