"""`sharequeue groups describe`, `members` and `offsets describe`: the position and the members of groups."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import sqlalchemy as sa
from click.core import ParameterSource

from sharequeue.cli import figures
from sharequeue.cli.failures import Refused
from sharequeue.cli.options import Finite, GroupsNamed, groups_option, parse_topics, settings_options
from sharequeue.cli.output import Column, Output, age, answers, moment, number, row_of, text
from sharequeue.cli.over_http import OVER_HTTP, Service, service_of
from sharequeue.database import Database
from sharequeue.groups.descriptions import MemberDescription, describe_group
from sharequeue.groups.group_names import awaited_share_partitions
from sharequeue.reports.ages import read_ages
from sharequeue.reports.read import read_figures
from sharequeue.state import State
from sharequeue.words.errors import UnknownTopicOrPartition
from sharequeue.words.figures import GroupFigures, SharePartitionStatus
from sharequeue.words.names import nearest, printable
from sharequeue.words.settings import Settings

MEMBERS: tuple[Column, ...] = (
    text("GROUP"),
    text("CONSUMER-ID", cut=True),
    text("HOST"),
    text("CLIENT-ID", cut=True),
    number("#PARTITIONS"),
    number("MEMBER-EPOCH", wide=True),
    text("ASSIGNMENT", cut=True),
    text("SUBSCRIPTION", wide=True),
    moment("JOINED-AT", wide=True),
    moment("SESSION-EXPIRES-AT", wide=True),
)
STATES: tuple[Column, ...] = (
    text("GROUP"),
    text("STATE"),
    number("#MEMBERS"),
    number("GROUP-EPOCH", wide=True),
    number("ASSIGNMENT-EPOCH", wide=True),
    *figures.columns(GroupFigures),
    moment("CREATED-AT", wide=True),
)
_NAME = ("GROUP", "TOPIC", "PARTITION")
_WATCHED = ("START-OFFSET", "LAG", "ACQUIRED", "RATE", "TIME-TO-DRAIN")
_TIMES = sa.text(
    "select topic, partition, created_at, written_at from sharequeue.share_partition_times where group_id = :group_id"
)


@click.command()
@settings_options
@answers(
    text("GROUP"),
    text("TOPIC"),
    number("PARTITION"),
    *figures.columns(SharePartitionStatus),
    moment("CREATED-AT", wide=True),
    moment("LAST-WRITTEN-AT", wide=True),
    text("REMARK", wide=True),
    number("RATE"),
    age("TIME-TO-DRAIN"),
    views={"--members": MEMBERS, "--state": STATES},
)
@groups_option()
@click.option("--offsets", is_flag=True, help="Show share-partitions, the default.")
@click.option("--members", is_flag=True, help="Show the members instead.")
@click.option("--state", is_flag=True, help="Show one row for each group instead: state, lag, rate.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C; with rate and time to drain.")
@click.option(
    "--every",
    type=Finite(0.05, 86_400),
    default=5.0,
    show_default=True,
    help="Seconds between two repetitions of --watch.",
)
@click.option("--times", type=click.IntRange(1), help="Maximum repetitions of --watch.")
@click.pass_context
def describe(
    context: click.Context,
    /,
    settings: Settings,
    output: Output,
    named: GroupsNamed,
    offsets: bool,
    members: bool,
    state: bool,
    watch: bool,
    every: float,
    times: int | None,
) -> None:
    """Show the share-partitions of groups: start, lag, records in flight, and how records ended.

    Whatever blocks a share-partition is listed under the tables. `-` marks one that is not initialised yet. RATE is
    the number of records that ended per second: with --watch between two repetitions, with --state since the first
    report of the last hour; otherwise it is not known.
    """
    if sum((offsets, members, state)) > 1:
        raise click.UsageError("--offsets, --members, --state: give only one of them")
    if watch and (members or state):
        raise click.UsageError("--watch shows share-partitions: leave out --members and --state")
    paced = context.get_parameter_source("every") is ParameterSource.COMMANDLINE
    if not watch and (paced or times is not None):
        raise click.UsageError("--every and --times need --watch")
    if watch and output.format == "json":
        raise click.UsageError("--watch prints many results: use -o jsonl")
    if (service := service_of(settings)) is not None:
        if watch:
            raise Refused(OVER_HTTP, "NO_DATABASE")
        with service:
            if state:
                output.view("--state").rows(_state_over_http(service, named))
                return
            if members:
                output.view("--members").rows(_members_over_http(service, named))
            else:
                rows = [row for group in named.among(service.names) for row in service.figures(group)]
                _show(output, rows, datetime.now(UTC))
        return
    with Database.open(settings) as database:
        if members:
            output.view("--members").rows(_members(database, named), now=State(database).now())
        elif state:
            output.view("--state").rows(
                (_state_row(settings, database, group) for group in named.of(database)),
                now=State(database).now(),
            )
        elif watch:
            _watch(database, output, named, every, times)
        else:
            _show(output, _look(database, named), State(database).now())


def _show(output: Output, rows: Sequence[Mapping[str, Any]], now: datetime) -> None:
    present = (*_NAME, *figures.names(ended=False), "CREATED-AT", "LAST-WRITTEN-AT")
    output.rows(rows, present, (*_NAME, *figures.names(ended=True)), now=now)
    for row in rows:
        if row.get("remark"):
            at = f"{row['group']} {row['topic']}-{row['partition']}"
            output.note(printable(f"REMARK {at}: {row['remark']}"))


def _watch(database: Database, output: Output, named: GroupsNamed, every: float, times: int | None) -> None:
    """Print figures until interrupted. The rate is computed from the records that ended between two repetitions."""
    before: dict[tuple[str, str, int], int] = {}
    then, looks = time.monotonic(), 0
    while True:
        rows, at = _look(database, named), time.monotonic()
        for row in rows:
            if row.get("lag") is None:
                continue
            name = (row["group"], row["topic"], row["partition"])
            ended = sum(row.get(key) or 0 for key in ("accepted", "rejected", "exhausted", "gap"))
            if name in before:
                row["rate"] = round((ended - before[name]) / (at - then), 1)
                if row["rate"] > 0 or not row["lag"]:
                    row["time_to_drain"] = timedelta(seconds=row["lag"] / row["rate"] if row["lag"] else 0)
            before[name] = ended
        then, looks = at, looks + 1
        if output.text and sys.stdout.isatty():
            click.clear()
        output.rows(rows, (*_NAME, *_WATCHED))
        if looks == times:
            return
        time.sleep(every)


def _look(database: Database, named: GroupsNamed) -> list[dict[str, Any]]:
    """Return the figures of the groups' share-partitions, and the names of uninitialised ones."""
    rows: list[dict[str, Any]] = []
    for group in named.of(database):
        times = {(row["topic"], row["partition"]): row for row in database.rows(_TIMES, group_id=group)}
        found = [
            _row(each)
            | {
                "created_at": since["created_at"],
                "last_written_at": since["written_at"],
                "remark": each.remark,
            }
            for each in State(database).figures.describe(group)
            if (since := times.get((each.topic, each.partition)))
        ]
        found += [
            {"group": group, "topic": topic, "partition": partition}
            for topic, partition in awaited_share_partitions(database, group)
        ]
        rows += sorted(found, key=lambda row: (str(row["topic"]), row["partition"]))
    return rows


