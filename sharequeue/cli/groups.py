"""`sharequeue groups`: list share groups, their progress, and pause, resume or delete them.

The columns are those of Kafka's `kafka-share-groups.sh --describe`, followed by ours.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from sharequeue.cli.describing import describe
from sharequeue.cli.failures import raise_first, status_of, warn_of_letters
from sharequeue.cli.options import (
    GroupsNamed,
    execute_option,
    groups_option,
    parse_topics,
    settings_options,
    topic_option,
)
from sharequeue.cli.output import Output, answers, moment, number, text
from sharequeue.database import Database
from sharequeue.domain.errors import GroupIdNotFound, NonEmptyGroup, ShareError
from sharequeue.domain.settings import Settings
from sharequeue.groups.group_names import listed_groups
from sharequeue.state import State


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
    with Database.open(settings) as database:
        found, now = listed_groups(database), State(database).now()
    output.rows((row for row in found if not states or row["state"] in states), now=now)


@groups.command()
@settings_options
@answers(text("GROUP"), text("TOPIC"), number("PARTITION"), text("STATUS"))
@groups_option()
@topic_option
@click.option("--reason", required=True, help="The reason, which `describe` shows.")
def pause(settings: Settings, output: Output, named: GroupsNamed, topics: Sequence[str], reason: str) -> None:
    """Stop leasing from groups, or some of their share-partitions; leased records may still be acknowledged."""
    _pause(settings, output, named, topics, reason)


@groups.command()
@settings_options
@answers(text("GROUP"), text("TOPIC"), number("PARTITION"), text("STATUS"))
@groups_option()
@topic_option
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
    with Database.open(settings) as database:
        state = State(database)
        members = {row["group"]: row["members"] for row in listed_groups(database)}
        rows = []
        for group in named.of(database, missing=True):
            warn_of_letters(state.figures.describe(group))
            status = "Successful" if execute else output.planned
            try:
                if group not in members:
                    raise GroupIdNotFound(
                        "The share group does not exist: `sharequeue groups list` lists all."
                    )
                if members[group]:
                    raise NonEmptyGroup(
                        f"It has {members[group]} members: stop them, or wait until their sessions expire."
                    )
                if execute:
                    state.administration.delete_group(group)
            except ShareError as error:
                status = status_of(error)
            rows.append({"group": group, "status": status})
    output.rows(rows)
    if any(row["status"].startswith("Error") for row in rows):
        raise click.exceptions.Exit(1)


groups.add_command(describe)

COMMANDS = (groups,)
