"""`sharequeue groups describe`: the position of groups, their state, and their members.

The figures and their columns are those of `sharequeue.words.figures`. They are from Postgres: a log end is as old as
its last observation, so a remark says if that is late, and why a group has nothing to show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import click
import sqlalchemy as sa

from sharequeue.cli.options import GroupsNamed, groups_option, parse_topics, settings_options, topic_option
from sharequeue.cli.output import Column, Output, age, answers, moment, number, row_of, span, text
from sharequeue.database import Database
from sharequeue.groups.descriptions import describe_group
from sharequeue.groups.group_names import awaited_share_partitions
from sharequeue.groups.replicas import ALIVE_SECONDS, LATE_SECONDS, read_replicas
from sharequeue.reports.ages import read_ages
from sharequeue.reports.read import read_figures
from sharequeue.state import State
from sharequeue.words.errors import UnknownTopicOrPartition
from sharequeue.words.figures import Figure, GroupFigures, SharePartitionStatus, figures_of
from sharequeue.words.names import listed, nearest, printable
from sharequeue.words.settings import Settings

_KINDS = {"text": text, "time": moment, "seconds": age}
_NAME = ("GROUP", "TOPIC", "PARTITION")
_SUBSCRIBED = sa.text(
    "select distinct unnest(subscribed_topic_names) as topic from sharequeue.group_members"
    " where group_id = :group_id"
)
_TIMES = sa.text(
    "select topic, partition, created_at, written_at from sharequeue.share_partition_times where group_id = :group_id"
)


def _columns(kind: type) -> tuple[Column, ...]:
    """Return the columns of GroupFigures or SharePartitionStatus."""
    return tuple(
        _KINDS.get(each.unit, number)(each.command, wide=each.wide)
        for each in figures_of(kind)
        if each.command
    )


def _cells(row: GroupFigures | SharePartitionStatus) -> dict[str, Any]:
    """Return the figures of a group or a share-partition, by the keys of their columns."""
    kind: type = type(row)
    return {Column(each.command).key: _cell(each, row) for each in figures_of(kind) if each.command}


def _cell(figure: Figure, row: GroupFigures | SharePartitionStatus) -> Any:
    value = getattr(row, figure.name)
    if figure.unit == "seconds" and value is not None:
        return timedelta(seconds=value)
    return round(value, 1) if figure.unit == "records/s" and value is not None else value


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
    *_columns(GroupFigures),
    moment("CREATED-AT", wide=True),
    text("REMARK", wide=True),
)


@dataclass(frozen=True, slots=True)
class _Watch:
    """Whether the service reads the broker's topics now, and if it does not, why and what to do."""

    now: datetime
    trouble: str | None
    late_seconds: float
    """The age of an observation from which on a lag is not current."""

    @classmethod
    def of(cls, database: Database, now: datetime) -> Self:
        """Read it from what the replicas of the service have stored."""
        replicas = read_replicas(database)
        age, trouble = replicas.ages["watch"], None
        if not replicas.alive:
            trouble = (
                "no service is running: start one with `sharequeue serve`, or `sharequeue up` for the stack of this "
                "machine"
            )
        elif age is None or age > LATE_SECONDS["watch"]:
            late = "has not read the broker's topics yet"
            if age is not None:
                late = f"has not read the broker's topics for {span(timedelta(seconds=age))}"
            trouble = f"the service {late}: its log and `/ready` have the reason"
        return cls(now, trouble, LATE_SECONDS["watch"] if replicas.alive else ALIVE_SECONDS)

    def stale(self, status: SharePartitionStatus) -> str | None:
        """Return why the lag of a share-partition is not current; None if it is, or if another remark says it."""
        seen = status.observed_at
        if status.fault or (seen is not None and abs(self.now - seen).total_seconds() <= self.late_seconds):
            return None
        since = (
            "the end of the log has not been read yet: LAG does not count what is in it"
            if seen is None
            else f"the end of the log was last read at {seen.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC "
            f"({span(self.now - seen)} ago): LAG does not count newer records"
        )
        return f"{since}. The reason: {self.trouble or _TOPIC_NOT_READ}"


_TOPIC_NOT_READ = "the service is running, but does not get this topic: its log and `/ready` have the reason"


@click.command()
@settings_options
@answers(
    text("GROUP"),
    text("TOPIC"),
    number("PARTITION"),
    *_columns(SharePartitionStatus),
    text("TOPIC-ID", wide=True),
    moment("CREATED-AT", wide=True),
    moment("LAST-WRITTEN-AT", wide=True),
    text("REMARK", wide=True),
    views={"--members": MEMBERS, "--state": STATES},
)
@groups_option()
@topic_option
@click.option("--members", is_flag=True, help="Show the members instead.")
@click.option("--state", is_flag=True, help="Show one row for each group instead: state, lag, rate.")
def describe(
    settings: Settings,
    output: Output,
    named: GroupsNamed,
    topics: Sequence[str],
    members: bool,
    state: bool,
) -> None:
    """Show the share-partitions of groups: start, lag, records in flight, and how records ended.

    Whatever blocks a share-partition, and a lag that is not current, is listed under the tables. `-` marks one that
    is not initialised yet. RATE, of --state, is the number of records that ended per second since the first report
    of the last hour.
    """
    if sum((bool(topics), members, state)) > 1:
        raise click.UsageError("--topic, --members, --state: give only one of them")
    with Database.open(settings) as database:
        groups, now = named.of(database), State(database).now()
        if members:
            found = [row for group in groups for row in _members(database, group)]
            output.view("--members").rows(found, now=now)
            return
        watch = _Watch.of(database, now)
        if state:
            rows = [_state(settings, database, group, watch) for group in groups]
            output.view("--state").rows(rows, now=now)
            _note_remarks(output, rows)
        else:
            rows = [row for group in groups for row in _share_partitions(database, group, watch)]
            _show(output, rows if not topics else _chosen(rows, topics), now=now)


