"""`sharequeue groups`: list share groups, their progress, and pause, resume or delete them.

The columns are those of Kafka's `kafka-share-groups.sh --describe`, followed by ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from sharequeue.cli.describing import describe
from sharequeue.cli.failures import raise_first, status_of, warn_of_letters
from sharequeue.cli.options import (
    GroupsNamed,
    execute_option,
    groups_option,
    parse_topics,
    settings_options,
)
from sharequeue.cli.output import Output, answers, moment, number, text
from sharequeue.cli.over_http import service_of
from sharequeue.database import Database
from sharequeue.groups.group_names import group_names, listed_groups
from sharequeue.state import State
from sharequeue.words.errors import GroupIdNotFound, NonEmptyGroup, ShareError
from sharequeue.words.settings import Settings

_topic_option = click.option(
    "--topic", "topics", multiple=True, help="Only this topic, or topic:0,1; may be repeated."
)


def _states(context: click.Context, parameter: click.Parameter, given: Sequence[str]) -> list[str]:
    found = [name.strip().capitalize() for each in given for name in each.split(",")]
    if wrong := set(found) - {"Empty", "Stable", "Dead"}:
        raise click.BadParameter(f"{', '.join(sorted(wrong))}: expected Empty, Stable or Dead")
    return found


@click.group()
def groups() -> None:
    """Share groups: list, describe, pause, resume, delete."""


@groups.command("list")
@settings_options
@answers(text("GROUP"), text("STATE"), number("MEMBERS"), moment("CREATED-AT", wide=True))
@click.option(
    "--state",
    "states",
    multiple=True,
    callback=_states,
    help=(
        "Only groups in this state: Empty, Stable or Dead (which matches no group), comma-separated; may be "
        "repeated."
    ),
)
def list_groups(settings: Settings, output: Output, states: Sequence[str]) -> None:
    """List the share groups with their state and number of members."""
    now: datetime | None = None
    if (service := service_of(settings)) is not None:
        with service:
            found = service.groups()
    else:
        with Database.open(settings) as database:
            found = listed_groups(database)
            now = State(database).now()
    output.rows((row for row in found if not states or row["state"] in states), now=now)


@groups.command()
@settings_options
@answers(text("GROUP"), text("TOPIC"), number("PARTITION"), text("STATUS"))
@groups_option()
@_topic_option
@click.option("--reason", required=True, help="The reason, which `describe` shows.")
def pause(settings: Settings, output: Output, named: GroupsNamed, topics: Sequence[str], reason: str) -> None:
    """Stop leasing from groups, or some of their share-partitions; leased records may still be acknowledged."""
    _pause(settings, output, named, topics, reason)


@groups.command()
@settings_options
@answers(text("GROUP"), text("TOPIC"), number("PARTITION"), text("STATUS"))
@groups_option()
@_topic_option
def resume(settings: Settings, output: Output, named: GroupsNamed, topics: Sequence[str]) -> None:
    """Lease again, after a pause or after the circuit breaker has stopped it.

    Without --topic, share-partitions that were paused with --topic are resumed too.
    """
    _pause(settings, output, named, topics, None)


def _pause(
    settings: Settings, output: Output, named: GroupsNamed, topics: Sequence[str], reason: str | None
) -> None:
    chosen: list[tuple[str | None, int | None]] = [
        (topic, partition)
        for topic, partitions in parse_topics(topics).items()
        for partition in ((None,) if partitions is None else partitions)
    ]
    rows: list[dict[str, object]] = []
    errors: list[ShareError] = []
    with Database.open(settings) as database:
        state = State(database)

        def act(group: str, topic: str | None, partition: int | None) -> None:
            status = "resumed" if reason is None else "paused"
            try:
                state.administration.pause(group, reason, topic, partition)
            except ShareError as error:
                errors.append(error)
                status = status_of(error)
            rows.append({"group": group, "topic": topic, "partition": partition, "status": status})

        for group in named.of(database):
            for topic, partition in chosen or [(None, None)]:
                act(group, topic, partition)
            if reason is None and not chosen and rows[-1]["status"] == "resumed":
                # Share-partitions that are still paused were paused individually.
                for each in state.figures.describe(group):
                    if each.paused_reason is not None:
                        act(group, each.topic, each.partition)
    output.rows(rows)
    raise_first(errors)


@groups.command()
@settings_options
@answers(text("GROUP"), text("STATUS"))
@groups_option()
@execute_option
def delete(settings: Settings, output: Output, named: GroupsNamed, execute: bool) -> None:
    """Delete groups with all their state except configs and ACLs; refused while a group has members."""
    if (service := service_of(settings)) is not None:
        with service:
            rows = _delete(service.groups(), named, service.delete_group if execute else None, output.planned)
    else:
        with Database.open(settings) as database:
            state = State(database)
            act = state.administration.delete_group
            for group in set(named.among(lambda: group_names(database), missing=True)):
                warn_of_letters(state.figures.describe(group))
            known = listed_groups(database)
            rows = _delete(known, named, act if execute else None, output.planned)
    output.rows(rows)
    if any(row["status"].startswith("Error") for row in rows):
        raise click.exceptions.Exit(1)


def _delete(
    known: Sequence[Mapping[str, Any]],
    named: GroupsNamed,
    act: Callable[[str], object] | None,
    planned: str,
) -> list[dict[str, str]]:
    """Delete groups, or only show what would be deleted; return the result for each."""
    members = {row["group"]: row["members"] for row in known}
    rows = []
    for group in named.among(lambda: list(members), missing=True):
        status = planned if act is None else "Successful"
        if group not in members:
            status = f"Error: {GroupIdNotFound.name}: There is no such share group."
        elif members[group]:
            status = f"Error: {NonEmptyGroup.name}: It has {members[group]} members."
        elif act is not None:
            try:
                act(group)
            except ShareError as error:
                status = f"Error: {error.name}: {error}"
        rows.append({"group": group, "status": status})
    return rows


groups.add_command(describe)

COMMANDS = (groups,)
