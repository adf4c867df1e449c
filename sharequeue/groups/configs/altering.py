"""Alter a group's configs.

Everything is checked first, then all is stored or nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from sqlalchemy import Connection, text

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidConfig, InvalidGroupId
from sharequeue.groups.configs.keys import GROUP_CONFIGS, Value
from sharequeue.groups.configs.names import environment_name, known_key
from sharequeue.groups.configs.texts import as_text, parse
from sharequeue.groups.configs.values import GroupConfigs, ServiceConfigs, stored_configs


def validate_group_config(name: str, value: str, service: ServiceConfigs | None = None) -> Value:
    """Return the value that a group's config would have, checked for type, range and the service's bounds.

    Raises `InvalidConfig` with what was wrong, what is expected and what to do; for an old name it has the present
    one; for a name that only a broker has, it explains that it has no meaning here.
    """
    key = known_key(name, GROUP_CONFIGS)
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
    """Set a group's configs, or remove them with None: all of them or, on an error, none.

    The group is created if it does not exist, so that it can be configured before its first member. Changes apply
    from the next operation on. One exception: the start of a topic that the group already has does not change; then a
    warning explains how to start again. No broker is asked: unlike `sharequeue configs alter`, this does not warn of
    a dead-letter topic that accepts no letters (`sharequeue.deadletters.topic.why_held`). Raises `InvalidConfig`,
    `InvalidGroupId`. (Kafka's IncrementalAlterConfigs on a GROUP resource.)
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
    """As `alter_group_configs`, but return the warning, for programs with several threads.

    With `dry_run` everything is checked, nothing is changed, and the result is what would apply.
    """
    if not group_id:
        raise InvalidGroupId()
    service = service or ServiceConfigs.stored(database)
    checked: dict[str, str | None] = {}
    for name, value in changes.items():
        known_key(name, GROUP_CONFIGS)
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
        f"group {group_id} has already started: `{_RESET}` only applies to topics that are new to it. To "
        f"start again: sharequeue offsets reset --group {group_id} --all-topics --to-earliest (or "
        "--to-latest) --execute"
    )
    return configs, warning if late else None


def _began(connection: Connection, group_id: str, reset: str) -> bool:
    """Return whether a change of the group's start comes too late for a topic that it already has."""
    if stored_configs(connection, group_id).get(_RESET, GROUP_CONFIGS[_RESET].default) == reset:
        return False
    rows = connection.execute(
        text("select 1 from sharequeue.share_partitions where group_id = :group_id limit 1"),
        {"group_id": group_id},
    )
    return rows.first() is not None


def _make_and_lock(connection: Connection, group_id: str) -> None:
    """Lock the group, made if needed: two changes that are each allowed may not be allowed together."""
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
