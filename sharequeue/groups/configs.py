"""What is a group configured to do?

The effective configuration of a group: its own values, kept in Postgres (`group_configs`), else the
service's, kept inside the service's bounds also where those moved after the value was set (Kafka's
`GroupConfigManager`). The names, types and messages are `groups.config_keys`'; this module reads, joins and writes
them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self

from sqlalchemy import Connection, text

from sharequeue.database import Database
from sharequeue.errors import InvalidConfig, InvalidGroupId
from sharequeue.groups.config_keys import (
    GROUP_CONFIGS,
    SERVICE_CONFIGS,
    ConfigKey,
    Value,
    as_text,
    environment_name,
    parse,
    reset_duration,
    unknown_config,
)

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


@dataclass(frozen=True, slots=True)
class ServiceConfigs:
    """The broker-level half of the configuration, `group.share.*`: what Kafka keeps in the broker's
    properties."""

    values: Mapping[str, Value] = field(
        default_factory=lambda: {
            n: key.default for n, key in SERVICE_CONFIGS.items() if key.default is not None
        }
    )

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Self:
        """From `SHAREQUEUE_GROUP_SHARE_…` and `SHAREQUEUE_ERRORS_DEADLETTERQUEUE_…`, else Kafka's defaults.

        Raises `InvalidConfig` for a value of the wrong type, out of its range, or out of its own min and max.
        """
        environ = os.environ if environ is None else environ
        named: dict[str, str] = {}
        for name, key in SERVICE_CONFIGS.items():
            given = environ.get(environment_name(name))
            # A variable that is set but empty means a value only where a text may be empty.
            if given is not None and (given or key.kind == "text"):
                named[name] = given
        return cls.of(named)

    @classmethod
    def stored(cls, database: Database) -> Self:
        """What the service was configured to when it last started, as every process finds it in the database.

        Kafka's defaults where no service has been.
        """
        rows = database.rows(text("select name, value from sharequeue.stored_service_configs()"))
        return cls.of({str(row["name"]): str(row["value"]) for row in rows})

    @classmethod
    def of(cls, changes: Mapping[str, str]) -> Self:
        """Kafka's defaults with `changes` (Kafka's names) on top. Raises `InvalidConfig`."""
        values = dict(cls().values)
        for name, given in changes.items():
            values[name] = parse(_key(name, SERVICE_CONFIGS), given)
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

    @property
    def max_size(self) -> int:
        """Members that a group may have (`group.share.max.size`)."""
        return _int(self.values, "group.share.max.size")

    @property
    def initialize_retry_ms(self) -> int:
        """How long a topic that has no offset to start from waits before it is tried again, in milliseconds."""
        return _int(self.values, "group.share.initialize.retry.interval.ms")

    @property
    def updates_per_snapshot(self) -> int:
        """Changes of a share-partition between two snapshots of its journal."""
        return _int(self.values, "share.coordinator.snapshot.update.records.per.snapshot")

    @property
    def journal_retention(self) -> timedelta:
        """How long the journal is kept."""
        return timedelta(minutes=_int(self.values, "journal.retention.minutes"))

    @property
    def deleted_topics_retention(self) -> timedelta:
        """How long a topic must have been gone from the broker before its state is removed."""
        return timedelta(milliseconds=_int(self.values, "deleted.topics.retention.ms"))

    @property
    def dead_letter_auto_create(self) -> bool:
        """Whether a missing dead-letter topic is created."""
        return bool(self.values["errors.deadletterqueue.auto.create.topics.enable"])

    @property
    def dead_letter_prefix(self) -> str:
        """What a dead-letter topic's name must begin with; empty: anything."""
        return str(self.values["errors.deadletterqueue.topic.name.prefix"])

    def bounds(self, group_config: str) -> tuple[int, int] | None:
        """The least and greatest value that a group may give a config; None where the service sets none."""
        stem = group_config.removeprefix("share.")
        if stem not in _BOUNDED:
            return None
        return _int(self.values, f"group.share.min.{stem}"), _int(self.values, f"group.share.max.{stem}")

    def bounded(self, stem: str) -> list[int]:
        """Return least, the service's value and most of a config that has bounds, as the SQL functions take them."""
        return [_int(self.values, f"group.share.{bound}{stem}") for bound in ("min.", "", "max.")]


