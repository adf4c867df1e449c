"""`sharequeue state`: who holds what, and stuck records moved by hand.

What changes something does so only with `--execute`, and is written to the audit log.
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
from sharequeue.cli.output import Output, age, answers, moment, number, text
from sharequeue.database import Database
from sharequeue.offsets import OffsetSet
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.state.administration import Administration
from sharequeue.values import ForcedRun, SharePartition


@click.group()
def state() -> None:
    """The state of share-partitions: locks, and records moved by hand."""


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
    """Show who holds what, since when and until when; soonest to lapse first."""
    with Database.open(settings) as database:
        held = State(database)
        found = [(group, row) for group in named.of(database) for row in held.figures.leases(group)]
        now = held.now()
    output.rows(
        (
            {
                "group": group,
                "topic": row.topic,
                "partition": row.partition,
                "consumer_id": row.member_id,
                "records": row.records,
                "offsets": listed(row.offsets),
                "deliveries": row.highest_delivery_count,
                "acquired_at": row.acquired_at,
                "expires_at": row.expires_at,
            }
            for group, row in found
        ),
        now=now,
    )


def _forced(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        execute_option,
        click.option("--offsets", required=True, help="Offsets and runs of them, as 5,7-9."),
        click.option("--topic", required=True, help="The share-partition, as topic:0."),
        group_option,
        answers(
            text("OFFSETS"),
            text("ACT"),
            text("STATUS"),
            number("DELIVERIES"),
            text("CONSUMER-ID", cut=True),
            text("REASON", cut=True),
        ),
        settings_options,
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
            "status": "left as it is"
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
    help="How much longer: an ISO-8601 duration, as PT10M.",
)
@execute_option
def extend_locks(settings: Settings, output: Output, longer: timedelta, execute: bool) -> None:
    """Make every lock there is last longer: before or after an outage that the service could not see."""
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
    """After a restore of the database from a backup: fence every holder from before, in every group."""
    with Database.open(settings) as database:
        held = State(database)
        count = held.administration.raise_state_epochs() if execute else len(held.figures.describe())
    said = f"{'raised' if execute else 'would raise'} the state epochs of {count} share-partitions"
    output.one_row({"share_partitions": count, "status": "done" if execute else output.planned}, said)


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
    help="How long the topic must have been gone: ISO-8601.",
)
@execute_option
def remove_deleted_topics(settings: Settings, output: Output, gone_for: timedelta, execute: bool) -> None:
    """Remove what groups have of topics that are gone from the broker, now and for so long.

    The service asks the broker, and does the same by itself after `deleted.topics.retention.ms`.
    """
    with Database.open(settings) as database:
        found = State(database).administration.remove_deleted_topics(gone_for, execute=execute)
    if not output.text:
        output.rows(
            {
                "group": each.group_id,
                "topic": each.topic,
                "topic_id": each.topic_id,
                "share_partitions": each.share_partitions,
                "gone_since": each.gone_since,
                "status": "removed" if execute else output.planned,
            }
            for each in found
        )
    for each in found:
        output.note(
            f"{'removed' if execute else 'would remove'} {each.share_partitions} share-partitions of group "
            f"{each.group_id}: topic {each.topic} (id {each.topic_id}) is gone since {each.gone_since}"
        )
    if not found:
        output.note(f"no topic has been gone from the broker for {gone_for}")


state.add_command(show)

COMMANDS = (state,)
