"""When does a record come again that a run has released?

A run leases a released record only as often as its job allows. Then the record waits for the back-off of the group:
it doubles with each delivery, up to a maximum, and is lengthened by up to a fifth, so that records that failed
together do not come back together. A time that the handler gives (`not_before`) is used instead. The state itself
delays nothing, as Kafka does not: these are the rules of pipelines and of `lease`. Suspects, which have no outcome,
are left to the state.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Self

from sharequeue.groups.configs import GroupConfigs
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.spark.outcomes.missing import Acknowledgement
from sharequeue.values import AcknowledgeType, Lease, SharePartition

JITTER = 0.2
"""By how much of itself a back-off is lengthened at most."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a released record waits: `first_ms` after its first delivery, `most_ms` in the end."""

    first_ms: int
    most_ms: int

    @classmethod
    def of(cls, configs: GroupConfigs) -> Self:
        """Return the back-off that a group is configured to."""
        return cls(configs.retry_backoff_ms, configs.retry_backoff_max_ms)

    def seconds(self, delivery_count: int, jitter: float) -> float:
        """Return the wait after so many deliveries; `jitter` is from 0 to 1."""
        # No maximum needs a larger exponent, and delivery counts are not bounded.
        doubled: int = self.first_ms << min(delivery_count - 1, 31)
        return min(doubled, max(self.first_ms, self.most_ms)) / 1000 * (1 + JITTER * jitter)

    def apply(self, lease: Lease, acknowledgement: Acknowledgement, now: datetime) -> Acknowledgement:
        """Return the acknowledgement, with a time not before for each released record that has none."""
        released = acknowledgement.outcomes.get(AcknowledgeType.RELEASE, EMPTY)
        plain = released - OffsetSet.union(acknowledgement.delays.values()) if released else EMPTY
        if not plain or not self.first_ms:
            return acknowledgement
        delays = dict(acknowledgement.delays)
        for delivery in lease.deliveries:
            if again := plain & delivery.offsets:
                wait = self.seconds(delivery.delivery_count, random.random())  # noqa: S311 - no secret
                second = math.ceil(now.timestamp() + wait)
                delays[second] = delays.get(second, EMPTY) | again
        return replace(acknowledgement, delays=delays)


@dataclass(slots=True)
class Releases:
    """Which records a run has released how often; after `most` times it does not lease them again."""

    most: int
    _times: dict[SharePartition, list[OffsetSet]] = field(default_factory=dict)
    """Element n has what was released more than n times."""

    def add(self, at: SharePartition, released: OffsetSet, spso: int) -> None:
        """Note that these were released once more. Nothing below SPSO comes again."""
        ended = OffsetSet.of((0, spso)) if spso > 0 else EMPTY
        times = self._times.setdefault(at, [EMPTY] * self.most)
        for n, before in enumerate(times):
            times[n] = (before | released) - ended
            released &= before

    def spent(self, at: SharePartition) -> OffsetSet:
        """Return what the run may not lease again."""
        times = self._times.get(at)
        return times[-1] if times else EMPTY
