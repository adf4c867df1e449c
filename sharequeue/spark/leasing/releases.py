"""How often a run has released each record.

A run leases a released record only as often as its job allows. Then the record waits for the back-off of the group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import SharePartition


@dataclass(slots=True)
class Releases:
    """The number of releases of each record in a run; after `most` releases the run does not lease it again."""

    most: int
    _times: dict[SharePartition, list[OffsetSet]] = field(default_factory=dict)
    """Element n has the offsets that were released more than n times."""

    def add(self, at: SharePartition, released: OffsetSet, spso: int) -> None:
        """Record one more release of these offsets. Offsets below SPSO are never redelivered."""
        ended = OffsetSet.of((0, spso)) if spso > 0 else EMPTY
        times = self._times.setdefault(at, [EMPTY] * self.most)
        for n, before in enumerate(times):
            times[n] = (before | released) - ended
            released &= before

    def spent(self, at: SharePartition) -> OffsetSet:
        """Return the offsets that the run may not lease again."""
        times = self._times.get(at)
        return times[-1] if times else EMPTY
