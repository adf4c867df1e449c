"""The rules of share groups in memory: the model that the SQL functions are compared with.

:class:`InMemoryShareGroups` keeps the state of any number of share-partitions by Kafka's own rules, one entry per
offset, with a clock that moves only by a call. It was written from the rules and shares no code with the SQL. Both
are held to the scenarios recorded from a real broker, and go through the same random histories, compared after every
step. What goes beyond Kafka is there too: a time before which a release is not delivered again, pauses, the circuit
breaker, refunds of cancelled runs, records moved by hand, longer locks.
"""

from sharequeue.domain.values import AcknowledgementBatch, AcknowledgeType, Lease, SharePartition
from tests.oracle.groups import InMemoryShareGroups
from tests.oracle.records import (
    Acquired,
    AcquiredRange,
    AcquireMode,
    Description,
    LogBatch,
    OffsetState,
    RecordState,
    Redelivery,
)

__all__ = [
    "AcknowledgeType",
    "AcknowledgementBatch",
    "AcquireMode",
    "Acquired",
    "AcquiredRange",
    "Description",
    "InMemoryShareGroups",
    "Lease",
    "LogBatch",
    "OffsetState",
    "RecordState",
    "Redelivery",
    "SharePartition",
]