@dataclass(frozen=True, slots=True)
class GroupConfigs:
    """A group's effective configuration: every name with a value, the group's own ones marked in `own`."""

    group_id: str
    values: Mapping[str, Value]
    own: frozenset[str] = frozenset()

    @classmethod
    def of(cls, group_id: str, stored: Mapping[str, str], service: ServiceConfigs | None = None) -> Self:
        """The stored texts over the service's values, clamped to the service's bounds as Kafka clamps
        them."""
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
        return cls(group_id, values, frozenset(stored) & frozenset(values))

    @classmethod
    def load(cls, database: Database, group_id: str, service: ServiceConfigs | None = None) -> Self:
        """What the group is configured to do now. A group that does not exist has the service's values."""
        with database.transaction() as connection:
            stored = stored_configs(connection, group_id)
        return cls.of(group_id, stored, service or ServiceConfigs.stored(database))

    @property
    def session_timeout_ms(self) -> int:
        """A member not heard of for so many milliseconds is out of the group."""
        return _int(self.values, "share.session.timeout.ms")

    @property
    def heartbeat_interval_ms(self) -> int:
        """The time between two heartbeats of a member, in milliseconds."""
        return _int(self.values, "share.heartbeat.interval.ms")

    @property
    def record_lock_duration_ms(self) -> int:
        """How long an acquired record stays locked, in milliseconds."""
        return _int(self.values, "share.record.lock.duration.ms")

    @property
    def delivery_count_limit(self) -> int:
        """Deliveries of a record before it is given up."""
        return _int(self.values, "share.delivery.count.limit")

    @property
    def partition_max_record_locks(self) -> int:
        """Records in flight in one share-partition at most."""
        return _int(self.values, "share.partition.max.record.locks")

    @property
    def assignment_interval_ms(self) -> int:
        """Least time between two assignments of the group, in milliseconds."""
        return _int(self.values, "share.assignment.interval.ms")

    @property
    def auto_offset_reset(self) -> str:
        """`latest`, `earliest` or `by_duration:…`: where a topic new to the group starts."""
        return str(self.values["share.auto.offset.reset"])

    @property
    def reset_duration(self) -> timedelta | None:
        """How far back `by_duration` reaches; None for the other policies."""
        return reset_duration(self.auto_offset_reset)

    @property
    def isolation_level(self) -> str:
        """`read_uncommitted` or `read_committed`."""
        return str(self.values["share.isolation.level"])

    @property
    def renew_acknowledge_enable(self) -> bool:
        """Whether locks may be renewed."""
        return bool(self.values["share.renew.acknowledge.enable"])

    @property
    def fetch_max_bytes(self) -> int:
        """Bytes of keys and values that a round of a batch run leases; 0: no bound."""
        return _int(self.values, "sharequeue.fetch.max.bytes")

    @property
    def retry_backoff_ms(self) -> int:
        """How long a record waits that a pipeline has released after its first delivery, in milliseconds."""
        return _int(self.values, "sharequeue.retry.backoff.ms")

    @property
    def retry_backoff_max_ms(self) -> int:
        """How long it waits at most, however often it was delivered, in milliseconds."""
        return _int(self.values, "sharequeue.retry.backoff.max.ms")

    @property
    def dead_letter_topic(self) -> str:
        """The topic of the group's dead letters; empty: there is none."""
        return str(self.values["errors.deadletterqueue.topic.name"])

    @property
    def dead_letter_copy_record(self) -> bool:
        """Whether a dead letter carries the key and value of its record."""
        return bool(self.values["errors.deadletterqueue.copy.record.enable"])

    @property
    def dead_letter_drop_enable(self) -> bool:
        """Whether records whose dead-letter topic cannot be written are dropped (as in Kafka), not held."""
        return bool(self.values["sharequeue.dead.letter.drop.enable"])


def _key(name: str, known: Mapping[str, ConfigKey]) -> ConfigKey:
    key = known.get(name)
    if key is None:
        raise unknown_config(name, known)
    return key


def validate_group_config(name: str, value: str, service: ServiceConfigs | None = None) -> Value:
    """The value that a group's config would have, checked for type, range and the service's bounds.

    Raises `InvalidConfig` with what was wrong, what is expected and what to do; for an old name
    it has the present one, and for a name that only a broker has, that it has no meaning here (kafka-semantics 2.19).
    """
    key = _key(name, GROUP_CONFIGS)
    parsed = parse(key, value)
    bounds = (service or ServiceConfigs.load()).bounds(name)
    if bounds is not None and not bounds[0] <= int(parsed) <= bounds[1]:
        stem = name.removeprefix("share.")
        raise InvalidConfig(
            f"`{name}` is {parsed}, but the service allows {bounds[0]} to {bounds[1]}: choose such a value, "
            f"or move the bounds with {environment_name(f'group.share.min.{stem}')} and "
            f"{environment_name(f'group.share.max.{stem}')}."
        )
    return parsed


