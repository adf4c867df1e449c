"""`sharequeue groups`: which share groups there are, how far each has come, and whether they may go on.

Columns are those of Kafka's `kafka-share-groups.sh --describe`, ours after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import sqlalchemy as sa

from sharequeue.cli.offsets import execute_option, parse_topics
from sharequeue.cli.output import home_option, output_option, print_line, print_rows
from sharequeue.database import Database
from sharequeue.errors import GroupIdNotFound, NonEmptyGroup
from sharequeue.groups.known import require_group
from sharequeue.settings import Settings
from sharequeue.state import State

_LIST = sa.text('select group_id as "group", state, members from sharequeue.group_list order by group_id')


@click.group()
def groups() -> None:
    """Share groups: list, describe, pause, resume, delete."""


@groups.command("list")
@home_option
@output_option
def list_groups(home: Path | None, output: str) -> None:
    """List the share groups with their state and number of members."""
    with Database.open(Settings.load(home)) as database:
        rows = [dict(row) for row in database.rows(_LIST)]
    print_rows(("GROUP", "STATE", "MEMBERS"), rows, output)


@groups.command()
@home_option
@output_option
@click.argument("group")
def describe(home: Path | None, output: str, group: str) -> None:
    """Show GROUP's share-partitions: where each starts, what lags, what is in flight, how its records ended."""
    with Database.open(Settings.load(home)) as database:
        require_group(database, group)
        partitions = State(database).figures.describe(group)
    rows = [
        {
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
        for each in partitions
    ]
    name = ("GROUP", "TOPIC", "PARTITION")
    now = (
        "END-OFFSET",
        "ACQUIRED",
        "AVAILABLE",
        "WAITING",
        "WAITING-UNTIL",
        "ARCHIVING",
        "NEXT-EXPIRY",
        "OLDEST-OFFSET",
    )
    print_rows((*name, "START-OFFSET", "LAG", *now, "REMARK"), rows, output)
    if output == "text":
        ended = ("ACCEPTED", "REJECTED", "EXHAUSTED", "GAP", "NO-DLQ", "DROPPED-LETTERS", "LOST-RECORDS")
        print_rows((*name, *ended), rows, output)


@groups.command()
@home_option
@click.option("--group", required=True, help="The share group.")
@click.option("--topic", "topics", multiple=True, help="Only this topic, or topic:0,1; may be repeated.")
@click.option("--reason", required=True, help="Why; `describe` shows it.")
def pause(home: Path | None, group: str, topics: Sequence[str], reason: str) -> None:
    """Stop leasing from a group, or some of its share-partitions; leased records may still be acknowledged."""
    _pause(home, group, topics, reason)


@groups.command()
@home_option
@click.option("--group", required=True, help="The share group.")
@click.option("--topic", "topics", multiple=True, help="Only this topic, or topic:0,1; may be repeated.")
def resume(home: Path | None, group: str, topics: Sequence[str]) -> None:
    """Lease again, after a pause or when the circuit breaker has stopped it."""
    _pause(home, group, topics, None)


def _pause(home: Path | None, group: str, topics: Sequence[str], reason: str | None) -> None:
    with Database.open(Settings.load(home)) as database:
        state = State(database)
        if not topics:
            state.administration.pause(group, reason)
        for topic, partitions in parse_topics(topics).items():
            for partition in (None,) if partitions is None else partitions:
                state.administration.pause(group, reason, topic, partition)
    print_line(f"{'resumed' if reason is None else 'paused'} {group}{''.join(f' {each}' for each in topics)}")


@groups.command()
@home_option
@output_option
@click.option("--group", "named", multiple=True, required=True, help="A share group; may be repeated.")
@execute_option
def delete(home: Path | None, output: str, named: Sequence[str], execute: bool) -> None:
    """Delete groups with all they have; refused while one has members."""
    rows: list[dict[str, object]] = []
    with Database.open(Settings.load(home)) as database:
        members = {row["group"]: row["members"] for row in database.rows(_LIST)}
        for group in named:
            if group not in members:
                status = f"Error: {GroupIdNotFound.name}: There is no such share group."
            elif members[group]:
                status = f"Error: {NonEmptyGroup.name}: It has {members[group]} members."
            else:
                status = "Successful" if execute else "dry run"
                if execute:
                    State(database).administration.delete_group(group)
            rows.append({"group": group, "status": status})
    print_rows(("GROUP", "STATUS"), rows, output)
    if any(str(row["status"]).startswith("Error") for row in rows):
        raise click.exceptions.Exit(1)


COMMANDS = (groups,)