def _row(each: SharePartitionStatus) -> dict[str, Any]:
    return {"group": each.group_id, "topic": each.topic, "partition": each.partition} | figures.cells(each)


def _state_row(settings: Settings, database: Database, group: str) -> dict[str, Any]:
    found, state = describe_group(database, group), State(database)
    ages = read_ages(settings, state.figures.describe(group), state.now())
    sums = read_figures(database, group, ages)
    return {
        **row_of(found, group=group, state=found.group_state, members=len(found.members)),
        **figures.cells(sums),
        # Without share-partitions, the group has no start offset yet, so its lag is not known.
        **({} if sums.share_partitions else {"lag": None}),
    }


def member_rows(group: str, members: Iterable[MemberDescription]) -> list[dict[str, Any]]:
    """Return one row for each member of a group."""
    return [
        row_of(
            each,
            group=group,
            consumer_id=each.member_id,
            host=each.client_host or None,
            client_id=each.client_id or None,
            assignment=each.assigned or None,
            subscription=",".join(each.subscribed_topic_names),
        )
        for each in members
    ]


def _members(database: Database, named: GroupsNamed) -> list[dict[str, Any]]:
    """Return rows of the members of the named groups. Raises GroupIdNotFound."""
    return [
        row
        for group in named.of(database)
        for row in member_rows(group, describe_group(database, group).members)
    ]


