"""How much does a round lease at most?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sharequeue.values import Lease

MAX_RECORDS = 10_000_000
"""Records leased in a round unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much is leased at most. `max_bytes` is no bound when 0; else `mean_bytes` has the mean size of each topic's
    records.
    """

    max_records: int
    max_bytes: int = 0
    mean_bytes: Mapping[str, float] = field(default_factory=dict)

    def is_used_up(self, leases: Sequence[Lease]) -> bool:
        """Return whether not one record more fits into it than is leased."""
        if sum(lease.offsets.count for lease in leases) >= self.max_records:
            return True
        if not self.max_bytes or not leases:
            return False
        size = sum(lease.offsets.count * self.mean_bytes[lease.share_partition.topic] for lease in leases)
        return size + max(self.mean_bytes.values()) > self.max_bytes
