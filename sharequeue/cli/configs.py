"""`sharequeue configs`: what groups, and the service, are configured to do."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import click

from sharequeue.cli.options import GroupsNamed, groups_option, settings_options
from sharequeue.cli.output import Output, answers, flag, text
from sharequeue.database import Database
from sharequeue.groups.config_keys import GROUP_CONFIGS, SERVICE_CONFIGS, as_text, unknown_config
from sharequeue.groups.configs import (
    GroupConfigs,
    ServiceConfigs,
    alter_group_configs,
    validate_group_config,
)
from sharequeue.settings import Settings


@click.group()
def configs() -> None:
    """Configs of groups, and of the service: describe, alter."""


@configs.command()
@settings_options
@answers(text("GROUP"), text("NAME"), text("VALUE"), flag("OWN"), text("DEFAULT"), text("MEANING", wide=True))
@groups_option(none=True)
@click.option("--service", is_flag=True, help="The service's configs, as it published them when it started.")
@click.option("--all", "everything", is_flag=True, help="Also what is not set.")
@click.option("--name", "names", multiple=True, help="Only this config; may be repeated.")
def describe(
    settings: Settings,
    output: Output,
    named: GroupsNamed,
    service: bool,
    everything: bool,
    names: Sequence[str],
) -> None:
    """Show what groups have set themselves, or all that counts for them with --all."""
    if service == bool(named.names or named.every):
        raise click.UsageError("Name a group with --group, take --all-groups, or take --service.")
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
        for group in [] if service else named.of(database, missing=True):
            found = GroupConfigs.load(database, group, published)
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
@click.option("--unset", multiple=True, metavar="NAME", help="Take the default again; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
def alter(
    settings: Settings,
    output: Output,
    named: GroupsNamed,
    given: Sequence[str],
    unset: Sequence[str],
    dry_run: bool,
) -> None:
    """Set configs of groups, at once: all that is named or, on a mistake, nothing.

    The service's configs are environment variables where it runs.
    """
    changes: dict[str, str | int | bool | None] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise click.BadParameter(f"{each!r}: expected NAME=VALUE", param_hint="--set")
        changes[name.strip()] = value.strip()
    changes |= dict.fromkeys(unset)
    if not changes:
        raise click.UsageError("Name what is to change: --set NAME=VALUE, or --unset NAME.")
    rows: list[dict[str, Any]] = []
    with Database.open(settings) as database:
        published = ServiceConfigs.stored(database)
        for name, text_given in changes.items():
            if name not in GROUP_CONFIGS:
                raise unknown_config(name, GROUP_CONFIGS)
            if text_given is not None:
                validate_group_config(name, str(text_given), published)
        for group in named.of(database, missing=True):
            before = after = GroupConfigs.load(database, group, published)
            if not dry_run:
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    after = alter_group_configs(database, group, changes)
                for warning in said:
                    output.warn(str(warning.message))
            for name, text_given in changes.items():
                new = text_given if dry_run else as_text(after.values[name])
                row = {"group": group, "name": name, "old": as_text(before.values[name]), "new": new}
                rows.append({**row, "status": "dry run" if dry_run else "done"})
    output.rows(rows)


COMMANDS = (configs,)
