"""Share groups in memory, to test a pipeline with.

No broker, no database, no waiting: :class:`InMemoryShareGroups` keeps the state of any number of
share-partitions by Kafka's own rules, with a clock that a test moves. ::

    groups = InMemoryShareGroups()
    flights = SharePartition("flight-delays", "flights", 0)
    groups.initialize(flights, "topic-id", start_offset=0, state_epoch=1)
    groups.observe(flights, "topic-id", log_start=0, log_end=100)

    got = groups.acquire(flights, "worker-1", 10)  # offsets 0 to 9, delivery count 1
    groups.acknowledge(
        flights, "worker-1", [AcknowledgementBatch.of(0, 8, AcknowledgeType.ACCEPT)], lease=got.lease
    )
    groups.advance(31)  # the lock on offset 9 lapses
    again = groups.acquire(flights, "worker-2", 10)  # 9 with delivery count 2, then 10 to 18

What goes beyond Kafka is there too: a time before which a release is not delivered again, pauses, the circuit
breaker, refunds of cancelled runs, records moved by hand, longer locks.

:class:`InMemoryState` stands in where code expects a ``sharequeue.state.State``.
It is held to the same conformance scenarios, recorded from a real broker, as the engine in Postgres, and both go
through the same random histories, compared after every step.
"""

from sharequeue.testing.groups import InMemoryShareGroups
from sharequeue.testing.records import (
    Acquired,
    AcquiredRange,
    AcquireMode,
    Description,
    LogBatch,
    OffsetState,
    RecordState,
    Redelivery,
)
from sharequeue.testing.state import InMemoryState
from sharequeue.values import AcknowledgementBatch, AcknowledgeType, Lease, SharePartition

__all__ = [
    "AcknowledgeType",
    "AcknowledgementBatch",
    "AcquireMode",
    "Acquired",
    "AcquiredRange",
    "Description",
    "InMemoryShareGroups",
    "InMemoryState",
    "Lease",
    "LogBatch",
    "OffsetState",
    "RecordState",
    "Redelivery",
    "SharePartition",
]
