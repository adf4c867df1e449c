"""`sharequeue state`: records in flight with their holders, and manual changes of stuck records.

Commands that change something do so only with `--execute`, and write to the audit log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from sharequeue.cli.options import (
    GroupsNamed,
    duration,
    execute_option,
    group_option,
    groups_option,
    parse_offsets,
    parse_share_partition,
    parse_topics,
    settings_options,
    topic_option,
)
from sharequeue.cli.output import Output, age, answers, moment, number, row_of, text
from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import ForcedRun, SharePartition
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.reports.drawing import divided, window_text
from sharequeue.reports.read import OffsetWindow, read_windows
from sharequeue.state import State
from sharequeue.state.administration import Administration

_CELLS = 80
_LOOKS = {
    "available": (".", "yellow"),
    "acquired": ("A", "blue"),
    "acknowledged": ("+", "green"),
    "archiving": ("!", "magenta"),
    "archived": ("x", "red"),
}
"""The letter and the colour of each state in a strip."""
_RUN = "dagster-run-"
"""The prefix of the client id of a member that is a Dagster run."""


@click.group()
def state() -> None:
    """Manage the state of share-partitions: locks, and manual changes of records."""


@state.command()
@settings_options
@answers(
    text("GROUP", wide=True),
    text("TOPIC"),
    number("PARTITION"),
    text("STATE"),
    number("RECORDS", wide=True),
    text("OFFSETS", cut=True),
    number("DELIVERIES", wide=True),
    text("CONSUMER-ID", cut=True, wide=True),
    text("RUN", cut=True),
    moment("SINCE"),
    moment("EXPIRES-AT"),
    text("STUCK", wide=True),
)
@groups_option()
@topic_option
def show(settings: Settings, output: Output, named: GroupsNamed, topics: Sequence[str]) -> None:
    """Show records in flight as a strip, with their holders and times; and stuck records, with the reason.

    Each group has its own table.
    RUN is the Dagster run that holds them, or the client id of another member; `-` once the member is gone.
    """
    wanted = parse_topics(topics)
    everything: list[dict[str, Any]] = []
    with Database.open(settings) as database:
        now = State(database).now()
        for group in named.of(database):
            rows: list[dict[str, Any]] = []
            for window in read_windows(database, group, wanted):
                output.note(f"{group} {window.topic}-{window.partition}, {window_text(window)}")
                output.note(strip(window))
                rows += _rows(group, window)
            rows += _leases(database, group, wanted)
            rows.sort(key=lambda row: (row["topic"], row["partition"]))
            everything += rows
            if output.text:
                _print_group(output, rows, now)
    if not output.text:
        output.rows(everything)


def _print_group(output: Output, rows: list[dict[str, Any]], now: datetime) -> None:
    """Print the records in flight of one group, below its strips."""
    if rows:
        looks = (f"{click.style(letter, fg=colour)} {state}" for state, (letter, colour) in _LOOKS.items())
        output.note("  ".join(looks))
    output.rows(rows, now=now)
    for row in rows:
        if row.get("stuck"):
            at = f"{row['group']} {row['topic']}-{row['partition']}"
            output.note(f"STUCK {at} {row['offsets']}: {row['stuck']}")


def strip(window: OffsetWindow) -> str:
    """Return the in-flight window from left to right by offset; a cell shows the state of most of its offsets."""
    cells = []
    for counts in divided(window, _CELLS):
        state = max(counts, key=lambda name: counts[name]) if counts else None
        letter, colour = _LOOKS[state] if state else (" ", "white")
        cells.append(click.style(letter, fg=colour))
    return "".join(cells)


def _rows(group: str, window: OffsetWindow) -> list[dict[str, Any]]:
    """Return the offsets in flight without a lease, one row for each state."""
    name = {"group": group, "topic": window.topic, "partition": window.partition}
    return [
        {**name, "state": state, "records": offsets.count, "offsets": listed(offsets)}
        for state, offsets in window.states.items()
        if state != "acquired"
    ]


def _leases(
    database: Database, group: str, wanted: dict[str, tuple[int, ...] | None]
) -> list[dict[str, Any]]:
    return [
        row_of(
            each,
            group=group,
            state="acquired",
            offsets=listed(each.offsets),
            deliveries=each.highest_delivery_count,
            consumer_id=each.member_id,
            run=(each.client_id or "").removeprefix(_RUN) or None,
            since=each.acquired_at,
            stuck=each.stuck_reason,
        )
        for each in State(database).figures.leases(group)
        if not wanted
        or (each.topic in wanted and each.partition in (wanted[each.topic] or (each.partition,)))
    ]


def listed(offsets: OffsetSet) -> str:
    """Return offsets in the form of the command line: `5,7-9`."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in offsets.runs())


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
    at, wanted = SharePartition(group, *parse_share_partition(topic)), parse_offsets(offsets)
    with Database.open(settings) as database:
        done = act(Administration(database), at, wanted, execute=execute)
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
    """Fence every earlier holder, in every group, after a restore or a copy of the database; set sequences that are
    behind."""
    with Database.open(settings) as database:
        held = State(database)
        behind = held.figures.sequences_behind()
        count = held.administration.raise_state_epochs() if execute else len(held.figures.describe())
    sentence = f"{'raised' if execute else 'would raise'} the state epochs of {count} share-partitions"
    if behind:
        sentence += f", and {'set' if execute else 'would set'} {len(behind)} sequences that were behind"
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
    callback=duration,
    help="The least time since the topic was deleted: an ISO-8601 duration. Default: `deleted.topics.retention.ms` "
    "of the service that started last.",
)
@execute_option
def remove_deleted_topics(
    settings: Settings, output: Output, gone_for: timedelta | None, execute: bool
) -> None:
    """Remove the state of groups for topics that were deleted at least --gone-for ago.

    The service asks the broker, and does the same automatically after `deleted.topics.retention.ms`.
    """
    with Database.open(settings) as database:
        if gone_for is None:
            gone_for = ServiceConfigs.stored(database).deleted_topics_retention
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


COMMANDS = (state,)
