"""The configs of a group as typed values.

The effective configuration of a group: its own values, stored in Postgres (`group_configs`), else the
service's. Values are limited to the service's bounds, even if the bounds changed after the value was set (Kafka's
`GroupConfigManager`). Nothing is changed here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar

from sqlalchemy import Connection, text

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidConfig
from sharequeue.domain.settings.variables import warn_of_unknown_configs
from sharequeue.groups.configs.keys import GROUP_CONFIGS, SERVICE_CONFIGS, Value
from sharequeue.groups.configs.names import environment_name, known_key
from sharequeue.groups.configs.texts import parse, reset_duration

_BOUNDED = (
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "record.lock.duration.ms",
    "delivery.count.limit",
    "partition.max.record.locks",
    "assignment.interval.ms",
)


def _int(values: Mapping[str, Value], name: str) -> int:
    return int(values[name])


_T = TypeVar("_T")


class _Typed(Generic[_T]):
    """A config as an attribute with a type."""

    def __init__(self, name: str, kind: Callable[[Any], _T]) -> None:
        self._name, self._kind = name, kind

    def __get__(self, configs: Any, _: object) -> _T:
        if configs is None:
            raise AttributeError(f"`{self._name}` has a value in configs that are loaded")
        return self._kind(configs.values[self._name])


@dataclass(frozen=True, slots=True)
class ServiceConfigs:
    """The broker-level half of the configuration, `group.share.*`: in Kafka it is in the broker's
    properties."""

    values: Mapping[str, Value] = field(
        default_factory=lambda: {
            n: key.default for n, key in SERVICE_CONFIGS.items() if key.default is not None
        }
    )

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Load from `SHAREQUEUE_GROUP_SHARE_…` and `SHAREQUEUE_ERRORS_DEADLETTERQUEUE_…`, else Kafka's defaults.

        Raises `InvalidConfig` for a value of the wrong type, out of its range, or out of its own min and max.
        """
        environ = os.environ if environ is None else environ
        warn_of_unknown_configs(map(environment_name, SERVICE_CONFIGS), environ)
        named: dict[str, str] = {}
        for name, key in SERVICE_CONFIGS.items():
            given = environ.get(environment_name(name))
            # A variable that is set but empty means a value only where a text may be empty.
            if given is not None and (given or key.kind == "text"):
                named[name] = given
        return cls.of(named)

    @classmethod
    def stored(cls, database: Database) -> Self:
        """Load the configs with which the service last started, as they are in the database for every process.

        Kafka's defaults if no service has started yet.
        """
        rows = database.rows(text("select name, value from sharequeue.stored_service_configs()"))
        return cls.of({str(row["name"]): str(row["value"]) for row in rows})

    @classmethod
    def of(cls, changes: Mapping[str, str]) -> Self:
        """Return Kafka's defaults with `changes` (Kafka's names) on top. Raises `InvalidConfig`."""
        values = dict(cls().values)
        for name, given in changes.items():
            values[name] = parse(known_key(name, SERVICE_CONFIGS), given)
        for stem in _BOUNDED:
            least, value, most = cls(values).bounded(stem)
            if not least <= value <= most:
                raise InvalidConfig(
                    f"`group.share.{stem}` is {value}, but must lie between `group.share.min.{stem}` "
                    f"({least}) and `group.share.max.{stem}` ({most}): change one of the three."
                )
        if _int(values, "group.share.heartbeat.interval.ms") >= _int(
            values, "group.share.session.timeout.ms"
        ):
            raise InvalidConfig(
                "`group.share.heartbeat.interval.ms` must be below `group.share.session.timeout.ms`."
            )
        return cls(values)

    max_size = _Typed("group.share.max.size", int)
    """The highest number of members of a group (`group.share.max.size`)."""
    initialize_retry_ms = _Typed("group.share.initialize.retry.interval.ms", int)
    """How long a topic that has no offset to start from waits before it is tried again, in milliseconds."""
    updates_per_snapshot = _Typed("share.coordinator.snapshot.update.records.per.snapshot", int)
    """Changes of a share-partition between two snapshots of its journal."""

    journal_retention = _Typed("journal.retention.minutes", lambda minutes: timedelta(minutes=minutes))
    """How long the journal is kept."""
    deleted_topics_retention = _Typed("deleted.topics.retention.ms", lambda ms: timedelta(milliseconds=ms))
    """How long a topic must have been gone from the broker before its state is removed."""
    dead_letter_auto_create = _Typed("errors.deadletterqueue.auto.create.topics.enable", bool)
    """Whether a missing dead-letter topic is created."""
    dead_letter_prefix = _Typed("errors.deadletterqueue.topic.name.prefix", str)
    """The required prefix of a dead-letter topic's name; empty: any name."""

    def bounds(self, group_config: str) -> tuple[int, int] | None:
        """Return the least and greatest value that a group may give a config; None if the service sets none."""
        stem = group_config.removeprefix("share.")
        if stem not in _BOUNDED:
            return None
        return _int(self.values, f"group.share.min.{stem}"), _int(self.values, f"group.share.max.{stem}")

    def bounded(self, stem: str) -> list[int]:
        """Return minimum, service value and maximum of a config that has bounds, as the SQL functions take them."""
        return [_int(self.values, f"group.share.{bound}{stem}") for bound in ("min.", "", "max.")]


