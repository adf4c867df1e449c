"""`sharequeue journal`: the history of share-partitions by day and by change, and the journal's maintenance."""

from __future__ import annotations

from datetime import timedelta

import click

from sharequeue.cli.options import (
    Finite,
    GroupsNamed,
    Whole,
    execute_option,
    group_option,
    groups_option,
    parse_share_partition,
    settings_options,
)
from sharequeue.cli.output import Output, answers, moment, nested, number, row_of, text
from sharequeue.database import Database
from sharequeue.domain.errors import UnknownTopicOrPartition
from sharequeue.domain.moments import span
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.state import State
from sharequeue.state.journal import Journal


@click.group()
def journal() -> None:
    """Read, check and shorten the journal of share-partition state."""


@journal.command()
@settings_options
@answers(number("CHANGE"), moment("AT"), text("KIND"), nested("VALUES", cut=True))
@group_option
@click.option("--topic", required=True, help="The share-partition, such as topic:0.")
@click.option("--after", type=Whole(0), default=0, help="Only changes after this one.")
@click.option("--limit", type=Whole(1), default=100, show_default=True, help="Maximum number of changes.")
def changes(settings: Settings, output: Output, group: str, topic: str, after: int, limit: int) -> None:
    """Show the changes of a share-partition, oldest first."""
    at = SharePartition(group, *parse_share_partition(topic))
    with Database.open(settings) as database:
        reader = Journal(database)
        found = reader.changes(at, after, limit)
        if not found and not reader.snapshots(at):
            raise UnknownTopicOrPartition(f"Group {group} has no share-partition {at}.")
        now = State(database).now()
    output.rows((row_of(change, change=change.journal_id) for change in found), now=now)


@journal.command()
@settings_options
@answers(
    text("GROUP"),
    text("DAY"),
    text("TOPIC"),
    number("PARTITION"),
    number("ENTERED"),
    number("ACCEPTED-FIRST"),
    number("LEASES"),
    number("LOST-RECORDS", wide=True),
    number("SPSO"),
    number("SPEO"),
)
@groups_option()
def days(settings: Settings, output: Output, named: GroupsNamed) -> None:
    """Show the figures of share-partitions day by day (UTC), also for days whose journal was dropped."""
    with Database.open(settings) as database:
        found = [(group, day) for group in named.of(database) for day in Journal(database).days(group)]
    output.rows(row_of(day, group=group) for group, day in found)


@journal.command()
@settings_options
@answers(text("DIFFERENCE"))
@groups_option(default_all=True)
def verify(settings: Settings, output: Output, named: GroupsNamed) -> None:
    """Replay every share-partition from its latest snapshot; exit code 1 if the current state differs."""
    with Database.open(settings) as database:
        differences = named.checked(database, Journal(database).verify)
    output.violations(differences, "replay gives the current state")


@journal.command()
@settings_options
@answers(text("ACT"), text("DAY"), number("ROWS"), number("SNAPSHOTS"), text("REASON"))
@click.option(
    "--retention-days",
    type=Finite(min=0, max=36_500, min_open=True),
    help="Days older than this are dropped. Default: `journal.retention.minutes` of the service that started last.",
)
@click.option(
    "--updates",
    type=Whole(1, 2**31 - 1),
    help="Changes after which a share-partition gets a snapshot. Default: "
    "`share.coordinator.snapshot.update.records.per.snapshot` of the service that started last.",
)
@execute_option
def keep(
    settings: Settings, output: Output, retention_days: float | None, updates: int | None, execute: bool
) -> None:
    """Do one maintenance round, as the coordinator does automatically: snapshots, partitions, rollups, dropping."""
    with Database.open(settings) as database:
        configs = ServiceConfigs.stored(database)
        retention = configs.journal_retention if retention_days is None else timedelta(days=retention_days)
        if not execute:
            due = Journal(database).due(retention)
            output.rows(
                [{"act": "would drop", "day": each.day, "rows": each.rows} for each in due],
                ("ACT", "DAY", "ROWS"),
            )
            output.note(f"the journal is kept for {span(retention)}: {len(due)} days are older")
            return
        kept = Journal(database).keep(
            retention=retention, updates_per_snapshot=updates or configs.updates_per_snapshot
        )
    rows: list[dict[str, object]] = [{"act": "took snapshots", "snapshots": kept.snapshots}]
    for act, which in (("made", kept.made), ("rolled up", kept.rolled_up), ("dropped", kept.dropped)):
        rows += [{"act": act, "day": day} for day in which]
    if kept.waiting:
        rows.append({"act": "waits", "reason": kept.waiting})
    output.rows(rows)


COMMANDS = (journal,)
