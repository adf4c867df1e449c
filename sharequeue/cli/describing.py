"""`sharequeue groups describe`: the position of groups, their state, and their members.

The figures and their columns are those of `sharequeue.domain.figures`, the remarks are made in
`sharequeue.reports.remarks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import click
import sqlalchemy as sa

from sharequeue.cli.options import GroupsNamed, groups_option, parse_topics, settings_options, topic_option
from sharequeue.cli.output import Column, Output, age, answers, moment, number, row_of, text
from sharequeue.database import Database
from sharequeue.domain.errors import UnknownTopicOrPartition
from sharequeue.domain.figures import Figure, GroupFigures, SharePartitionStatus, figures_of
from sharequeue.domain.names import listed, nearest, printable
from sharequeue.domain.settings import Settings
from sharequeue.groups.descriptions import describe_group
from sharequeue.reports.ages import read_ages
from sharequeue.reports.read import read_figures
from sharequeue.reports.remarks import Remark, TopicWatch, joined_remarks, lines_of, remarks_of
from sharequeue.state import State

_KINDS = {"text": text, "time": moment, "seconds": age}
_NAME = ("GROUP", "TOPIC", "PARTITION")
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


KEYS: tuple[Column, ...] = (
    text("GROUP"),
    text("TOPIC"),
    number("PARTITION"),
    text("KEY-HASH"),
    number("FIRST-OFFSET"),
    text("STATE"),
    number("HELD"),
    moment("SINCE"),
    moment("UNTIL", wide=True),
)
MOST_KEYS = 1_000


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
    views={"--members": MEMBERS, "--state": STATES, "--keys": KEYS},
)
@groups_option()
@topic_option
@click.option("--members", is_flag=True, help="Show the members instead.")
@click.option("--state", is_flag=True, help="Show one row for each group instead: state, lag, rate.")
@click.option(
    "--keys", is_flag=True, help="Show the open keys of groups ordered by key instead, the oldest first."
)
def describe(
    settings: Settings,
    output: Output,
    named: GroupsNamed,
    topics: Sequence[str],
    members: bool,
    state: bool,
    keys: bool,
) -> None:
    """Show the share-partitions of groups: start, lag, records in flight, and outcomes.

    Whatever blocks a share-partition, and a lag that is not current, is listed under the tables. `-` marks one that
    is not initialised yet. RATE, of --state, is the number of records that ended per second since the first report
    of the last hour.
    """
    if sum((bool(topics), members, state, keys)) > 1:
        raise click.UsageError("--topic, --members, --state, --keys: give only one of them")
    with Database.open(settings) as database:
        groups, now = named.of(database), State(database).now()
        if members:
            found = [row for group in groups for row in _members(database, group)]
            output.view("--members").rows(found, now=now)
            return
        if keys:
            _show_keys(output, State(database), groups, now)
            return
        statuses = {group: State(database).figures.describe(group) for group in groups}
        watch = TopicWatch.read(database)
        remarks = {group: remarks_of(database, group, statuses[group], watch) for group in groups}
        if state:
            rows = [_state(settings, database, group, statuses[group], remarks[group]) for group in groups]
            output.view("--state").rows(rows, now=now)
        else:
            rows = [
                row for group in groups for row in _rows(database, group, statuses[group], remarks[group])
            ]
            rows = _chosen(rows, topics) if topics else rows
            _show(output, rows, now=now)
        _note_remarks(output, rows, remarks)


def _rows(
    database: Database, group: str, statuses: Sequence[SharePartitionStatus], remarks: Sequence[Remark]
) -> list[dict[str, Any]]:
    """Return the figures of a group's share-partitions, and the names of what has none, with the reason."""
    times = {(row["topic"], row["partition"]): row for row in database.rows(_TIMES, group_id=group)}
    texts = joined_remarks(remarks)
    if statuses:
        # Remarks on the whole group are printed below the table.
        texts.pop((None, None), None)
    rows = [
        {
            "group": group,
            "topic": each.topic,
            "partition": each.partition,
            "topic_id": each.topic_id,
            "created_at": since["created_at"],
            "last_written_at": since["written_at"],
            "remark": texts.pop((each.topic, each.partition), None),
        }
        | _cells(each)
        for each in statuses
        if (since := times.get((each.topic, each.partition)))
    ]
    rows += [
        {"group": group, "remark": text}
        | {name: part for name, part in (("topic", topic), ("partition", partition)) if part is not None}
        for (topic, partition), text in texts.items()
    ]
    return sorted(rows, key=lambda row: (str(row.get("topic")), row.get("partition", -1)))


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


def _note_remarks(
    output: Output, rows: Sequence[Mapping[str, Any]], remarks: Mapping[str, Sequence[Remark]]
) -> None:
    """Print each remark on a shown group or share-partition once, with all that it is about."""
    shown = {(row["group"], row.get("topic"), row.get("partition")) for row in rows}
    for group, of_group in remarks.items():
        whole = (group, None, None) in shown
        found = [
            each
            for each in of_group
            if whole or each.topic is None or (group, each.topic, each.partition) in shown
        ]
        for line in lines_of(found):
            about = " ".join(filter(None, (group, listed(line.about))))
            output.note(printable(f"REMARK {about}: {line.remark}"))


def _state(
    settings: Settings,
    database: Database,
    group: str,
    statuses: Sequence[SharePartitionStatus],
    remarks: Sequence[Remark],
) -> dict[str, Any]:
    found = describe_group(database, group)
    ages = read_ages(settings, statuses, State(database).now())
    return {
        **row_of(found, group=group, state=found.group_state, members=len(found.members)),
        **_cells(read_figures(database, group, ages)),
        # Without share-partitions, the group has no start offset yet, so its lag is not known.
        **({} if statuses else {"lag": None}),
        "remark": "; ".join(line.text for line in lines_of(remarks)) or None,
    }


def _show_keys(output: Output, state: State, groups: Sequence[str], now: datetime) -> None:
    """Show the oldest open keys of each group."""
    rows: list[dict[str, Any]] = []
    for group in groups:
        found = state.figures.open_keys(group, MOST_KEYS + 1)
        rows += [
            row_of(each, group=group, key_hash=each.key_hash.hex, held=each.held_records)
            for each in found[:MOST_KEYS]
        ]
        if len(found) > MOST_KEYS:
            output.warn(f"{group} has more open keys than the {MOST_KEYS:,} oldest, which are shown")
    output.view("--keys").rows(rows, now=now)


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