@dataclass(frozen=True, slots=True)
class GroupConfigs:
    """A group's effective configuration: every name with a value, the group's own ones marked in `own`."""

    group_id: str
    values: Mapping[str, Value]
    own: frozenset[str] = frozenset()
    service: ServiceConfigs = field(default_factory=ServiceConfigs)

    @classmethod
    def of(cls, group_id: str, stored: Mapping[str, str], service: ServiceConfigs | None = None) -> Self:
        """Return the stored texts over the service's values, clamped to the service's bounds as Kafka clamps them."""
        service = service or ServiceConfigs.load()
        values: dict[str, Value] = {}
        for name, key in GROUP_CONFIGS.items():
            if name in stored:
                values[name] = parse(key, stored[name])
            elif key.service_name:
                values[name] = service.values[key.service_name]
            elif key.default is not None:
                values[name] = key.default
            bounds = service.bounds(name)
            if bounds is not None:
                values[name] = min(max(int(values[name]), bounds[0]), bounds[1])
        return cls(group_id, values, frozenset(stored) & frozenset(values), service)

    @classmethod
    def load(cls, database: Database, group_id: str, service: ServiceConfigs | None = None) -> Self:
        """Load the group's configs as they are now, in one statement.

        A group that does not exist has the service's values.
        """
        rows = database.rows(
            text(
                "select true as own, name, value from sharequeue.stored_configs(:group_id)"
                " union all select false, name, value from sharequeue.stored_service_configs()"
            ),
            group_id=group_id,
        )
        stored, of_service = (
            {str(row["name"]): str(row["value"]) for row in rows if row["own"] is own}
            for own in (True, False)
        )
        return cls.of(group_id, stored, service or ServiceConfigs.of(of_service))

    session_timeout_ms = _Typed("share.session.timeout.ms", int)
    """A member without a heartbeat for this many milliseconds is removed from the group."""
    heartbeat_interval_ms = _Typed("share.heartbeat.interval.ms", int)
    """The time between two heartbeats of a member, in milliseconds."""
    record_lock_duration_ms = _Typed("share.record.lock.duration.ms", int)
    """How long an acquired record stays locked, in milliseconds."""
    delivery_count_limit = _Typed("share.delivery.count.limit", int)
    """Deliveries of a record before it is given up."""
    partition_max_record_locks = _Typed("share.partition.max.record.locks", int)
    """The highest number of records in flight in one share-partition."""
    assignment_interval_ms = _Typed("share.assignment.interval.ms", int)
    """Shortest time between two assignments of the group, in milliseconds."""
    auto_offset_reset = _Typed("share.auto.offset.reset", str)
    """`latest`, `earliest` or `by_duration:…`: where a topic new to the group starts."""
    reset_duration = _Typed("share.auto.offset.reset", reset_duration)
    """How far back `by_duration` reaches; None for the other policies."""
    isolation_level = _Typed("share.isolation.level", str)
    """`read_uncommitted` or `read_committed`."""
    renew_acknowledge_enable = _Typed("share.renew.acknowledge.enable", bool)
    """Whether locks may be renewed."""
    fetch_max_bytes = _Typed("sharequeue.fetch.max.bytes", int)
    """Bytes of keys and values that a round of a batch run leases; 0: no bound."""
    results_max_waiting_records = _Typed("sharequeue.results.max.waiting.records", int)
    """Accepted records waiting for a sink's topic at which a run leases nothing more."""
    retry_keep_enable = _Typed("sharequeue.retry.keep.enable", bool)
    """Whether batch runs keep the raw records that they release in files."""
    order = _Typed("sharequeue.order", str)
    """`none`, or `key`: within a share-partition, the records of a key are accepted in offset order."""
    order_on_dead_letter = _Typed("sharequeue.order.on.dead.letter", str)
    """`continue`, or `hold`: the key of a dead letter waits until the letter is redriven or discarded."""
    order_max_open_keys = _Typed("sharequeue.order.max.open.keys", int)
    """Open keys of a share-partition at which no new records are leased."""

    @property
    def ordered(self) -> bool:
        """Whether the group orders its records by key."""
        return self.order == "key"

    dead_letter_topic = _Typed("errors.deadletterqueue.topic.name", str)
    """The topic of the group's dead letters; empty: there is none."""
    dead_letter_copy_record = _Typed("errors.deadletterqueue.copy.record.enable", bool)
    """Whether a dead letter carries the key and value of its record."""
    dead_letter_drop_enable = _Typed("sharequeue.dead.letter.drop.enable", bool)
    """Whether records whose dead-letter topic cannot be written are dropped (as in Kafka), not held."""
    dead_letter_error_message_enable = _Typed("sharequeue.dead.letter.error.message.enable", bool)
    """Whether dead letters have the messages of exceptions, not only their classes."""


def stored_configs(connection: Connection, group_id: str) -> dict[str, str]:
    """Return the texts that a group has set itself, inside a transaction that is already open."""
    rows = connection.execute(
        text("select name, value from sharequeue.stored_configs(:group_id)"),
        {"group_id": group_id},
    )
    return {str(row.name): str(row.value) for row in rows}