def _share_partitions(database: Database, group: str, watch: _Watch) -> list[dict[str, Any]]:
    """Return the figures of a group's share-partitions, and the names of what has none, with the reason."""
    times = {(row["topic"], row["partition"]): row for row in database.rows(_TIMES, group_id=group)}
    rows = [
        {
            "group": group,
            "topic": each.topic,
            "partition": each.partition,
            "topic_id": each.topic_id,
            "created_at": since["created_at"],
            "last_written_at": since["written_at"],
            "remark": "; ".join(filter(None, (each.remark, watch.stale(each)))) or None,
        }
        | _cells(each)
        for each in State(database).figures.describe(group)
        if (since := times.get((each.topic, each.partition)))
    ]
    not_yet = watch.trouble or "the service initialises it in seconds; if not, its log has the reason"
    rows += [
        {"group": group, "topic": topic, "partition": partition, "remark": f"not initialised yet: {not_yet}"}
        for topic, partition in awaited_share_partitions(database, group)
    ]
    absent = watch.trouble or (
        "the broker has no such topic, or does not show it to the service: check its name in the subscription, or "
        "create it"
    )
    subscribed = {row["topic"] for row in database.rows(_SUBSCRIBED, group_id=group)}
    rows += [
        {"group": group, "topic": topic, "remark": f"no share-partition of {topic} yet: {absent}"}
        for topic in subscribed - {row["topic"] for row in rows}
    ]
    return sorted(rows, key=lambda row: (str(row["topic"]), row.get("partition", -1))) or [
        {"group": group, "remark": _nothing(watch)}
    ]


def _nothing(watch: _Watch) -> str:
    """Return why a group without share-partitions and without a subscription has nothing to show."""
    why = (
        "no share-partition yet: no member subscribes to a topic. A run or a consumer creates them for its topics; "
        "if it has ended already, its error has the reason, such as a topic that does not exist"
    )
    return why if watch.trouble is None else f"{why}. Members cannot join: {watch.trouble}"


def _chosen(rows: Sequence[dict[str, Any]], topics: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of the named topics or partitions; a named partition without state has a row of its name only.

    Raises UnknownTopicOrPartition for an unknown topic.
    """
    wanted = parse_topics(topics)
    known = {row["topic"] for row in rows if "topic" in row}
    for topic in wanted:
        if topic not in known:
            raise UnknownTopicOrPartition(
                f"The group has no share-partition of topic {topic}. {nearest(topic, known, 'topics')}"
            )
    found = {
        (row["group"], row["topic"], row.get("partition")): row for row in rows if row.get("topic") in wanted
    }
    chosen = {
        (group, topic, each) for group, topic, partition in found for each in wanted[topic] or (partition,)
    }
    return [
        found.get(name) or dict(zip(("group", "topic", "partition"), name, strict=True))
        for name in sorted(chosen)
    ]


def _show(output: Output, rows: Sequence[dict[str, Any]], **given: Any) -> None:
    figures = [each for each in figures_of(SharePartitionStatus) if each.command]
    present = [each.command for each in figures if not each.ended]
    ended = [each.command for each in figures if each.ended]
    output.rows(
        rows,
        (*_NAME, *present, "TOPIC-ID", "CREATED-AT", "LAST-WRITTEN-AT"),
        (*_NAME, *ended),
        **given,
    )
    _note_remarks(output, rows)


def _note_remarks(output: Output, rows: Sequence[dict[str, Any]]) -> None:
    """Print each remark once, with the share-partitions or the group that it is about."""
    about: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.get("remark"):
            parts = [str(row[name]) for name in ("topic", "partition") if row.get(name) is not None]
            about.setdefault((row["group"], row["remark"]), []).append("-".join(parts))
    for (group, remark), places in about.items():
        output.note(printable(f"REMARK {' '.join(filter(None, (group, listed(places))))}: {remark}"))


def _state(settings: Settings, database: Database, group: str, watch: _Watch) -> dict[str, Any]:
    found, state = describe_group(database, group), State(database)
    statuses = state.figures.describe(group)
    stale = {f"{each.topic}-{each.partition}": remark for each in statuses if (remark := watch.stale(each))}
    ages = read_ages(settings, statuses, state.now())
    sums = read_figures(database, group, ages)
    remark = f"{listed(list(stale))}: {next(iter(stale.values()))}" if stale else None
    return {
        **row_of(found, group=group, state=found.group_state, members=len(found.members)),
        **_cells(sums),
        # Without share-partitions, the group has no start offset yet, so its lag is not known.
        **(
            {"remark": remark}
            if statuses
            else {"lag": None, "remark": _share_partitions(database, group, watch)[0]["remark"]}
        ),
    }


def _members(database: Database, group: str) -> list[dict[str, Any]]:
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
        for each in describe_group(database, group).members
    ]
