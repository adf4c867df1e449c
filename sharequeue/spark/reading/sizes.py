"""Estimate the number of records for a bound in bytes.

A broker keeps Kafka's `fetch.max.bytes` while it reads. A lease is given in records, before anything is read. So the
bound in bytes becomes a number of records, by the mean size of key and value. It is measured again for every round,
from up to a thousand records of each topic, at the start of its next lease. The means are kept only in the run's
memory. Compression, headers and the error of the mean are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from sharequeue.kafka.reading import RecordReader
from sharequeue.words.figures import SharePartitionStatus
from sharequeue.words.settings import Settings
from sharequeue.words.values import SharePartition

SAMPLE_RECORDS = 1000
WAIT_SECONDS = 5.0
"""Longest wait for the first record of a sample: there may be none to read, only gaps."""
MORE_SECONDS = 0.2
"""Longest wait for the other records of a sample."""
ASSUMED_BYTES = 1024.0
"""Assumed mean size for a topic of which nothing could be read yet."""


class RecordSizes:
    """Mean sizes of records, by topic. A context manager; it joins no group and commits nothing."""

    def __init__(self, settings: Settings) -> None:
        # Records of open transactions count for the mean.
        self._records = RecordReader(settings)
        self._means: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._records.__exit__(kind, error, trace)

    def measure(
        self, share_partitions: Sequence[SharePartition], statuses: Sequence[SharePartitionStatus]
    ) -> Mapping[str, float]:
        """Return mean bytes of key and value by topic, measured in the partition with most lag, at the start of its
        next lease.
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
        found = self._records.sample(topic, partition, first, SAMPLE_RECORDS, WAIT_SECONDS, MORE_SECONDS)
        size = sum(len(message.value() or b"") + len(message.key() or b"") for message in found)
        return max(1.0, size / len(found)) if found else None
