"""The configs of a share consumer, and those that it refuses.

The names are Kafka's, as ``confluent_kafka.ShareConsumer`` takes them. Configs that it refuses are refused here with
the same messages (KIP-932: those that make no sense for a share consumer, and those of the group). Names of our own
begin with ``sharequeue.``. Everything else is passed to the client that reads the records, which checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from sharequeue.domain.settings import Settings

IMPLICIT, EXPLICIT = "implicit", "explicit"

NOT_APPLICABLE = frozenset(
    {
        "auto.offset.reset",
        "consume.callback.max.messages",
        "enable.auto.commit",
        "enable.partition.eof",
        "fetch.queue.backoff.ms",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "isolation.level",
        "partition.assignment.strategy",
        "queued.max.messages.kbytes",
        "queued.min.messages",
    }
)
OF_THE_GROUP = frozenset({"heartbeat.interval.ms", "session.timeout.ms"})

# Accepted without effect: they are about committed offsets, which a share consumer does not have.
_WITHOUT_EFFECT = (
    "auto.commit.interval.ms",
    "enable.auto.offset.store",
    "offset.store.method",
    "topic.auto.offset.reset",
)
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """A share consumer's configuration, checked."""

    group_id: str
    settings: Settings
    explicit: bool = False
    max_poll_records: int = 500
    """The maximum number of records that a poll returns; never exceeded."""
    max_poll_interval_ms: int = 300_000
    """A member that does not poll for this time leaves the group."""
    fetch_min_bytes: int = 1
    """A poll waits for this many bytes, but no longer than ``fetch_max_wait_ms``."""
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 52_428_800
    """Maximum bytes of keys and values that are leased and read ahead of the polls; one record may be larger."""
    prefetch_max_records: int = 5_000
    """Maximum number of records that are leased ahead of the polls; 0 turns leasing ahead off."""
    client_id: str = "sharequeue"
    client_rack: str | None = None
    service_url: str | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    """The configs of the client that reads the records."""


def consumer_config(config: Mapping[str, Any], extras: Mapping[str, Any]) -> ConsumerConfig:
    """Check a share consumer's configuration; ``extras`` are keyword arguments, for example ``logger``.

    Raises the same errors as confluent's: ValueError for a config that a share consumer refuses and for a missing
    ``group.id``, KafkaException with _INVALID_ARG for an invalid value. SettingMissing if an address is not known.
    """
    given = {**config, **extras}
    # The client would give these precedence over all others.
    given |= given.pop("default.topic.config", None) or {}
    if "on_commit" in given:
        raise ValueError("on_commit is not supported on ShareConsumer")
    for name in given:
        _refuse(name)
    if not given.get("group.id"):
        raise ValueError("Failed to create consumer: group.id must be set")
    for name in _WITHOUT_EFFECT:
        given.pop(name, None)
    mode = _one_of(given, "share.acknowledgement.mode", IMPLICIT, (IMPLICIT, EXPLICIT))
    # Both modes do the same: a lease is limited by its number of records, as the log's batches are not known here.
    _one_of(given, "share.acquire.mode", "batch_optimized", ("batch_optimized", "record_limit"))
    max_poll_records = _whole(given, "max.poll.records", 500, 1)
    wait = _whole(given, "fetch.wait.max.ms", 500, 0, 300_000)
    numbers = {
        "max_poll_records": max_poll_records,
        "max_poll_interval_ms": _whole(given, "max.poll.interval.ms", 300_000, 1),
        "fetch_min_bytes": _whole(given, "fetch.min.bytes", 1, 1),
        "fetch_max_wait_ms": _whole(given, "fetch.max.wait.ms", wait, 0, 300_000),
        "fetch_max_bytes": _whole(given, "fetch.max.bytes", 52_428_800, 1),
        "prefetch_max_records": _whole(given, "sharequeue.prefetch.max.records", 10 * max_poll_records, 0),
    }
    return ConsumerConfig(
        group_id=str(given.pop("group.id")),
        explicit=mode == EXPLICIT,
        client_id=str(given.get("client.id") or "sharequeue"),
        client_rack=str(given["client.rack"]) if given.get("client.rack") else None,
        service_url=given.pop("sharequeue.service.url", None),
        settings=_settings(given),
        reading=_reading(given),
        **numbers,
    )


def _refuse(name: str) -> None:
    reason = None
    if name in NOT_APPLICABLE:
        reason = f"`{name}` is not applicable for share consumer"
    elif name in OF_THE_GROUP:
        reason = f"`{name}` is not supported for share consumer. It is defined broker side, for the group"
    elif name == "group.protocol.type":
        reason = f"`{name}` is not supported for share consumer"
    elif name == "allow.auto.create.topics":
        reason = f"{name} is not supported for share consumer: create the topic"
    if reason is not None:
        raise ValueError(f"Failed to create share consumer: {reason}")


def _settings(given: dict[str, Any]) -> Settings:
    """Return the settings of the environment and the stack file, overridden by the values of the config."""
    overrides: dict[str, Any] = {}
    home = given.pop("sharequeue.home", None)
    if url := given.pop("sharequeue.database.url", None):
        overrides["database_url"] = url
    if token := given.pop("sharequeue.service.token", None):
        overrides["service_token"] = token
    for name in ("metadata.broker.list", "bootstrap.servers"):
        if servers := given.pop(name, None):
            overrides["bootstrap_servers"] = servers
    loaded = Settings.load(home, **overrides)
    security = {
        name: given.pop(name)
        for name in list(given)
        if name.startswith(("security.", "sasl.", "ssl.")) and isinstance(given[name], str | int | bool)
    }
    texts = {
        name: str(value).lower() if value in (True, False) else str(value) for name, value in security.items()
    }
    settings = loaded.replace(kafka={**loaded.kafka, **texts})
    # Read now, so that a program without addresses fails here and not in its first poll.
    _ = settings.database_url, settings.bootstrap_servers
    return settings


def _reading(given: dict[str, Any]) -> dict[str, Any]:
    for name in given:
        if name.startswith("sharequeue."):
            raise invalid(f'No such configuration property: "{name}"')
    return given


def invalid(reason: str) -> KafkaException:
    """Return the error that confluent raises for an invalid config."""
    return KafkaException(KafkaError(KafkaError._INVALID_ARG, reason))


def _whole(given: dict[str, Any], name: str, default: int, least: int, most: int = _MOST) -> int:
    value = given.pop(name, default)
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise invalid(f'Configuration property "{name}" value {value} is not a whole number') from None
    if not least <= number <= most:
        raise invalid(
            f'Configuration property "{name}" value {number} is outside allowed range {least}..{most}'
        )
    return number


def _one_of(given: dict[str, Any], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = str(given.pop(name, default)).lower()
    if value not in allowed:
        raise invalid(
            f'Invalid value "{value}" for configuration property "{name}": use {" or ".join(allowed)}'
        )
    return value
