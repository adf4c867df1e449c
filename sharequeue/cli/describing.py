"""`sharequeue groups describe`, `members` and `offsets describe`: where groups stand, and who is in them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import sqlalchemy as sa
from click.core import ParameterSource

from sharequeue.cli.failures import Refused
from sharequeue.cli.options import GroupsNamed, groups_option, parse_topics, settings_options
from sharequeue.cli.output import Column, Output, age, answers, moment, number, printable, text
from sharequeue.cli.over_http import OVER_HTTP, Service, service_of
from sharequeue.database import Database
from sharequeue.errors import UnknownTopicOrPartition
from sharequeue.groups.descriptions import MemberDescription, describe_group
from sharequeue.groups.known import awaited_share_partitions
from sharequeue.names import nearest
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.state.group_report import read_figures
from sharequeue.values import SharePartitionStatus

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
    number("LAG"),
    number("ACQUIRED"),
    number("RATE"),
    age("TIME-TO-DRAIN"),
    age("OLDEST-AGE"),
    number("STUCK-LEASES"),
    moment("CREATED-AT", wide=True),
)
_NAME = ("GROUP", "TOPIC", "PARTITION")
_NOW = (
    *("START-OFFSET", "LAG", "END-OFFSET", "ACQUIRED", "AVAILABLE", "WAITING", "WAITING-UNTIL", "ARCHIVING"),
    *("NEXT-EXPIRY", "OLDEST-OFFSET", "OLDEST-SINCE", "CREATED-AT", "LAST-WRITTEN-AT"),
)
_ENDED = ("ACCEPTED", "REJECTED", "EXHAUSTED", "GAP", "NO-DLQ", "DROPPED-LETTERS", "LOST-RECORDS")
_WATCHED = ("START-OFFSET", "LAG", "ACQUIRED", "RATE", "TIME-TO-DRAIN")
_CREATED = sa.text("select group_id, created_at from sharequeue.group_list")
_TIMES = sa.text(
    "select topic, partition, created_at, written_at from sharequeue.share_partition_times where group_id = :group_id"
)


@click.command()
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
    moment("CREATED-AT", wide=True),
    moment("LAST-WRITTEN-AT", wide=True),
    number("ACCEPTED"),
    number("REJECTED"),
    number("EXHAUSTED"),
    number("GAP"),
    number("NO-DLQ"),
    number("DROPPED-LETTERS", wide=True),
    number("LOST-RECORDS"),
    text("BLOCKED-BY", wide=True),
    moment("BLOCKED-UNTIL", wide=True),
    number("BLOCKED-OFFSET", wide=True),
    text("REMARK", wide=True),
    number("RATE"),
    age("TIME-TO-DRAIN"),
    views={"--members": MEMBERS, "--state": STATES},
)
@groups_option()
@click.option("--offsets", is_flag=True, help="Show share-partitions, the default.")
@click.option("--members", is_flag=True, help="Show the members instead.")
@click.option("--state", is_flag=True, help="Show each group in one row instead: state, lag, rate.")
@click.option(
    "--watch", is_flag=True, help="Look again and again, until Ctrl-C; with rate and time to drain."
)
@click.option(
    "--every",
    type=click.FloatRange(0.05),
    default=5.0,
    show_default=True,
    help="Seconds between two looks of --watch.",
)
@click.option("--times", type=click.IntRange(1), help="Looks of --watch at most.")
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
    """Show the share-partitions of groups: where each starts, what lags, what is in flight, how its records ended.

    What hinders a share-partition is said under the tables. `-` stands where it is not initialised yet. RATE is in
    records that ended a second: with --watch between two looks, with --state since the first report of the last hour;
    else it is not known.
    """
    if sum((offsets, members, state)) > 1:
        raise click.UsageError("--offsets, --members, --state: take one of them")
    if watch and (members or state):
        raise click.UsageError("--watch shows share-partitions: leave out --members and --state")
    paced = context.get_parameter_source("every") is ParameterSource.COMMANDLINE
    if not watch and (paced or times is not None):
        raise click.UsageError("--every and --times are of --watch")
    if watch and output.format == "json":
        raise click.UsageError("--watch prints many results: take -o jsonl")
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
                (_state_row(database, group) for group in named.of(database)), now=State(database).now()
            )
        elif watch:
            _watch(database, output, named, every, times)
        else:
            _show(output, _look(database, named), State(database).now())


def _show(output: Output, rows: Sequence[Mapping[str, Any]], now: datetime) -> None:
    output.rows(rows, (*_NAME, *_NOW), (*_NAME, *_ENDED), now=now)
    for row in rows:
        if row.get("remark"):
            at = f"{row['group']} {row['topic']}-{row['partition']}"
            output.note(printable(f"REMARK {at}: {row['remark']}"))


def _watch(database: Database, output: Output, named: GroupsNamed, every: float, times: int | None) -> None:
    """Print figures until somebody stops it. The rate is of what ended between two looks."""
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
    """The figures of the share-partitions of the groups, and the names of those that are not initialised."""
    figures = State(database).figures
    rows: list[dict[str, Any]] = []
    for group in named.of(database):
        times = {(row["topic"], row["partition"]): row for row in database.rows(_TIMES, group_id=group)}
        found = [
            {
                **_figures(each),
                "created_at": times[each.topic, each.partition]["created_at"],
                "last_written_at": times[each.topic, each.partition]["written_at"],
            }
            for each in figures.describe(group)
            if (each.topic, each.partition) in times
        ]
        found += [
            {"group": group, "topic": topic, "partition": partition}
            for topic, partition in awaited_share_partitions(database, group)
        ]
        rows += sorted(found, key=lambda row: (str(row["topic"]), row["partition"]))
    return rows


def _figures(each: SharePartitionStatus) -> dict[str, Any]:
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
        "state_epoch": each.state_epoch,
        "topic_id": each.topic_id,
        "oldest_offset": each.oldest_offset,
        "oldest_since": each.oldest_since,
        "accepted": each.accepted,
        "rejected": each.rejected,
        "exhausted": each.exhausted,
        "gap": each.gap,
        "no_dlq": each.no_dlq,
        "dropped_letters": each.dropped_letters,
        "blocked_by": each.blocked_by,
        "blocked_until": each.blocked_until,
        "blocked_offset": each.blocked_offset,
        "remark": each.remark,
    }


def _state_row(database: Database, group: str) -> dict[str, Any]:
    found, figures = describe_group(database, group), read_figures(database, group)
    created = {row["group_id"]: row["created_at"] for row in database.rows(_CREATED)}
    drain, oldest = figures.time_to_drain_seconds, figures.oldest_age_seconds
    return {
        "group": group,
        "state": found.group_state,
        "members": len(found.members),
        "group_epoch": found.group_epoch,
        "assignment_epoch": found.assignment_epoch,
        "lag": figures.lag,
        "acquired": figures.acquired,
        "rate": None if figures.throughput is None else round(figures.throughput, 1),
        "time_to_drain": None if drain is None else timedelta(seconds=drain),
        "oldest_age": None if oldest is None else timedelta(seconds=oldest),
        "stuck_leases": figures.stuck_leases,
        "created_at": created.get(group),
    }


def member_rows(group: str, members: Iterable[MemberDescription]) -> list[dict[str, Any]]:
    """Return a row for each member of a group."""
    return [
        {
            "group": group,
            "consumer_id": each.member_id,
            "host": each.client_host or None,
            "client_id": each.client_id or None,
            "partitions": each.partitions,
            "member_epoch": each.member_epoch,
            "assignment": each.assigned or None,
            "subscription": ",".join(each.subscribed_topic_names),
            "joined_at": each.joined_at,
            "session_expires_at": each.session_expires_at,
        }
        for each in members
    ]


def _members(database: Database, named: GroupsNamed) -> list[dict[str, Any]]:
    """Rows of the members of the groups that are named. Raises GroupIdNotFound."""
    return [
        row
        for group in named.of(database)
        for row in member_rows(group, describe_group(database, group).members)
    ]


def _state_over_http(service: Service, named: GroupsNamed) -> list[dict[str, Any]]:
    """Rows of the groups that are named; the rate and what hangs on it only the database knows."""
    rows = []
    for group in named.among(service.names):
        found, figures = service.describe(group), service.figures(group)
        rows.append(
            {
                "group": group,
                "state": found["group_state"],
                "members": len(found["members"]),
                "group_epoch": found["group_epoch"],
                "assignment_epoch": found["assignment_epoch"],
                "lag": sum(each["lag"] for each in figures),
                "acquired": sum(each["acquired"] for each in figures),
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
    """Show who is in groups, what each is assigned, and with --verbose until when its session lasts."""
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
    """Show where groups start and end: `-` for a partition that is asked for and not initialised."""
    wanted = parse_topics(topics)
    awaited: set[str] = set()
    if (service := service_of(settings)) is not None:
        with service:
            found = {group: service.figures(group) for group in named.among(service.names)}
    else:
        with Database.open(settings) as database:
            figures = State(database).figures
            found = {
                group: [_figures(each) for each in figures.describe(group)] for group in named.of(database)
            }
            for group in found:
                awaited |= {topic for topic, _ in awaited_share_partitions(database, group)}
    rows: list[dict[str, Any]] = []
    known = awaited | {row["topic"] for partitions in found.values() for row in partitions}
    for topic in wanted:
        if topic not in known:
            raise UnknownTopicOrPartition(
                f"No share-partition of topic {topic} there. {nearest(topic, known, 'topics')}"
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