def _state_over_http(service: Service, named: GroupsNamed) -> list[dict[str, Any]]:
    """Return rows of the named groups, without the rate and figures derived from it: they need the database."""
    rows = []
    for group in named.among(service.names):
        found, partitions = service.describe(group), service.figures(group)
        rows.append(
            {
                "group": group,
                "state": found["group_state"],
                "members": len(found["members"]),
                "group_epoch": found["group_epoch"],
                "assignment_epoch": found["assignment_epoch"],
                "lag": sum(each["lag"] for each in partitions),
                "acquired": sum(each["acquired"] for each in partitions),
            }
        )
    return rows


def _members_over_http(service: Service, named: GroupsNamed) -> list[dict[str, Any]]:
    return [row for group in named.among(service.names) for row in member_rows(group, service.members(group))]


@click.command()
@settings_options
@answers(*MEMBERS)
@groups_option()
def members(settings: Settings, output: Output, named: GroupsNamed) -> None:
    """Show the members of groups, their assignments, and with --verbose when their sessions expire."""
    if (service := service_of(settings)) is not None:
        with service:
            output.rows(_members_over_http(service, named))
        return
    with Database.open(settings) as database:
        output.rows(_members(database, named), now=State(database).now())


@click.command("describe")
@settings_options
@answers(
    text("GROUP"),
    text("TOPIC"),
    number("PARTITION"),
    number("START-OFFSET"),
    number("END-OFFSET"),
    number("LAG"),
    number("STATE-EPOCH", wide=True),
    text("TOPIC-ID", wide=True),
)
@groups_option()
@click.option("--topic", "topics", multiple=True, help="Only this topic, or topic:0,1; may be repeated.")
def describe_offsets(settings: Settings, output: Output, named: GroupsNamed, topics: Sequence[str]) -> None:
    """Show where groups start and end: `-` for a requested partition that is not initialised."""
    wanted = parse_topics(topics)
    awaited: set[str] = set()
    if (service := service_of(settings)) is not None:
        with service:
            found = {group: service.figures(group) for group in named.among(service.names)}
    else:
        with Database.open(settings) as database:
            found = {
                group: [
                    _row(each) | {"topic_id": each.topic_id}
                    for each in State(database).figures.describe(group)
                ]
                for group in named.of(database)
            }
            for group in found:
                awaited |= {topic for topic, _ in awaited_share_partitions(database, group)}
    rows: list[dict[str, Any]] = []
    known = awaited | {row["topic"] for partitions in found.values() for row in partitions}
    for topic in wanted:
        if topic not in known:
            raise UnknownTopicOrPartition(
                f"The group has no share-partition of topic {topic}. {nearest(topic, known, 'topics')}"
            )
    for group, partitions in found.items():
        there = {(row["topic"], row["partition"]): row for row in partitions}
        asked = {(topic, part) for topic, parts in wanted.items() for part in parts or ()}
        asked |= {at for at in there if wanted.get(at[0], ()) is None} if wanted else set(there)
        rows += [
            there.get(at) or {"group": group, "topic": at[0], "partition": at[1]} for at in sorted(asked)
        ]
    output.rows(rows)


COMMANDS = (members,)
