"""Which configurations exist, what may they hold, and what are they called today?

Pure definitions: every group and service configuration with Kafka's name, its default, its bounds and what it
is for, the rules by which a text becomes a value, and the messages for names that are gone. Mirrors Kafka's
`GroupConfig` (groups), `ShareGroupConfig` and `GroupCoordinatorConfig` (the broker's `group.share.*`, here
the service's). Our own names begin with `sharequeue.`. Where values are kept, and what a group's effective
value is, `configs` says.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from sharequeue.errors import InvalidConfig

Kind = Literal["int", "boolean", "text"]
Value = int | bool | str

ASSIGNORS = ("simple", "backlog")
MAX_INT = 2**31 - 1
"""The largest record-lock bound: Kafka stops at 10,000, a batch lease of a whole topic does not."""


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
    _group("share.session.timeout.ms", "int", "A member not heard of for so long is out of the group.", 1),
    _group("share.heartbeat.interval.ms", "int", "The time between two heartbeats of a member.", 1),
    _group("share.record.lock.duration.ms", "int", "How long an acquired record stays locked.", 1000),
    _group("share.delivery.count.limit", "int", "Deliveries of a record before it is given up.", 2),
    _group("share.partition.max.record.locks", "int", "Records in flight in one share-partition.", 100),
    _group("share.assignment.interval.ms", "int", "Least time between two assignments of a group.", 0),
    ConfigKey(
        "share.assignors",
        "text",
        None,
        "Who gets which share-partition: simple, as in Kafka; or backlog, by the records that wait.",
        choices=ASSIGNORS,
        service_name="group.share.assignors",
    ),
    ConfigKey(
        "share.assignor.offload.enable",
        "boolean",
        None,
        "Accepted as in Kafka; the assignor here always runs within the heartbeat, before its response.",
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
        "Whether records of open or aborted transactions are delivered.",
        choices=("read_uncommitted", "read_committed"),
    ),
    ConfigKey("share.renew.acknowledge.enable", "boolean", True, "Whether locks may be renewed."),
    ConfigKey(
        "errors.deadletterqueue.topic.name",
        "text",
        "",
        "The topic that takes records given up or rejected; empty: they are archived without a trace.",
    ),
    ConfigKey(
        "errors.deadletterqueue.copy.record.enable",
        "boolean",
        False,
        "Whether a dead letter carries the key and value of its record.",
    ),
    ConfigKey(
        "sharequeue.dead.letter.drop.enable",
        "boolean",
        False,
        "Whether records whose dead-letter topic cannot be written are dropped, as Kafka does, and not held.",
    ),
    ConfigKey(
        "sharequeue.dead.letter.topic.enable",
        "boolean",
        False,
        "Whether the dead-letter topic is opted in, on brokers before 4.4 that do not know the topic's own config.",
    ),
    ConfigKey(
        "sharequeue.circuit.breaker.failure.percent",
        "int",
        0,
        "Leasing stops once more than so many percent of a share-partition's last records failed; 0: never.",
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
        "How many of the last records count; older ones lose weight step by step.",
        1,
        MAX_INT,
    ),
    ConfigKey(
        "sharequeue.circuit.breaker.probe.records",
        "int",
        10,
        "Size of a probe: records that are leased to see whether an outage is over.",
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
        "Whether a cancelled run gives its deliveries back, so that the count does not rise. In Kafka it rises.",
    ),
    ConfigKey(
        "sharequeue.retry.backoff.ms",
        "int",
        60_000,
        "How long a record that a pipeline has released waits; twice as long after each delivery. 0: not at all.",
        0,
        MAX_INT,
    ),
    ConfigKey(
        "sharequeue.retry.backoff.max.ms",
        "int",
        3_600_000,
        "How long a record that a pipeline has released waits at most, but for a fifth more at random.",
        0,
        MAX_INT,
    ),
    ConfigKey(
        "sharequeue.fetch.max.bytes",
        "int",
        0,
        "Bytes of keys and values that a round of a batch run leases, by their mean size; 0: no bound.",
        0,
        2**63 - 1,
    ),
)


_Bounds = tuple[int, int, int, int, int, int]


def _triple(stem: str, default: int, low: int, high: int, bounds: _Bounds, doc: str) -> tuple[ConfigKey, ...]:
    """A service default and the least and greatest value that a group may choose for itself.

    `bounds`: default, low and high of the minimum, then of the maximum.
    """
    least, least_low, least_high, most, most_low, most_high = bounds
    lower = f"Least {stem} that a group may have."
    upper = f"Greatest {stem} that a group may have."
    return (
        ConfigKey(f"group.share.{stem}", "int", default, doc, low, high),
        ConfigKey(f"group.share.min.{stem}", "int", least, lower, least_low, least_high),
        ConfigKey(f"group.share.max.{stem}", "int", most, upper, most_low, most_high),
    )


_SERVICE = (
    *_triple("delivery.count.limit", 5, 2, 10, (2, 2, 5, 10, 5, 25), "Deliveries of a record at most."),
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
        "A member not heard of for so long is out of the group.",
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
        "Least time between two assignments of a group.",
    ),
    ConfigKey("group.share.max.size", "int", 200, "Members that a group may have.", 1, 1000),
    ConfigKey("group.share.assignor.offload.enable", "boolean", True, "Accepted; without effect."),
    ConfigKey(
        "group.share.assignors", "text", "simple", "The assignor of groups that name none.", choices=ASSIGNORS
    ),
    ConfigKey(
        "group.share.initialize.retry.interval.ms",
        "int",
        30_000,
        "How long an initialisation that found no offset waits before it is tried again.",
        1,
        MAX_INT,
    ),
    ConfigKey(
        "share.coordinator.snapshot.update.records.per.snapshot",
        "int",
        500,
        "Changes in a share-partition's journal before a snapshot is written. Kafka's 0, a snapshot "
        "with each change, is not to be had: they are written every ten seconds at most.",
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
        "How long a topic must have been gone from the broker before its state in the groups is removed.",
        0,
        MAX_INT,
    ),
    ConfigKey(
        "errors.deadletterqueue.auto.create.topics.enable",
        "boolean",
        False,
        "Whether the service makes a missing dead-letter topic.",
    ),
    ConfigKey(
        "errors.deadletterqueue.topic.name.prefix",
        "text",
        "dlq.",
        "What a dead-letter topic's name must begin with; empty: anything.",
    ),
)

GROUP_CONFIGS: Mapping[str, ConfigKey] = {key.name: key for key in _GROUP}
SERVICE_CONFIGS: Mapping[str, ConfigKey] = {key.name: key for key in _SERVICE}

_RENAMED: Mapping[str, str] = {
    "group.share.record.lock.partition.limit": "`group.share.partition.max.record.locks`",
    "group.share.record.lock.duration.max.ms": "`group.share.max.record.lock.duration.ms`",
    "group.share.isolation.level": "the group config `share.isolation.level`",
    "group.share.auto.offset.reset": "the group config `share.auto.offset.reset`",
    "record.lock.duration.ms": "the optional lock duration of an acquire",
}
_GONE: Mapping[str, str] = {
    "group.type": "a consumer group and a share group may not share a name; there is nothing to set",
}
_BROKER_ONLY = frozenset(
    {
        "group.share.enable",
        "group.share.max.groups",
        "group.share.max.share.sessions",
        "group.coordinator.rebalance.protocols",
        "group.share.persister.class.name",
        "max.share.session.cache.slots",
        "share.fetch.purgatory.purge.interval.requests",
    }
)
_TRUTH = {"true": True, "false": False}
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(?:T(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE,
)


def unknown_config(name: str, known: Mapping[str, ConfigKey]) -> InvalidConfig:
    """Why a name is not a configuration here: renamed, gone, a broker's own, at the other level, or
    mistyped."""
    if name in _RENAMED:
        return InvalidConfig(f"`{name}` is an old name: use {_RENAMED[name]}.")
    if name in _GONE:
        return InvalidConfig(f"`{name}` is gone: {_GONE[name]}.")
    if name in _BROKER_ONLY or (name.startswith("share.coordinator.") and name not in SERVICE_CONFIGS):
        return InvalidConfig(f"`{name}` has no meaning outside a Kafka broker; leave it out.")
    if name in SERVICE_CONFIGS:
        own = name.removeprefix("group.")
        hint = f", or `{own}` for one group" if own in GROUP_CONFIGS else ""
        return InvalidConfig(
            f"`{name}` is the service's, not a group's: set {environment_name(name)} where it runs{hint}."
        )
    if name in GROUP_CONFIGS:
        return InvalidConfig(f"`{name}` is a group's config, not the service's: alter it on the group.")
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    hint = f" Did you mean `{close[0]}`?" if close else f" Known are: {', '.join(sorted(known))}."
    return InvalidConfig(f"there is no config `{name}`.{hint}")


def environment_name(service_config: str) -> str:
    """The environment variable that sets a service config: `SHAREQUEUE_` and the name in capitals."""
    return "SHAREQUEUE_" + service_config.upper().replace(".", "_")


def parse(key: ConfigKey, text: str) -> Value:
    """The value that a text stands for, checked against the key's own type, choices and bounds.

    Raises `InvalidConfig`: what was given, what was expected and what to do.
    """
    if key.kind == "boolean":
        truth = _TRUTH.get(text.strip().lower())
        if truth is None:
            raise InvalidConfig(f"`{key.name}` is {text!r}, but must be true or false.")
        return truth
    if key.kind == "int":
        return _whole_number(key, text)
    value = text.strip()
    if key.choices and value not in key.choices:
        raise InvalidConfig(f"`{key.name}` is {text!r}, but must be one of: {', '.join(key.choices)}.")
    if key.name == "share.auto.offset.reset":
        reset_duration(value)
    if key.name == "errors.deadletterqueue.topic.name":
        _check_dead_letter_topic(value)
    return value


def _whole_number(key: ConfigKey, text: str) -> int:
    try:
        number = int(text.strip())
    except ValueError:
        raise InvalidConfig(f"`{key.name}` is {text!r}, but must be a whole number.") from None
    low = -MAX_INT if key.low is None else key.low
    high = MAX_INT if key.high is None else key.high
    if not low <= number <= high:
        raise InvalidConfig(f"`{key.name}` is {number}, but must lie between {low} and {high}.")
    return number


def as_text(value: Value) -> str:
    """The one text under which a value is stored and shown."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def reset_duration(policy: str) -> timedelta | None:
    """How far back `by_duration:<ISO-8601>` reaches; None for `latest` and `earliest`.

    Java's `Duration` syntax (`P2D`, `PT1H30M`, `PT0.5S`). Raises `InvalidConfig` for anything else, and for a
    negative duration (Kafka's `ShareGroupAutoOffsetResetStrategy`).
    """
    if policy in ("latest", "earliest"):
        return None
    expected = "must be latest, earliest or by_duration:<ISO-8601 duration>, as by_duration:PT1H"
    prefix, _, duration = policy.partition(":")
    match = _DURATION.fullmatch(duration) if prefix == "by_duration" else None
    if match is None or not any(match.groups()[1:]) or duration.upper().endswith("T"):
        raise InvalidConfig(f"`share.auto.offset.reset` is {policy!r}, but {expected}.")
    sign, days, hours, minutes, seconds = match.groups()
    clock = timedelta(hours=int(hours or 0), minutes=int(minutes or 0), seconds=float(seconds or 0))
    span = timedelta(days=int(days or 0)) + clock
    span = -span if sign == "-" else span
    if span < timedelta(0):
        raise InvalidConfig(f"`share.auto.offset.reset` is {policy!r}: the duration must not be negative.")
    return span


def _check_dead_letter_topic(topic: str) -> None:
    if topic.startswith("__"):
        raise InvalidConfig(
            f"`errors.deadletterqueue.topic.name` is {topic!r}, but names beginning with __ are Kafka's own."
        )
    if topic and (topic in (".", "..") or not _TOPIC_NAME.fullmatch(topic)):
        raise InvalidConfig(
            f"`errors.deadletterqueue.topic.name` is {topic!r}, which is no legal topic name: use "
            "letters, digits, dots, underscores and hyphens, 249 characters at most."
        )
