"""Kafka's share groups as a batch platform outside the broker.

What most programs need, by what it is for:

- where everything is: `Settings`, `Database`;
- to consume a share group, as with confluent-kafka: `ShareConsumer`;
- to lease and acknowledge records: `State`, `Membership`, `SharePartition`, `Lease`, `OffsetSet`, `AcknowledgeType`;
- to read the output of a pipeline without Spark: `output_dataset`;
- what a group is configured to do: `GroupConfigs`;
- what is refused, by Kafka's names: `ShareError`.

Spark jobs: `sharequeue.spark`. Dagster: `sharequeue.dagster`. Tests: `sharequeue.testing`. Only these know Spark and
Dagster. A name is imported when it is first used, so that `import sharequeue` alone loads nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharequeue.consumer import (
        DeserializingShareConsumer,
        ShareConsumer,
        WakeupException,
    )
    from sharequeue.database import Database
    from sharequeue.domain.errors import ShareError
    from sharequeue.domain.offsets import OffsetSet
    from sharequeue.domain.settings import Settings
    from sharequeue.domain.values import AcknowledgeType, Lease, SharePartition
    from sharequeue.groups.configs import GroupConfigs
    from sharequeue.groups.membership import Membership
    from sharequeue.outputs import output_dataset
    from sharequeue.state import State

__version__ = "1.0.0"

__all__ = [
    "AcknowledgeType",
    "Database",
    "DeserializingShareConsumer",
    "GroupConfigs",
    "Lease",
    "Membership",
    "OffsetSet",
    "Settings",
    "ShareConsumer",
    "ShareError",
    "SharePartition",
    "State",
    "WakeupException",
    "output_dataset",
]

_MODULES = {
    "AcknowledgeType": "domain.values",
    "Database": "database",
    "DeserializingShareConsumer": "consumer",
    "GroupConfigs": "groups.configs",
    "Lease": "domain.values",
    "Membership": "groups.membership",
    "OffsetSet": "domain.offsets",
    "Settings": "domain.settings",
    "ShareConsumer": "consumer",
    "ShareError": "domain.errors",
    "SharePartition": "domain.values",
    "State": "state",
    "WakeupException": "consumer",
    "output_dataset": "outputs",
}
"""Where each name comes from."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
