"""`sharequeue state`: who holds what, and stuck records moved by hand.

What changes something does so only with `--execute`, and is written to the audit log.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from sharequeue.cli.offsets import execute_option, parse_offsets, parse_topics
from sharequeue.cli.output import home_option, output_option, print_line, print_rows
from sharequeue.database import Database
from sharequeue.groups.config_keys import reset_duration
from sharequeue.groups.known import require_group
from sharequeue.offsets import OffsetSet
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.state.administration import Administration
from sharequeue.values import ForcedRun, SharePartition


@click.group()
def state() -> None:
    """The state of share-partitions: locks, and records moved by hand."""


@state.command()
@home_option
@output_option
@click.option("--group", required=True, help="The share group.")
def leases(home: Path | None, output: str, group: str) -> None:
    """Show who holds what, since when and until when; soonest to lapse first."""
    with Database.open(Settings.load(home)) as database:
        require_group(database, group)
        held = State(database).figures.leases(group)
    rows = [
        {
            "topic": row.topic,
            "partition": row.partition,
            "consumer_id": row.member_id,
            "records": row.records,
            "offsets": _shown(row.offsets),
            "deliveries": row.highest_delivery_count,
            "acquired_at": row.acquired_at,
            "expires_at": row.expires_at,
        }
        for row in held
    ]
    columns = (
        "TOPIC",
        "PARTITION",
        "CONSUMER-ID",
        "RECORDS",
        "OFFSETS",
        "DELIVERIES",
        "ACQUIRED-AT",
        "EXPIRES-AT",
    )
    print_rows(columns, rows, output)


def _forced(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        home_option,
        output_option,
        click.option("--group", required=True, help="The share group."),
        click.option("--topic", required=True, help="The share-partition, as topic:0."),
        click.option("--offsets", required=True, help="Offsets and runs of them, as 5,7-9."),
        execute_option,
    ):
        command = option(command)
    return command


@state.command()
@_forced
def release(**given: Any) -> None:
    """Make chosen offsets available now, whoever holds them or whatever they wait for."""
    _force(Administration.force_release, **given)


@state.command("dead-letter")
@_forced
def dead_letter(**given: Any) -> None:
    """Send chosen offsets to the dead-letter topic as rejected, whoever holds them."""
    _force(Administration.force_dead_letter, **given)


def _force(
    act: Callable[..., list[ForcedRun]],
    home: Path | None,
    output: str,
    group: str,
    topic: str,
    offsets: str,
    execute: bool,
) -> None:
    named = [(name, parts) for name, parts in parse_topics([topic]).items() if parts and len(parts) == 1]
    if not named:
        raise click.UsageError("name one share-partition, as --topic flights:0")
    ((name, parts),) = named
    assert parts is not None  # noqa: S101  (filtered above)
    at = SharePartition(group, name, parts[0])
    with Database.open(Settings.load(home)) as database:
        done = act(Administration(database), at, OffsetSet.of(*parse_offsets(offsets)), execute=execute)
    rows = [
        {
            "offsets": _shown(run.offsets),
            "act": run.act,
            "status": "left as it is" if run.act in ("none", "refuse") else "done" if execute else "dry run",
            "deliveries": run.delivery_count,
            "consumer_id": run.member_id,
            "reason": run.reason,
        }
        for run in done
    ]
    print_rows(("OFFSETS", "ACT", "STATUS", "DELIVERIES", "CONSUMER-ID", "REASON"), rows, output)
    if any(run.act == "refuse" for run in done):
        raise click.exceptions.Exit(1)


@state.command("extend-locks")
@home_option
@click.option("--by", "amount", required=True, help="How much longer: an ISO-8601 duration, as PT10M.")
@execute_option
def extend_locks(home: Path | None, amount: str, execute: bool) -> None:
    """Make every lock there is last longer: before or after an outage that the service could not see."""
    longer = reset_duration(f"by_duration:{amount}") or timedelta()
    with Database.open(Settings.load(home)) as database:
        if not execute:
            print_line(f"would extend every lock by {longer}")
            return
        print_line(f"extended {State(database).administration.extend_locks(longer)} locks by {longer}")


@state.command("raise-epochs")
@home_option
@execute_option
def raise_epochs(home: Path | None, execute: bool) -> None:
    """After a restore of the database from a backup: fence every holder from before, in every group."""
    with Database.open(Settings.load(home)) as database:
        held = State(database)
        if not execute:
            print_line(f"would raise the state epochs of {len(held.figures.describe())} share-partitions")
            return
        print_line(f"raised the state epochs of {held.administration.raise_state_epochs()} share-partitions")


@state.command("remove-deleted-topics")
@home_option
@click.option(
    "--gone-for", default="PT15M", show_default=True, help="How long the topic must have been gone: ISO-8601."
)
@execute_option
def remove_deleted_topics(home: Path | None, gone_for: str, execute: bool) -> None:
    """Remove what groups have of topics that are gone from the broker, now and for so long.

    The service asks the broker, and does the same by itself after `deleted.topics.retention.ms`.
    """
    span = reset_duration(f"by_duration:{gone_for}") or timedelta()
    with Database.open(Settings.load(home)) as database:
        found = State(database).administration.remove_deleted_topics(span, execute=execute)
    for each in found:
        print_line(
            f"{'removed' if execute else 'would remove'} {each.share_partitions} share-partitions of group "
            f"{each.group_id}: topic {each.topic} (id {each.topic_id}) is gone since {each.gone_since}"
        )
    if not found:
        print_line(f"no topic has been gone from the broker for {span}")


def _shown(offsets: OffsetSet, most: int = 8) -> str:
    runs = offsets.runs()
    shown = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:most])
    return shown + (f",… ({len(runs)} runs)" if len(runs) > most else "")


COMMANDS = (state,)