_RESET = "share.auto.offset.reset"


def alter_group_configs(
    database: Database,
    group_id: str,
    changes: Mapping[str, str | int | bool | None],
    service: ServiceConfigs | None = None,
) -> GroupConfigs:
    """Set a group's configs, or with None remove them again; all of them or, on a mistake, none.

    The group is made if there is none yet, so that it can be configured before its first member. What is
    altered holds from the next operation on, but for where a topic begins that the group has already: then a warning
    says how to begin anew. Raises `InvalidConfig`, `InvalidGroupId`. (Kafka's
    IncrementalAlterConfigs on a GROUP resource.)
    """
    configs, warning = alter_and_tell(database, group_id, changes, service)
    if warning is not None:
        warnings.warn(warning, stacklevel=2)
    return configs


def alter_and_tell(
    database: Database,
    group_id: str,
    changes: Mapping[str, str | int | bool | None],
    service: ServiceConfigs | None = None,
    *,
    dry_run: bool = False,
) -> tuple[GroupConfigs, str | None]:
    """As `alter_group_configs`; what that warns of is returned, for programs with several threads.

    With `dry_run` all is checked, nothing is changed, and the result is what would count.
    """
    if not group_id:
        raise InvalidGroupId()
    service = service or ServiceConfigs.stored(database)
    checked: dict[str, str | None] = {}
    for name, value in changes.items():
        _key(name, GROUP_CONFIGS)
        checked[name] = (
            None if value is None else as_text(validate_group_config(name, as_text(value), service))
        )
    late = False
    with database.transaction() as connection:
        if not dry_run:
            _make_and_lock(connection, group_id)
        together: dict[str, str | None] = {**stored_configs(connection, group_id), **checked}
        merged = {name: value for name, value in together.items() if value is not None}
        configs = GroupConfigs.of(group_id, merged, service)
        if configs.session_timeout_ms <= configs.heartbeat_interval_ms:
            raise InvalidConfig(
                f"`share.session.timeout.ms` would be {configs.session_timeout_ms} and "
                f"`share.heartbeat.interval.ms` {configs.heartbeat_interval_ms}: "
                "the session must be longer than the heartbeat interval."
            )
        for name, stored_value in checked.items():
            late |= name == _RESET and stored_value is not None and _began(connection, group_id, stored_value)
            if not dry_run:
                _store(connection, group_id, name, stored_value)
    warning = (
        f"group {group_id} has begun already: `{_RESET}` counts for topics that are new to it. To begin anew: "
        f"sharequeue offsets reset --group {group_id} --all-topics --to-earliest (or --to-latest) --execute"
    )
    return configs, warning if late else None


def _began(connection: Connection, group_id: str, reset: str) -> bool:
    """Whether a change of where the group begins comes too late for a topic that it has."""
    if stored_configs(connection, group_id).get(_RESET, GROUP_CONFIGS[_RESET].default) == reset:
        return False
    rows = connection.execute(
        text("select 1 from sharequeue.share_partitions where group_id = :group_id limit 1"),
        {"group_id": group_id},
    )
    return rows.first() is not None


def stored_configs(connection: Connection, group_id: str) -> dict[str, str]:
    """The texts that a group has set itself, inside a transaction that is already open."""
    rows = connection.execute(
        text("select name, value from sharequeue.stored_configs(:group_id)"),
        {"group_id": group_id},
    )
    return {str(row.name): str(row.value) for row in rows}


def _make_and_lock(connection: Connection, group_id: str) -> None:
    """One change at a time: two that are each allowed may not be together."""
    while True:
        connection.execute(
            text("insert into sharequeue.share_groups (group_id) values (:group_id) on conflict do nothing"),
            {"group_id": group_id},
        )
        there = connection.execute(
            text("select from sharequeue.share_groups where group_id = :group_id for no key update"),
            {"group_id": group_id},
        ).one_or_none()
        if there is not None:  # it may have been deleted in between
            return


def _store(connection: Connection, group_id: str, name: str, value: str | None) -> None:
    if value is None:
        connection.execute(
            text("delete from sharequeue.group_configs where group_id = :group_id and name = :name"),
            {"group_id": group_id, "name": name},
        )
        return
    connection.execute(
        text(
            "insert into sharequeue.group_configs (group_id, name, value) values (:group_id, :name, :value)"
            " on conflict (group_id, name) do update set value = excluded.value"
        ),
        {"group_id": group_id, "name": name, "value": value},
    )
