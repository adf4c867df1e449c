"""`sharequeue share-group-configs`: Kafka's `kafka-configs.sh --entity-type groups`, for groups of this database."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from sharequeue.cli.kafka.tools import KafkaCommand, java_name, properties, usage, with_command_config
from sharequeue.cli.options import settings_options
from sharequeue.cli.output import Output, answers, flag, text
from sharequeue.database import Database
from sharequeue.groups.configs import GroupConfigs, ServiceConfigs, alter_and_tell
from sharequeue.groups.configs.keys import GROUP_CONFIGS, SERVICE_CONFIGS
from sharequeue.groups.configs.texts import as_text
from sharequeue.groups.group_names import group_names
from sharequeue.words.errors import InvalidConfig, ShareError
from sharequeue.words.settings import Settings

_PAIR = re.compile(r"\s*([^=,\[\]\s]+)=(\[[^\]]*\]|[^,]*)\s*(?:,|$)")


@click.command("share-group-configs", cls=KafkaCommand)
@settings_options
@answers(text("GROUP"), text("NAME"), text("VALUE"), flag("OWN"), text("SYNONYMS"), text("STATUS"))
@click.option("--entity-type", help="groups, the only supported one.")
@click.option("--entity-name", help="The share group.")
@click.option("--group", help="The same as --entity-type groups --entity-name.")
@click.option("--describe", is_flag=True, help="Show what is set.")
@click.option("--all", "everything", is_flag=True, help="Also show values that are not set.")
@click.option("--alter", is_flag=True, help="Change configs, at once.")
@click.option("--add-config", help="name=value,…; put a value with commas into square brackets.")
@click.option("--add-config-file", type=click.Path(path_type=Path, exists=True), help="Lines of name=value.")
@click.option("--delete-config", help="name,…")
@click.option(
    "--command-config", type=click.Path(path_type=Path), help="Properties of a Kafka client; checked."
)
@click.version_option(package_name="sharequeue")
@click.pass_context
def share_group_configs(
    context: click.Context,
    /,
    settings: Settings,
    output: Output,
    entity_type: str | None,
    entity_name: str | None,
    group: str | None,
    describe: bool,
    everything: bool,
    alter: bool,
    add_config: str | None,
    add_config_file: Path | None,
    delete_config: str | None,
    command_config: Path | None,
) -> None:
    """Kafka's `kafka-configs.sh --entity-type groups`: describe and alter the configs of share groups."""
    if describe == alter:
        usage(context, "Command must include exactly one action: --describe, --alter")
    if group is None and entity_type != "groups":
        usage(
            context,
            "Only --entity-type groups is known here: the configs of topics and brokers are the broker's.",
        )
    settings = with_command_config(settings, command_config, output.warn)
    name = group or entity_name
    with Database.open(settings) as database:
        if describe:
            known = group_names(database) if name is None else [name]
            _describe(database, output, known, everything=everything)
            return
        if add_config is None and add_config_file is None and delete_config is None:
            usage(
                context,
                "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter",
            )
        if name is None:
            usage(context, "An entity name must be specified with --alter of groups")
        try:
            changes: dict[str, str | int | bool | None] = {}
            if add_config_file is not None:
                changes |= properties(add_config_file)
            changes |= _pairs(add_config or "")
            changes |= dict.fromkeys(
                each.strip() for each in (delete_config or "").split(",") if each.strip()
            )
            _, warning = alter_and_tell(database, name, changes)
            if warning is not None:
                output.warn(warning)
        except ShareError as error:
            click.echo(f"Error while executing config command\n{java_name(error)}: {error}", err=True)
            raise click.exceptions.Exit(1) from error
    output.note(f"Completed updating config for group {name}.")
    if not output.text:
        output.rows(
            {"group": name, "name": key, "value": value, "status": "done"} for key, value in changes.items()
        )


def _pairs(given: str) -> dict[str, str | int | bool | None]:
    """Return names and values of `--add-config`. Raises InvalidConfig if it is not a list of such pairs."""
    found: dict[str, str | int | bool | None] = {}
    at = 0
    while at < len(given):
        pair = _PAIR.match(given, at)
        if pair is None:
            raise InvalidConfig(f"{given!r} is not a list of name=value,name=[value,value].")
        found[pair.group(1)] = pair.group(2).removeprefix("[").removesuffix("]").strip()
        at = pair.end()
    return found


def _describe(database: Database, output: Output, groups: list[str], *, everything: bool) -> None:
    service = ServiceConfigs.stored(database)
    known = set(group_names(database))
    rows: list[dict[str, Any]] = []
    for group in groups:
        configs = GroupConfigs.load(database, group, service)
        names = sorted(configs.values if everything else configs.own)
        if not names and group not in known:
            output.note(f"The group '{group}' doesn't exist and doesn't have dynamic config.")
            continue
        output.note(f"{'All' if everything else 'Dynamic'} configs for group {group} are:")
        for name in names:
            value = as_text(configs.values[name])
            synonyms = _synonyms(name, value, own=name in configs.own, service=service.values)
            output.note(f"  {name}={value} sensitive=false synonyms={{{synonyms}}}")
            rows.append(
                {
                    "group": group,
                    "name": name,
                    "value": value,
                    "own": name in configs.own,
                    "synonyms": synonyms,
                }
            )
    if not output.text:
        output.rows(rows)


def _synonyms(name: str, value: str, *, own: bool, service: Mapping[str, Any]) -> str:
    """Return the sources of a value, the strongest first, as Kafka's tool lists them."""
    key = GROUP_CONFIGS[name]
    found = [f"DYNAMIC_GROUP_CONFIG:{name}={value}"] if own else []
    if key.service_name is not None:
        default = SERVICE_CONFIGS[key.service_name].default
        if service[key.service_name] != default:
            found.append(f"STATIC_BROKER_CONFIG:{key.service_name}={as_text(service[key.service_name])}")
        found.append(f"DEFAULT_CONFIG:{key.service_name}={as_text(default) if default is not None else ''}")
    elif key.default is not None:
        found.append(f"DEFAULT_CONFIG:{name}={as_text(key.default)}")
    return ", ".join(found)


COMMANDS = (share_group_configs,)
