"""The configs, with their types, bounds and defaults.

Pure definitions: every group and service configuration with Kafka's name, its default, its bounds and what it is for.
Mirrors Kafka's `GroupConfig` (groups), `ShareGroupConfig` and `GroupCoordinatorConfig` (the broker's `group.share.*`,
here the service's). Our own names begin with `sharequeue.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["int", "boolean", "text"]
Value = int | bool | str

MAX_INT = 2**31 - 1
"""The highest limit of record locks: Kafka's is 10,000, but a batch may lease a whole topic."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One configuration: its name, type, default and inclusive bounds, and what it decides.

    `default` None means that a group takes the service's value, that of `service_name`.
    """

    name: str
    kind: Kind
    default: Value | None
    doc: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    service_name: str | None = None


def _group(name: str, kind: Kind, doc: str, low: int) -> ConfigKey:
    return ConfigKey(name, kind, None, doc, low, MAX_INT, service_name=f"group.{name}")


_GROUP = (
    _group(
        "share.session.timeout.ms",
        "int",
        "A member without a heartbeat for this time is removed from the group.",
        1,
    ),
    _group("share.heartbeat.interval.ms", "int", "The time between two heartbeats of a member.", 1),
    _group("share.record.lock.duration.ms", "int", "How long an acquired record stays locked.", 1000),
    _group("share.delivery.count.limit", "int", "Number of deliveries after which a record is given up.", 2),
    _group("share.partition.max.record.locks", "int", "Records in flight in one share-partition.", 100),
    _group("share.assignment.interval.ms", "int", "Shortest time between two assignments of a group.", 0),
    ConfigKey(
        "share.assignor.offload.enable",
        "boolean",
        None,
        "Accepted as in Kafka, without effect: the assignor always runs within the heartbeat, before its response.",
        service_name="group.share.assignor.offload.enable",
    ),
    ConfigKey(
        "share.auto.offset.reset",
        "text",
        "latest",
        "Where a topic new to the group starts: latest, earliest or by_duration:<ISO-8601 duration>.",
    ),
    ConfigKey(
        "share.isolation.level",
        "text",
        "read_uncommitted",
        "Whether records of open or aborted transactions are delivered. A change takes effect with the next lease.",
        choices=("read_uncommitted", "read_committed"),
    ),
    ConfigKey("share.renew.acknowledge.enable", "boolean", True, "Whether locks may be renewed."),
    ConfigKey(
        "errors.deadletterqueue.topic.name",
        "text",
        "",
        "The topic for dead letters; empty: records that are given up are archived without one.",
    ),
    ConfigKey(
        "errors.deadletterqueue.copy.record.enable",
        "boolean",
        False,
        "Whether a dead letter has the key and value of its record.",
    ),
    ConfigKey(
        "sharequeue.dead.letter.drop.enable",
        "boolean",
        False,
        "Whether dead letters that cannot be written are dropped, as in Kafka, instead of held.",
    ),
    ConfigKey(
        "sharequeue.dead.letter.error.message.enable",
        "boolean",
        True,
        "Whether a dead letter has the message of its exception; if not, only the class.",
    ),
    ConfigKey(
        "sharequeue.dead.letter.topic.enable",
        "boolean",
        False,
        "Whether the group may write to its dead-letter topic, on brokers before 4.4 without that topic config.",
    ),
    ConfigKey(
        "sharequeue.circuit.breaker.failure.percent",
        "int",
        0,
        "Leasing stops if more than this percentage of a share-partition's last records failed; 0: never.",
        0,
        99,
    ),
    ConfigKey(
        "sharequeue.circuit.breaker.min.records",
        "int",
        20,
        "The breaker does not open before this many records have an outcome.",
        1,
        MAX_INT,
    ),
    ConfigKey(
        "sharequeue.circuit.breaker.window.records",
        "int",
        100,
        "The number of last records that count; older ones lose weight step by step.",
        1,
        MAX_INT,
    ),
    ConfigKey(
        "sharequeue.circuit.breaker.probe.records",
        "int",
        10,
        "Size of a probe: records that are leased to test whether an outage is over.",
        1,
        MAX_INT,
    ),
    ConfigKey(
        "sharequeue.circuit.breaker.open.ms",
        "int",
        30_000,
        "Time between two probes; nothing else is leased meanwhile.",
        1,
        MAX_INT,
    ),
    ConfigKey(
        "sharequeue.cancelled.run.refund.enable",
        "boolean",
        False,
        "Whether a cancelled run gives back its deliveries, so that they do not count. In Kafka they count.",
    ),
    ConfigKey(
        "sharequeue.retry.backoff.ms",
        "int",
        60_000,
        "How long a record released by a pipeline waits; twice as long after each delivery. 0: no wait.",
        0,
        MAX_INT,
    ),
    ConfigKey(
        "sharequeue.retry.backoff.max.ms",
        "int",
        3_600_000,
        "The longest time that a record released by a pipeline waits, plus up to a fifth at random.",
        0,
        MAX_INT,
    ),
    ConfigKey(
        "sharequeue.retry.keep.enable",
        "boolean",
        True,
        "Whether batch runs keep the raw records that they release in files, and read them from there again. false: "
        "the next run or sweep removes the files.",
    ),
    ConfigKey(
        "sharequeue.order",
        "text",
        "none",
        "key: within a partition, a record is accepted only when no earlier record of its key is open. none: records "
        "are unordered. A change takes effect with the next lease.",
        choices=("none", "key"),
    ),
    ConfigKey(
        "sharequeue.order.on.dead.letter",
        "text",
        "continue",
        "With order by key: after a dead letter, its key continues, or holds until it is redriven or discarded.",
        choices=("continue", "hold"),
    ),
    ConfigKey(
        "sharequeue.order.max.open.keys",
        "int",
        100_000,
        "With order by key: no new records are leased from a share-partition with so many open keys.",
        1,
        10_000_000,
    ),
    ConfigKey(
        "sharequeue.fetch.max.bytes",
        "int",
        0,
        "Bytes of keys and values that a round of a batch run leases, by their mean size; 0: no limit.",
        0,
        2**63 - 1,
    ),
    ConfigKey(
        "sharequeue.results.max.waiting.records",
        "int",
        10_000_000,
        "Accepted records that wait for the topic of a KafkaTopic: nothing is leased with so many; 0: with any.",
        0,
        2**63 - 1,
    ),
)


_TripleBounds = tuple[int, int, int, int, int, int]


def _triple(
    stem: str, default: int, low: int, high: int, bounds: _TripleBounds, doc: str
) -> tuple[ConfigKey, ...]:
    """Return a service default and the least and greatest value that a group may choose for itself.

    `bounds`: default, low and high of the minimum, then of the maximum.
    """
    least, least_low, least_high, most, most_low, most_high = bounds
    lower = f"Lowest {stem} that a group may have."
    upper = f"Highest {stem} that a group may have."
    return (
        ConfigKey(f"group.share.{stem}", "int", default, doc, low, high),
        ConfigKey(f"group.share.min.{stem}", "int", least, lower, least_low, least_high),
        ConfigKey(f"group.share.max.{stem}", "int", most, upper, most_low, most_high),
    )


_SERVICE = (
    *_triple(
        "delivery.count.limit",
        5,
        2,
        10,
        (2, 2, 5, 10, 5, 25),
        "The highest number of deliveries of a record.",
    ),
    *_triple(
        "record.lock.duration.ms",
        30_000,
        1000,
        3_600_000,
        (15_000, 1000, 30_000, 60_000, 30_000, 3_600_000),
        "How long an acquired record stays locked.",
    ),
    *_triple(
        "partition.max.record.locks",
        2000,
        100,
        10_000,
        (100, 100, 2000, MAX_INT, 2000, MAX_INT),
        "Records in flight in one share-partition.",
    ),
    *_triple(
        "session.timeout.ms",
        45_000,
        1,
        MAX_INT,
        (45_000, 1, MAX_INT, 60_000, 1, MAX_INT),
        "A member without a heartbeat for this time is removed from the group.",
    ),
    *_triple(
        "heartbeat.interval.ms",
        5000,
        1,
        MAX_INT,
        (5000, 1, MAX_INT, 15_000, 1, MAX_INT),
        "The time between two heartbeats of a member.",
    ),
    *_triple(
        "assignment.interval.ms",
        1000,
        0,
        MAX_INT,
        (0, 0, MAX_INT, 15_000, 0, MAX_INT),
        "Shortest time between two assignments of a group.",
    ),
    ConfigKey("group.share.max.size", "int", 200, "Highest number of members of a group.", 1, 1000),
    ConfigKey("group.share.assignor.offload.enable", "boolean", True, "Accepted; without effect."),
    ConfigKey(
        "group.share.assignors",
        "text",
        "simple",
        "The assignor. As in Kafka, there is only this one.",
        choices=("simple",),
    ),
    ConfigKey(
        "group.share.initialize.retry.interval.ms",
        "int",
        30_000,
        "Time before an initialisation that found no offset is repeated.",
        1,
        MAX_INT,
    ),
    ConfigKey(
        "share.coordinator.snapshot.update.records.per.snapshot",
        "int",
        500,
        "Changes in a share-partition's journal before a snapshot is written. Kafka's 0, a snapshot "
        "with each change, is not supported: they are written at most every ten seconds.",
        1,
        MAX_INT,
    ),
    ConfigKey(
        "journal.retention.minutes",
        "int",
        7 * 24 * 60,
        "How long the journal is kept, in whole days; the figures of each day are kept longer.",
        24 * 60,
        MAX_INT,
    ),
    ConfigKey(
        "deleted.topics.retention.ms",
        "int",
        15 * 60 * 1000,
        "Time after which the state of a topic that was deleted on the broker is removed.",
        0,
        MAX_INT,
    ),
    ConfigKey(
        "errors.deadletterqueue.auto.create.topics.enable",
        "boolean",
        False,
        "Whether the first writer creates a missing dead-letter topic; also if only the broker's own "
        "config of this name is true.",
    ),
    ConfigKey(
        "errors.deadletterqueue.topic.name.prefix",
        "text",
        "dlq.",
        "The required prefix of a dead-letter topic's name; empty: any name.",
    ),
)

GROUP_CONFIGS: Mapping[str, ConfigKey] = {key.name: key for key in _GROUP}
SERVICE_CONFIGS: Mapping[str, ConfigKey] = {key.name: key for key in _SERVICE}
