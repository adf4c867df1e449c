"""What is on its way to the database: the acknowledgements of one call of the program's, and what became of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

from sharequeue.consumer.holdings import Holding
from sharequeue.consumer.reader import Key
from sharequeue.errors import RequestTimedOut, ShareError
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.state.many import LeaseAcknowledgement
from sharequeue.values import AcknowledgeType, Lease


@dataclass(slots=True, eq=False)
class Sending:
    """Acknowledgements on their way: of several leases, each with a result of its own."""

    acknowledgements: list[LeaseAcknowledgement]
    deadline: float
    """When the last of their locks lapses, by ``time.monotonic``; until then they are tried again."""
    request_id: UUID = field(default_factory=uuid4)
    results: list[ShareError | None] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def by_partition(self) -> dict[Key, tuple[OffsetSet, ShareError | None]]:
        """What was acknowledged of each partition, and the first error."""
        found: dict[Key, tuple[OffsetSet, ShareError | None]] = {}
        for each, error in zip(self.acknowledgements, self.results, strict=True):
            at = each.lease.share_partition
            offsets, before = found.get((at.topic, at.partition), (EMPTY, None))
            found[at.topic, at.partition] = (
                OffsetSet.union([offsets, *each.outcomes.values()]),
                before or error,
            )
        return found


def sending_of(some: Sequence[tuple[Holding, dict[AcknowledgeType, OffsetSet]]]) -> Sending:
    """What is to be sent of some leases."""
    acknowledgements = [LeaseAcknowledgement(anyone(holding.lease), of_it) for holding, of_it in some]
    return Sending(acknowledgements, max(holding.deadline for holding, _ in some))


def timed_out(sending: Sending) -> list[ShareError | None]:
    """The results of acknowledgements that nobody waits for any longer."""
    return [RequestTimedOut() for _ in sending.acknowledgements]


def anyone(lease: Lease) -> Lease:
    """The lease without its member epoch: its token is proof enough, also when the member has left (2.20, line 6)."""
    return replace(lease, member_epoch=None)
