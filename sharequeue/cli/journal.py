"""`sharequeue journal`: what happened to a share-partition, day by day and change by change; and keeping it short."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import click

from sharequeue.cli.output import home_option, output_option, print_line, print_rows
from sharequeue.database import Database
from sharequeue.errors import UnknownTopicOrPartition
from sharequeue.groups.known import require_group
from sharequeue.settings import Settings
from sharequeue.state.journal import RETENTION, UPDATES_PER_SNAPSHOT, Journal
from sharequeue.values import SharePartition


@click.group()
def journal() -> None:
    """The journal of share-partition state: read it, check it, keep it short."""


@journal.command()
@home_option
@output_option
@click.argument("group")
@click.argument("topic")
@click.argument("partition", type=int)
@click.option("--after", type=int, default=0, help="Only what came after this change.")
@click.option("--limit", type=int, default=100, show_default=True, help="At most so many changes.")
def changes(
    home: Path | None, output: str, group: str, topic: str, partition: int, after: int, limit: int
) -> None:
    """Show what happened to PARTITION of TOPIC in GROUP, oldest first."""
    at = SharePartition(group, topic, partition)
    with Database.open(Settings.load(home)) as database:
        reader = Journal(database)
        found = reader.changes(at, after, limit)
        if not found and not reader.snapshots(at):
            raise UnknownTopicOrPartition(f"Group {group} has no share-partition {topic}-{partition}.")
    rows = [
        {
            "change": change.journal_id,
            "at": change.at,
            "kind": change.kind,
            "values": change.values if output == "json" else json.dumps(change.values),
        }
        for change in found
    ]
    print_rows(("CHANGE", "AT", "KIND", "VALUES"), rows, output)


@journal.command()
@home_option
@output_option
@click.argument("group")
def days(home: Path | None, output: str, group: str) -> None:
    """Show what GROUP's share-partitions did, day by day (UTC), also where the journal itself is gone."""
    with Database.open(Settings.load(home)) as database:
        require_group(database, group)
        found = Journal(database).days(group)
    columns = (
        "DAY",
        "TOPIC",
        "PARTITION",
        "ENTERED",
        "ACCEPTED-FIRST",
        "LEASES",
        "LOST-RECORDS",
        "SPSO",
        "SPEO",
    )
    rows = [
        {
            "day": day.day,
            "topic": day.topic,
            "partition": day.partition,
            "entered": day.entered,
            "accepted_first": day.accepted_first,
            "leases": day.leases,
            "lost_records": day.lost_records,
            "spso": day.spso,
            "speo": day.speo,
        }
        for day in found
    ]
    print_rows(columns, rows, output)


@journal.command()
@home_option
@output_option
@click.option("--group", help="Only this group.")
def verify(home: Path | None, output: str, group: str | None) -> None:
    """Replay every share-partition from its latest snapshot; exit code 1 where that is not the present state."""
    with Database.open(Settings.load(home)) as database:
        if group is not None:
            require_group(database, group)
        differences = Journal(database).verify(group)
    if output == "json":
        click.echo(json.dumps(differences, indent=2))
    else:
        for difference in differences:
            print_line(difference)
        if not differences:
            print_line("replay gives the present state")
    if differences:
        raise click.exceptions.Exit(1)


@journal.command()
@home_option
@click.option(
    "--retention-days",
    type=click.FloatRange(min=0, min_open=True),
    default=RETENTION / timedelta(days=1),
    show_default=True,
    help="Days older than this are dropped.",
)
@click.option(
    "--updates",
    type=click.IntRange(min=1),
    default=UPDATES_PER_SNAPSHOT,
    show_default=True,
    help="Changes after which a share-partition gets a snapshot.",
)
def keep(home: Path | None, retention_days: float, updates: int) -> None:
    """Do one round of what the coordinator does by itself: snapshots, partitions, rollups, dropping."""
    with Database.open(Settings.load(home)) as database:
        kept = Journal(database).keep(retention=timedelta(days=retention_days), updates_per_snapshot=updates)
    print_line(f"snapshots taken: {kept.snapshots}")
    for what, which in (("made", kept.made), ("rolled up", kept.rolled_up), ("dropped", kept.dropped)):
        for day in which:
            print_line(f"{what} {day}")
    if kept.waiting:
        print_line(f"waiting: {kept.waiting}")


COMMANDS = (journal,)
