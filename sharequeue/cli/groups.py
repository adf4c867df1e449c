"""`sharequeue groups`: which share groups there are, how far each has come, and whether they may go on.

Columns are those of Kafka's `kafka-share-groups.sh --describe`, ours after them.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
import sqlalchemy as sa

from sharequeue.cli.options import (
    GroupsNamed,
    execute_option,
    groups_option,
    parse_topics,
    settings_options,
)
from sharequeue.cli.output import Output, answers, moment, number, text
from sharequeue.database import Database
from sharequeue.errors import GroupIdNotFound, NonEmptyGroup
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.values import SharePartitionStatus

_LIST = sa.text('select group_id as "group", state, members from sharequeue.group_list order by group_id')
_NAME = ("GROUP", "TOPIC", "PARTITION")
_topic_option = click.option(
    "--topic", "topics", multiple=True, help="Only this topic, or topic:0,1; may be repeated."
)


@click.group()
def groups() -> None:
    """Share groups: list, describe, pause, resume, delete."""


@groups.command("list")
@settings_options
@answers(text("GROUP"), text("STATE"), number("MEMBERS"))
def list_groups(settings: Settings, output: Output) -> None:
    """List the share groups with their state and number of members."""
    with Database.open(settings) as database:
        output.rows(dict(row) for row in database.rows(_LIST))


@groups.command()
@settings_options
@answers(
    text("GROUP"),
    text("TOPIC"),
    number("PARTITION"),
    number("START-OFFSET"),
    number("LAG"),
    number("END-OFFSET", wide=True),
    number("ACQUIRED"),
    number("AVAILABLE"),
    number("WAITING"),
    moment("WAITING-UNTIL", wide=True),
    number("ARCHIVING"),
    moment("NEXT-EXPIRY", wide=True),
    number("OLDEST-OFFSET", wide=True),
    moment("OLDEST-SINCE", wide=True),
    number("ACCEPTED"),
    number("REJECTED"),
    number("EXHAUSTED"),
    number("GAP"),
    number("NO-DLQ"),
    number("DROPPED-LETTERS", wide=True),
    number("LOST-RECORDS", wide=True),
    text("REMARK", wide=True),
)
@groups_option()
def describe(settings: Settings, output: Output, named: GroupsNamed) -> None:
    """Show the share-partitions of groups: where each starts, what lags, what is in flight, how its records ended.

    What hinders a share-partition is said under the tables.
    """
    with Database.open(settings) as database:
        state = State(database)
        partitions = [each for group in named.of(database) for each in state.figures.describe(group)]
        now = state.now()
    rows = [_figures(each) for each in partitions]
    at = (
        "START-OFFSET",
        "LAG",
        "END-OFFSET",
        "ACQUIRED",
        "AVAILABLE",
        "WAITING",
        "WAITING-UNTIL",
        "ARCHIVING",
    )
    since = ("NEXT-EXPIRY", "OLDEST-OFFSET", "OLDEST-SINCE")
    ended = ("ACCEPTED", "REJECTED", "EXHAUSTED", "GAP", "NO-DLQ", "DROPPED-LETTERS", "LOST-RECORDS")
    output.rows(rows, (*_NAME, *at, *since), (*_NAME, *ended), now=now)
    for row in rows:
        if row["remark"]:
            output.note(f"REMARK {row['group']} {row['topic']}-{row['partition']}: {row['remark']}")


def _figures(each: SharePartitionStatus) -> dict[str, object]:
    return {
        "group": each.group_id,
        "topic": each.topic,
        "partition": each.partition,
        "start_offset": each.spso,
        "lag": each.lag,
        "end_offset": each.log_end,
        "acquired": each.acquired,
        "available": each.available,
        "archiving": each.archiving,
        "next_expiry": each.next_expiry,
        "waiting": each.waiting,
        "waiting_until": each.waiting_until,
        "lost_records": each.lost_records,
        "oldest_offset": each.oldest_offset,
        "oldest_since": each.oldest_since,
        "accepted": each.accepted,
        "rejected": each.rejected,
        "exhausted": each.exhausted,
        "gap": each.gap,
        "no_dlq": each.no_dlq,
        "dropped_letters": each.dropped_letters,
        "remark": "; ".join(filter(None, (each.fault, each.paused_reason, each.held_reason))) or None,
    }


@groups.command()
@settings_options
@answers(text("GROUP"), text("TOPIC"), number("PARTITION"), text("STATUS"))
@groups_option()
@_topic_option
@click.option("--reason", required=True, help="Why; `describe` shows it.")
def pause(settings: Settings, output: Output, named: GroupsNamed, topics: Sequence[str], reason: str) -> None:
    """Stop leasing from groups, or some of their share-partitions; leased records may still be acknowledged."""
    _pause(settings, output, named, topics, reason)


@groups.command()
@settings_options
@answers(text("GROUP"), text("TOPIC"), number("PARTITION"), text("STATUS"))
@groups_option()
@_topic_option
def resume(settings: Settings, output: Output, named: GroupsNamed, topics: Sequence[str]) -> None:
    """Lease again, after a pause or when the circuit breaker has stopped it."""
    _pause(settings, output, named, topics, None)


def _pause(
    settings: Settings, output: Output, named: GroupsNamed, topics: Sequence[str], reason: str | None
) -> None:
    chosen: list[tuple[str | None, int | None]] = [
        (topic, partition)
        for topic, partitions in parse_topics(topics).items()
        for partition in ((None,) if partitions is None else partitions)
    ]
    rows = []
    with Database.open(settings) as database:
        administration = State(database).administration
        for group in named.of(database):
            for topic, partition in chosen or [(None, None)]:
                administration.pause(group, reason, topic, partition)
                status = "resumed" if reason is None else "paused"
                rows.append({"group": group, "topic": topic, "partition": partition, "status": status})
    output.rows(rows)


@groups.command()
@settings_options
@answers(text("GROUP"), text("STATUS"))
@groups_option()
@execute_option
def delete(settings: Settings, output: Output, named: GroupsNamed, execute: bool) -> None:
    """Delete groups with all they have; refused while one has members."""
    rows: list[dict[str, object]] = []
    with Database.open(settings) as database:
        members = {row["group"]: row["members"] for row in database.rows(_LIST)}
        for group in named.of(database, missing=True):
            status = "Successful" if execute else "dry run"
            if group not in members:
                status = f"Error: {GroupIdNotFound.name}: There is no such share group."
            elif members.get(group):
                status = f"Error: {NonEmptyGroup.name}: It has {members[group]} members."
            elif execute:
                State(database).administration.delete_group(group)
            rows.append({"group": group, "status": status})
    output.rows(rows)
    if any(str(row["status"]).startswith("Error") for row in rows):
        raise click.exceptions.Exit(1)


COMMANDS = (groups,)
