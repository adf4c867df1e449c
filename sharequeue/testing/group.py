"""What does the in-memory engine know of one group?

Its configurations, by Kafka's names and with Kafka's defaults, who is a member, and its share-partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sharequeue.errors import InvalidConfig
from sharequeue.testing.dead_letters import DeadLetters
from sharequeue.testing.records import Policy
from sharequeue.testing.share_partition import InMemorySharePartition

DEFAULTS = {
    "errors.deadletterqueue.topic.name": "",
    "share.auto.offset.reset": "latest",
    "share.delivery.count.limit": "5",
    "share.isolation.level": "read_uncommitted",
    "share.partition.max.record.locks": "2000",
    "share.record.lock.duration.ms": "30000",
    "share.renew.acknowledge.enable": "true",
}
"""The group configurations that the state asks for, and Kafka's defaults. Others are kept, and do nothing."""


@dataclass(slots=True)
class InMemoryGroup:
    """One group. ``exists`` from its first member or altered offset on; configurations alone make no group."""

    group_id: str
    exists: bool = False
    configs: dict[str, str] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)
    partitions: dict[tuple[str, int], InMemorySharePartition] = field(default_factory=dict)
    dead_letters: dict[tuple[str, int], DeadLetters] = field(default_factory=dict)

    def config(self, name: str) -> str:
        """A configuration as it is now."""
        return self.configs.get(name, DEFAULTS.get(name, ""))

    def number(self, name: str, least: int) -> int:
        """A configuration that is a number. Raises InvalidConfig when it is none, or below what is allowed."""
        text = self.config(name)
        if not text.isdecimal() or int(text) < least:
            raise InvalidConfig(f"{name} = {text!r}: expected a whole number, {least} at least")
        return int(text)

    def policy(self) -> Policy:
        """The configurations as the rules read them: at each operation anew (R-RN-2, R-ST-5, R-IL-1)."""
        return Policy(
            delivery_count_limit=self.number("share.delivery.count.limit", 1),
            lock_seconds=self.number("share.record.lock.duration.ms", 1) / 1000,
            max_record_locks=self.number("share.partition.max.record.locks", 1),
            dead_letters=bool(self.config("errors.deadletterqueue.topic.name")),
            renewal=self.config("share.renew.acknowledge.enable").lower() == "true",
            read_committed=self.config("share.isolation.level") == "read_committed",
        )
