"""The budget of a round: the most that it leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sharequeue.words.values import Lease

MAX_RECORDS = 10_000_000
"""Records leased in a round by default."""


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
