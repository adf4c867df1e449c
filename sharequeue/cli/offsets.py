"""`sharequeue offsets`: restart groups at other offsets, or delete their offsets.

The options are those of Kafka's `kafka-share-groups.sh`.

Nothing changes without `--execute`; both are refused while the group has members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import sqlalchemy as sa

from sharequeue.cli.failures import status_of, warn_of_letters
from sharequeue.cli.options import (
    TimeOption,
    create_group_option,
    duration,
    execute_option,
    group_option,
    parse_topics,
    require_group_or_flag,
    settings_options,
)
from sharequeue.cli.output import Output, answers, number, text
from sharequeue.database import Database
from sharequeue.domain.errors import NonEmptyGroup, ShareError, UnknownTopicOrPartition
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import ResetRow
from sharequeue.groups.group_names import listed_groups, require_among
from sharequeue.kafka.offset_resets import OffsetResets, ResetOffsets, of_file
from sharequeue.kafka.topics import Topics
from sharequeue.state import State

_FINISHED = sa.text(
    "select w.topic, w.partition, cast(range_agg(each) as text) as offsets"
    " from sharequeue.in_flight_windows w cross join unnest(w.offsets) as each"
    " where w.group_id = :group_id and w.state in ('acknowledged', 'archived') group by w.topic, w.partition"
)


@click.group()
def offsets() -> None:
    """Start offsets of groups: reset, delete them."""


@offsets.command()
@settings_options
@answers(
    text("GROUP"),
    text("TOPIC"),
    number("PARTITION"),
    number("NEW-OFFSET"),
    number("OLD-OFFSET"),
    number("PASSED-OVER"),
    text("STATUS"),
)
@group_option
@create_group_option
@click.option("--topic", "topics", multiple=True, help="A topic, or topic:0,1 for some of its partitions.")
@click.option("--all-topics", is_flag=True, help="Every topic with offsets of the group.")
@click.option("--to-earliest", is_flag=True, help="The start of the log.")
@click.option("--to-latest", is_flag=True, help="The end of the log.")
@click.option(
    "--to-current", is_flag=True, help="The group's current start; the end of the log if it has none."
)
@click.option("--to-offset", type=int, help="This offset; if it is outside the log, the nearest one inside.")
@click.option(
    "--to-datetime",
    type=TimeOption(),
    metavar="TIME",
    help="The first record at or after YYYY-MM-DDTHH:mm:SS.sss, UTC without a time zone.",
)
@click.option(
    "--by-duration",
    callback=duration,
    help="The first record of this long ago or later: an ISO-8601 duration, such as PT1H.",
)
@click.option(
    "--from-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The offsets in this file of topic,partition,offset lines.",
)
@click.option("--from-consumer-group", help="The committed offsets of this consumer group of the broker.")
@click.option("--export", is_flag=True, help="Print topic,partition,offset lines for --from-file.")
@execute_option
def reset(
    settings: Settings,
    output: Output,
    group: str,
    create_group: bool,
    topics: Sequence[str],
    all_topics: bool,
    export: bool,
    execute: bool,
    **ways: Any,
) -> None:
    """Restart --group at other offsets; its records in flight are forgotten, and earlier holders are fenced.

    --from-file reads lines of topic,partition,offset, as `kafka-share-groups.sh --reset-offsets --to-current
    --dry-run --export` prints them for a share group of the broker.
    """
    if export and not output.text:
        raise click.UsageError("--export prints lines of topic,partition,offset: leave out --export or -o")
    chosen = [name for name, value in ways.items() if value not in (None, False)]
    if len(chosen) != 1:
        raise click.UsageError("give exactly one --to-…, --by-… or --from-… option")
    (way,) = chosen
    if way == "by_duration":
        way, ways["to_datetime"] = "to_datetime", datetime.now(UTC) - ways[way]
    if topics and all_topics:
        raise click.UsageError("give --topic or --all-topics, not both")
    if way == "from_file" and (topics or all_topics):
        raise click.UsageError("--from-file has the topics: leave out --topic and --all-topics")
    if not (topics or all_topics) and way not in ("from_file", "from_consumer_group"):
        raise click.UsageError("give --topic or --all-topics")
    with Database.open(settings) as database, Topics(settings) as broker:
        State(database).administration.check_cluster(broker.cluster_id())
        if not create_group:
            require_group_or_flag(database, group)
        state = State(database)
        statuses = state.figures.describe(group)
        stored = {(each.topic, each.partition): each.spso for each in statuses}
        wanted = parse_topics(topics)
        if all_topics:
            wanted = dict.fromkeys(topic for topic, _ in stored)
            if not wanted:
                raise UnknownTopicOrPartition(f"Group {group} has no offsets yet: give topics with --topic.")
        warn_of_letters(each for each in statuses if each.topic in wanted or not wanted)
        start = _start(OffsetResets(broker, wanted), way, ways[way], stored)
        for warning in start.warnings:
            output.warn(warning)
        finished = _finished(database, group)
        gone = {
            (each.topic, each.partition): each.lag
            for each in statuses
            if start.topic_ids.get(each.topic, each.topic_id) != each.topic_id
        }
        rows = state.administration.reset_offsets(group, start.offsets, start.topic_ids, execute=execute)
    if export:
        for row in rows:
            click.echo(f"{row.topic},{row.partition},{row.start_offset}")
        return
    shown = [
        {
            "group": group,
            "topic": row.topic,
            "partition": row.partition,
            "new_offset": row.start_offset,
            "old_offset": row.before,
            "passed_over": _passed_over(row, finished, gone),
            "status": f"{row.error.name}: {row.error}"
            if row.error
            else "done"
            if execute
            else output.planned,
        }
        for row in rows
    ]
    if way == "to_datetime":
        output.note(f"the first records at or after {ways[way].isoformat(timespec='milliseconds')}")
    output.rows(shown)
    if passed := sum(_passed_over(row, finished, gone) or 0 for row in rows):
        output.warn(f"{passed:,} unfinished records are skipped: the group will never get them")
    if any(row.error for row in rows):
        raise click.exceptions.Exit(1)


def _finished(database: Database, group: str) -> dict[tuple[str, int], OffsetSet]:
    """Return the finished records of each share-partition after its start."""
    rows = database.rows(_FINISHED, group_id=group)
    return {(row["topic"], row["partition"]): OffsetSet.parse(row["offsets"]) for row in rows}


def _passed_over(
    row: ResetRow, finished: Mapping[tuple[str, int], OffsetSet], gone: Mapping[tuple[str, int], int]
) -> int | None:
    """Count the unfinished records between the two starts; None without an earlier start. If the topic was
    created again, these are all that its former records lacked.
    """
    if row.before is None or row.error:
        return None
    if (row.topic, row.partition) in gone:
        return gone[row.topic, row.partition]
    if row.start_offset <= row.before:
        return 0
    between = OffsetSet.of((row.before, row.start_offset))
    return (between - finished.get((row.topic, row.partition), EMPTY)).count


def _start(resets: OffsetResets, way: str, value: Any, stored: dict[tuple[str, int], int]) -> ResetOffsets:
    match way:
        case "to_earliest":
            return resets.to_earliest()
        case "to_latest":
            return resets.to_latest()
        case "to_current":
            return resets.to_current(stored)
        case "to_offset":
            return resets.to_offsets(int(value))
        case "to_datetime":
            return resets.to_datetime(value)
        case "from_file":
            return of_file(resets.topics, value)
    return resets.from_consumer_group(value)


@offsets.command()
@settings_options
@answers(text("TOPIC"), text("STATUS"))
@group_option
@click.option("--topic", "topics", multiple=True, required=True, help="A topic; may be repeated.")
@execute_option
def delete(settings: Settings, output: Output, group: str, topics: Sequence[str], execute: bool) -> None:
    """Delete the --group's state of the topics: a later subscription starts by the reset policy again."""
    rows: list[dict[str, object]] = []
    with Database.open(settings) as database:
        members = {each["group"]: each["members"] for each in listed_groups(database)}
        require_among(list(members), group)
        state = State(database)
        statuses = state.figures.describe(group)
        known = {each.topic for each in statuses}
        warn_of_letters(each for each in statuses if each.topic in topics)
        for topic in dict.fromkeys(topics):
            status = "Successful" if execute else output.planned
            try:
                if members[group] and not execute:
                    raise NonEmptyGroup(
                        f"Group {group} has {members[group]} members: stop them, or wait until their sessions expire."
                    )
                found = topic in known
                if execute:
                    found = state.administration.delete_offsets(group, topic) > 0
                if not found:
                    raise UnknownTopicOrPartition(
                        "There is no offset information to delete: check the topic's name."
                    )
            except ShareError as error:
                status = status_of(error)
            rows.append({"topic": topic, "status": status})
    output.rows(rows)
    if any(str(row["status"]).startswith("Error") for row in rows):
        raise click.exceptions.Exit(1)


COMMANDS = (offsets,)
