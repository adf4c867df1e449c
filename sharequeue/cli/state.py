"""`sharequeue state`: leases, and manual changes of stuck records.

Commands that change something do so only with `--execute`, and write to the audit log.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click

from sharequeue.cli.inspecting import listed, show
from sharequeue.cli.options import (
    GroupsNamed,
    duration,
    execute_option,
    group_option,
    groups_option,
    parse_offsets,
    parse_share_partition,
    settings_options,
)
from sharequeue.cli.output import Output, age, answers, moment, number, row_of, text
from sharequeue.database import Database
from sharequeue.state import State
from sharequeue.state.administration import Administration
from sharequeue.words.offsets import OffsetSet
from sharequeue.words.settings import Settings
from sharequeue.words.values import ForcedRun, SharePartition


@click.group()
def state() -> None:
    """Manage the state of share-partitions: locks, and manual changes of records."""


@state.command()
@settings_options
@answers(
    text("GROUP"),
    text("TOPIC"),
    number("PARTITION"),
    text("CONSUMER-ID", cut=True),
    number("RECORDS", wide=True),
    text("OFFSETS", cut=True),
    number("DELIVERIES", wide=True),
    moment("ACQUIRED-AT"),
    moment("EXPIRES-AT"),
)
@groups_option()
def leases(settings: Settings, output: Output, named: GroupsNamed) -> None:
    """Show leases with their holders and times; the next one to expire first."""
    with Database.open(settings) as database:
        held = State(database)
        found = [(group, row) for group in named.of(database) for row in held.figures.leases(group)]
        now = held.now()
    output.rows(
        (
            row_of(
                row,
                group=group,
                consumer_id=row.member_id,
                offsets=listed(row.offsets),
                deliveries=row.highest_delivery_count,
            )
            for group, row in found
        ),
        now=now,
    )


def _forced(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        execute_option,
        click.option("--offsets", required=True, help="Offsets and ranges of offsets, such as 5,7-9."),
        click.option("--topic", required=True, help="The share-partition, such as topic:0."),
        group_option,
        answers(
            text("OFFSETS"),
            text("ACT"),
            text("STATUS"),
            number("DELIVERIES"),
            text("CONSUMER-ID", cut=True),
            text("REASON"),
        ),
        settings_options,
    ):
        command = option(command)
    return command


@state.command()
@_forced
def release(**given: Any) -> None:
    """Make these offsets available now, even if they are leased or wait for a later time."""
    _force(Administration.force_release, **given)


@state.command("dead-letter")
@_forced
def dead_letter(**given: Any) -> None:
    """Send these offsets to the dead-letter topic as rejected, even if they are leased."""
    _force(Administration.force_dead_letter, **given)


def _force(
    act: Callable[..., list[ForcedRun]],
    settings: Settings,
    output: Output,
    group: str,
    topic: str,
    offsets: str,
    execute: bool,
) -> None:
    at = SharePartition(group, *parse_share_partition(topic))
    with Database.open(settings) as database:
        done = act(Administration(database), at, OffsetSet.of(*parse_offsets(offsets)), execute=execute)
    output.rows(
        {
            "offsets": listed(run.offsets),
            "act": run.act,
            "status": "not changed"
            if run.act in ("none", "refuse")
            else "done"
            if execute
            else output.planned,
            "deliveries": run.delivery_count,
            "consumer_id": run.member_id,
            "reason": run.reason,
        }
        for run in done
    )
    if any(run.act == "refuse" for run in done):
        raise click.exceptions.Exit(1)


@state.command("extend-locks")
@settings_options
@answers(age("BY"), number("LOCKS"), one=True)
@click.option(
    "--by",
    "longer",
    required=True,
    callback=duration,
    help="The additional time: an ISO-8601 duration, such as PT10M.",
)
@execute_option
def extend_locks(settings: Settings, output: Output, longer: timedelta, execute: bool) -> None:
    """Extend all current locks: before or after an outage that the service could not notice."""
    with Database.open(settings) as database:
        if not execute:
            output.one_row({"by": longer}, f"would extend every lock by {longer}")
            return
        locks = State(database).administration.extend_locks(longer)
        output.one_row({"by": longer, "locks": locks}, f"extended {locks} locks by {longer}")


@state.command("raise-epochs")
@settings_options
@answers(number("SHARE-PARTITIONS"), text("STATUS"), one=True)
@execute_option
def raise_epochs(settings: Settings, output: Output, execute: bool) -> None:
    """Fence every earlier holder, in every group, after a restore of the database from a backup."""
    with Database.open(settings) as database:
        held = State(database)
        count = held.administration.raise_state_epochs() if execute else len(held.figures.describe())
    sentence = f"{'raised' if execute else 'would raise'} the state epochs of {count} share-partitions"
    output.one_row({"share_partitions": count, "status": "done" if execute else output.planned}, sentence)


@state.command("remove-deleted-topics")
@settings_options
@answers(
    text("GROUP"),
    text("TOPIC"),
    text("TOPIC-ID"),
    number("SHARE-PARTITIONS"),
    moment("GONE-SINCE"),
    text("STATUS"),
)
@click.option(
    "--gone-for",
    default="PT15M",
    show_default=True,
    callback=duration,
    help="How long the topic must have been gone: an ISO-8601 duration.",
)
@execute_option
def remove_deleted_topics(settings: Settings, output: Output, gone_for: timedelta, execute: bool) -> None:
    """Remove the state of groups for topics that have been gone from the broker for this time.

    The service asks the broker, and does the same automatically after `deleted.topics.retention.ms`.
    """
    with Database.open(settings) as database:
        found = State(database).administration.remove_deleted_topics(gone_for, execute=execute)
    if not output.text:
        output.rows(
            row_of(each, group=each.group_id, status="removed" if execute else output.planned)
            for each in found
        )
    for each in found:
        output.note(
            f"{'removed' if execute else 'would remove'} {each.share_partitions} share-partitions of group "
            f"{each.group_id}: topic {each.topic} (id {each.topic_id}) has been gone since {each.gone_since}"
        )
    if not found:
        output.note(f"no topic has been gone from the broker for {gone_for}")


state.add_command(show)

COMMANDS = (state,)
