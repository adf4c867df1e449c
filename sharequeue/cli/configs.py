"""`sharequeue configs`: the configs of groups and of the service."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from sharequeue.cli.failures import raise_first, status_of
from sharequeue.cli.options import (
    GroupsNamed,
    create_group_option,
    groups_option,
    require_group_or_flag,
    settings_options,
)
from sharequeue.cli.output import Output, answers, flag, text
from sharequeue.database import Database
from sharequeue.deadletters.topic import warning_of_alter
from sharequeue.domain.errors import ShareError
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import (
    GroupConfigs,
    ServiceConfigs,
    alter_and_tell,
    validate_group_config,
)
from sharequeue.groups.configs.keys import GROUP_CONFIGS, SERVICE_CONFIGS
from sharequeue.groups.configs.names import unknown_config
from sharequeue.groups.configs.texts import as_text
from sharequeue.groups.group_names import all_group_names, require_group


@click.group()
def configs() -> None:
    """Configs of groups, and of the service: describe, alter."""


@configs.command()
@settings_options
@answers(text("GROUP"), text("NAME"), text("VALUE"), flag("OWN"), text("DEFAULT"), text("MEANING", wide=True))
@groups_option(none=True)
@click.option("--service", is_flag=True, help="The service's configs, as published at its start.")
@click.option("--all", "everything", is_flag=True, help="Also configs that are not set.")
@click.option("--name", "names", multiple=True, help="Only this config; may be repeated.")
def describe(
    settings: Settings,
    output: Output,
    named: GroupsNamed,
    service: bool,
    everything: bool,
    names: Sequence[str],
) -> None:
    """Show the configs that groups have set, or with --all everything that applies to them."""
    if service == bool(named.names or named.every):
        raise click.UsageError("Give --group, --all-groups or --service.")
    for name in names:
        if name not in (known := SERVICE_CONFIGS if service else GROUP_CONFIGS):
            raise unknown_config(name, known)
    rows: list[dict[str, Any]] = []
    with Database.open(settings) as database:
        published = ServiceConfigs.stored(database)
        if service:
            for name, key in SERVICE_CONFIGS.items():
                value = published.values[name]
                row = {"name": name, "value": as_text(value), "own": value != key.default, "meaning": key.doc}
                rows.append({**row, "default": None if key.default is None else as_text(key.default)})
        for group, found in [] if service else _loaded(database, named, published, require_group):
            for name, value in found.values.items():
                key = GROUP_CONFIGS[name]
                default = published.values[key.service_name] if key.service_name else key.default
                row = {"group": group, "name": name, "value": as_text(value), "own": name in found.own}
                rows.append(
                    {**row, "default": None if default is None else as_text(default), "meaning": key.doc}
                )
    output.rows(row for row in rows if (row["name"] in names if names else everything or row["own"]))


@configs.command()
@settings_options
@answers(text("GROUP"), text("NAME"), text("OLD"), text("NEW"), text("STATUS"))
@groups_option()
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="Set a config; may be repeated.")
@click.option("--unset", multiple=True, metavar="NAME", help="Return to the default; may be repeated.")
@create_group_option
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
def alter(
    settings: Settings,
    output: Output,
    named: GroupsNamed,
    given: Sequence[str],
    unset: Sequence[str],
    create_group: bool,
    dry_run: bool,
) -> None:
    """Set configs of groups, at once. For each group all given configs are set or, after an error, none.

    The service's configs are environment variables of the service.
    """
    changes: dict[str, str | int | bool | None] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise click.BadParameter(f"{each!r}: expected NAME=VALUE", param_hint="--set")
        _once(name.strip(), changes)
        changes[name.strip()] = value.strip()
    for name in unset:
        _once(name, changes)
        changes[name] = None
    if not changes:
        raise click.UsageError("Nothing to change: give --set NAME=VALUE, or --unset NAME.")
    rows: list[dict[str, Any]] = []
    errors: list[ShareError] = []
    with Database.open(settings) as database:
        published = ServiceConfigs.stored(database)
        refuse = None if create_group else require_group_or_flag
        for name, text_given in changes.items():
            if name not in GROUP_CONFIGS:
                raise unknown_config(name, GROUP_CONFIGS)
            if text_given is not None:
                validate_group_config(name, str(text_given), published)
        for group, before in _loaded(database, named, published, refuse):
            after, status = before, "dry run" if dry_run else "done"
            try:
                after, warning = alter_and_tell(database, group, changes, dry_run=dry_run)
                if warning is not None:
                    output.warn(warning)
                if (held := warning_of_alter(settings, database, after, changes)) is not None:
                    output.warn(held)
            except ShareError as error:
                errors.append(error)
                status = status_of(error)
            for name in changes:
                row = {"group": group, "name": name, "old": as_text(before.values[name])}
                rows.append({**row, "new": as_text(after.values[name]), "status": status})
    output.rows(rows)
    raise_first(errors)


def _once(name: str, changes: Mapping[str, object]) -> None:
    if name in changes:
        raise click.UsageError(f"{name} is given more than once: give one value.")


def _loaded(
    database: Database,
    named: GroupsNamed,
    published: ServiceConfigs,
    refuse: Callable[[Database, str], None] | None,
) -> list[tuple[str, GroupConfigs]]:
    """Return the configs of the named groups.

    A group that does not exist is refused, unless it was deleted: its configs are kept.
    """
    known = set(all_group_names(database))
    found = []
    for group in named.of(database, missing=True):
        configs = GroupConfigs.load(database, group, published)
        if refuse is not None and group not in known and not configs.own:
            refuse(database, group)
        found.append((group, configs))
    return found


COMMANDS = (configs,)
