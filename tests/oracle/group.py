"""The in-memory model of one group.

Its configurations, by Kafka's names and with Kafka's defaults, who is a member, and its share-partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from sharequeue.domain.errors import InvalidConfig, ShareError
from sharequeue.domain.values import Acknowledged
from tests.oracle.dead_letters import DeadLetters
from tests.oracle.records import Acquired, BreakerPolicy, OrderPolicy, Policy
from tests.oracle.share_partition import InMemorySharePartition

Call = tuple[str, str, UUID | None]
"""What a request id names on a share-partition: an operation by a member."""
Result = Acquired | Acknowledged | tuple[ShareError | None, Acquired]

DEFAULTS = {
    "errors.deadletterqueue.topic.name": "",
    "sharequeue.cancelled.run.refund.enable": "false",
    "sharequeue.circuit.breaker.failure.percent": "0",
    "sharequeue.circuit.breaker.min.records": "20",
    "sharequeue.circuit.breaker.open.ms": "30000",
    "sharequeue.circuit.breaker.probe.records": "10",
    "sharequeue.circuit.breaker.window.records": "100",
    "sharequeue.order": "none",
    "sharequeue.order.max.open.keys": "100000",
    "sharequeue.order.on.dead.letter": "continue",
    "share.auto.offset.reset": "latest",
    "share.delivery.count.limit": "5",
    "share.isolation.level": "read_uncommitted",
    "share.partition.max.record.locks": "2000",
    "share.record.lock.duration.ms": "30000",
    "share.renew.acknowledge.enable": "true",
    "group.share.min.record.lock.duration.ms": "15000",
    "group.share.max.record.lock.duration.ms": "60000",
}
"""What the state asks for of a group's configurations and the service's, with Kafka's defaults and ours. Others do
nothing."""


@dataclass(slots=True)
class InMemoryGroup:
    """One group. ``exists`` from its first member or altered offset on; configurations alone make no group.
    A ``deleted`` one has left only its configurations. ``paused_reason`` is why a person has stopped all leasing from
    it."""

    group_id: str
    exists: bool = False
    deleted: bool = False
    paused_reason: str | None = None
    service: Mapping[str, str] = field(default_factory=dict)
    """The service's configurations: between a group's own and the defaults."""
    configs: dict[str, str] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)
    partitions: dict[tuple[str, int], InMemorySharePartition] = field(default_factory=dict)
    dead_letters: dict[tuple[str, int], DeadLetters] = field(default_factory=dict)
    results: defaultdict[tuple[str, int], dict[Call, Result]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def config(self, name: str) -> str:
        """A configuration as it is now."""
        of_service = name if name.startswith("group.share.") else f"group.{name}"
        own = {} if name == of_service else self.configs
        return own.get(name, self.service.get(of_service, DEFAULTS.get(name, "")))

    def lock_bounds_ms(self) -> tuple[int, int]:
        """The shortest and the longest lock that the group or an acquire may ask for."""
        least = self.number("group.share.min.record.lock.duration.ms", 1)
        return least, self.number("group.share.max.record.lock.duration.ms", 1)

    def number(self, name: str, least: int) -> int:
        """A configuration that is a number. Raises InvalidConfig when it is none, or below what is allowed."""
        text = self.config(name)
        if not text.isdecimal() or int(text) < least:
            raise InvalidConfig(f"{name} = {text!r}: expected a whole number, {least} at least")
        return int(text)

    def policy(self) -> Policy:
        """The configurations as the rules read them: at each operation anew (R-RN-2, R-ST-5, R-IL-1)."""
        least, most = self.lock_bounds_ms()
        lock_ms = min(max(self.number("share.record.lock.duration.ms", 1), least), most)
        return Policy(
            delivery_count_limit=self.number("share.delivery.count.limit", 1),
            lock_seconds=lock_ms / 1000,
            max_record_locks=self.number("share.partition.max.record.locks", 1),
            dead_letters=bool(self.config("errors.deadletterqueue.topic.name")),
            renewal=self.config("share.renew.acknowledge.enable").lower() == "true",
            read_committed=self.config("share.isolation.level") == "read_committed",
            refund_cancelled=self.config("sharequeue.cancelled.run.refund.enable").lower() == "true",
            breaker=self._breaker(),
            order=self._order(),
        )

    def _order(self) -> OrderPolicy | None:
        order = OrderPolicy(
            letters_hold=self.config("sharequeue.order.on.dead.letter") == "hold",
            max_open_keys=self.number("sharequeue.order.max.open.keys", 1),
        )
        return order if self.config("sharequeue.order") == "key" else None

    def _breaker(self) -> BreakerPolicy | None:
        percent = self.number("sharequeue.circuit.breaker.failure.percent", 0)
        breaker = BreakerPolicy(
            percent=percent,
            min_records=self.number("sharequeue.circuit.breaker.min.records", 1),
            window_records=self.number("sharequeue.circuit.breaker.window.records", 1),
            probe_records=self.number("sharequeue.circuit.breaker.probe.records", 1),
            open_seconds=self.number("sharequeue.circuit.breaker.open.ms", 1) / 1000,
        )
        return breaker if percent else None
