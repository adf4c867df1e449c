"""The budget of a round: the most that it leases, in records and in bytes.

A broker keeps Kafka's `fetch.max.bytes` while it reads. A lease is given in records, before anything is read. So the
bound in bytes becomes a number of records, by the mean size of key and value. It is measured again for every round,
from up to a thousand records of each topic, at the start of its next lease. Compression, headers and the error of the
mean are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.values import Lease, SharePartition
from sharequeue.kafka.reading import RecordReader

MAX_RECORDS = 10_000_000
"""Records leased in a round by default."""
SAMPLE_RECORDS = 1000
WAIT_SECONDS = 5.0
"""Longest wait for the first record of a sample: there may be none to read, only gaps."""
MORE_SECONDS = 0.2
"""Longest wait for the other records of a sample."""
ASSUMED_BYTES = 1024.0
"""Assumed mean size for a topic of which nothing could be read yet."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that is leased. `max_bytes` of 0 means no bound; otherwise `mean_bytes` has the mean record size of
    each topic.
    """

    max_records: int
    max_bytes: int = 0
    mean_bytes: Mapping[str, float] = field(default_factory=dict)

    def is_used_up(self, leases: Sequence[Lease]) -> bool:
        """Return whether no further record fits into the budget."""
        if sum(lease.offsets.count for lease in leases) >= self.max_records:
            return True
        if not self.max_bytes or not leases:
            return False
        size = sum(lease.offsets.count * self.mean_bytes[lease.share_partition.topic] for lease in leases)
        return size + max(self.mean_bytes.values()) > self.max_bytes


class RecordSizes:
    """Mean sizes of records, by topic; `records` reads the samples."""

    def __init__(self, records: RecordReader) -> None:
        self._records = records
        self._means: dict[str, float] = {}

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
