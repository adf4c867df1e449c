"""`sharequeue consume`: print records of a topic, as Kafka's `kafka-console-share-consumer.sh` does.

Each is acknowledged once it is printed. With `--browse` nothing is leased: the unfinished records of the group are
read without a membership, and no delivery is counted.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import click
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    AcknowledgeType,
    KafkaException,
    Message,
)

from sharequeue.cli.failures import CommandRefused
from sharequeue.cli.options import LONGEST_SECONDS, Whole, named_group, settings_options
from sharequeue.cli.output import Output, answers, moment, nested, number, text
from sharequeue.database import Database
from sharequeue.domain.errors import CoordinatorNotAvailable, UnknownTopicOrPartition
from sharequeue.domain.names import nearest
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.record_bytes import text_of
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.group_names import awaited_share_partitions, require_group
from sharequeue.kafka.damage import is_unreadable
from sharequeue.kafka.headers import PROBLEM, REMARK, Headers, headers_of
from sharequeue.kafka.reading import offset_of, place_of, scan
from sharequeue.kafka.topics import Topics
from sharequeue.reports.read import read_windows
from sharequeue.state import State

GROUP = "console-share-consumer"
"""The default group, as in Kafka."""
_SHOWN = {
    "print.timestamp": False,
    "print.partition": False,
    "print.offset": False,
    "print.delivery": False,
    "print.headers": False,
    "print.key": False,
    "print.value": True,
}
_SEPARATORS = {
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}
_POLL_S = 0.2


def _properties(context: click.Context, parameter: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    found = {name: str(value).lower() for name, value in _SHOWN.items()} | _SEPARATORS
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or name not in found:
            raise click.BadParameter(f"{each!r}: expected NAME=VALUE, with NAME one of {', '.join(found)}")
        found[name] = value
    return found


@click.command()
@settings_options
@answers(
    text("TOPIC"),
    number("PARTITION"),
    number("OFFSET"),
    moment("TIMESTAMP"),
    number("DELIVERY-COUNT"),
    text("STATE"),
    nested("HEADERS"),
    text("KEY"),
    text("VALUE"),
)
@click.option("--topic", "topics", multiple=True, required=True, help="The topic; may be repeated.")
@click.option("--group", default=GROUP, show_default=True, callback=named_group, help="The share group.")
@click.option("--max-messages", type=Whole(1), help="Maximum number of records; default: until Ctrl-C.")
@click.option(
    "--timeout-ms",
    type=Whole(0, 1000 * LONGEST_SECONDS),
    help="End after this time without a record.",
)
@click.option("--release", is_flag=True, help="Release each record, for delivery to any member.")
@click.option("--reject", is_flag=True, help="Reject each record: it becomes a dead letter.")
@click.option("--browse", is_flag=True, help="Only show unfinished records: no lock, no delivery count.")
@click.option(
    "--formatter-property",
    "--property",
    "properties",
    multiple=True,
    callback=_properties,
    metavar="NAME=VALUE",
    help="The format of a record: print.key=true, key.separator=: and so on, as in Kafka's tool.",
)
def consume(
    settings: Settings,
    output: Output,
    topics: Sequence[str],
    group: str,
    max_messages: int | None,
    timeout_ms: int | None,
    release: bool,
    reject: bool,
    browse: bool,
    properties: Mapping[str, str],
) -> None:
    """Print records of topics as a member of a share group, and accept them.

    The options are those of Kafka's `kafka-console-share-consumer.sh` without those that name Java classes or
    configure the client: --formatter, --formatter-config, --key-deserializer, --value-deserializer, --command-config,
    --command-property; keys and values are read as UTF-8. A new group starts at its share.auto.offset.reset,
    by default at the end. Ctrl-C releases records that are not yet printed.
    --browse ends at the end of the log, and needs only the permission to describe the group.
    """
    if sum((release, reject, browse)) > 1:
        raise click.UsageError("--release, --reject, --browse: give only one of them")
    if output.format == "json" and not browse:
        raise click.UsageError(
            "-o json prints one list at the end, when the records are already acknowledged: use -o jsonl"
        )
    kind = (
        AcknowledgeType.RELEASE if release else AcknowledgeType.REJECT if reject else AcknowledgeType.ACCEPT
    )
    wait_s = None if timeout_ms is None else timeout_ms / 1000
    found = (
        _browsed(settings, group, topics)
        if browse
        else _consumed(settings, group, topics, kind, max_messages, wait_s)
    )
    printed = 0
    listed: list[dict[str, Any]] = []
    try:
        for row in islice(found, max_messages) if browse else found:
            printed += 1
            if row["problem"] is not None:
                output.warn(f"{row['topic']}-{row['partition']} at offset {row['offset']}: {row['problem']}")
            if row["is_unreadable"]:
                continue
            if output.text:
                click.echo(_line(row, properties), nl=False)
            elif output.format == "jsonl":
                output.rows([row])
            else:
                listed.append(row)
        if output.format == "json":
            output.rows(listed)
    except KafkaException as error:
        kafkas = error.args[0]
        raise CommandRefused(kafkas.str(), kafkas.name()) from error
    finally:
        found.close()
        click.echo(f"Processed a total of {printed} messages", err=True)


def _consumed(
    settings: Settings,
    group: str,
    topics: Sequence[str],
    kind: AcknowledgeType,
    most: int | None,
    wait_s: float | None,
) -> Generator[dict[str, Any], None, None]:
    """Yield up to `most` records.

    Each is acknowledged once the next is requested; the others are released.
    """
    # Imported here: other commands do not need the consumer.
    from sharequeue.consumer import ShareConsumer

    config = {
        "group.id": group,
        "client.id": GROUP,
        "share.acknowledgement.mode": "explicit",
        # Records leased ahead would be released only at the end, after `most` records: late, though not counted.
        "sharequeue.prefetch.max.records": 0,
        "max.poll.records": min(most or 500, 500),
        "sharequeue.home": str(settings.home),
        "sharequeue.database.url": settings.database_url,
        "bootstrap.servers": settings.bootstrap_servers,
        "log_level": 3,
    }
    if settings.knows("service_url"):
        config["sharequeue.service.url"] = settings.service_url
    if (token := settings.service_token) is not None:
        config["sharequeue.service.token"] = token
    with Topics(settings) as broker:
        broker.require(topics)
    # A consumer waits for a database that is away, and a command ends with the error.
    with Database.open(settings) as database:
        State(database).now()
    with ShareConsumer(config) as consumer:
        consumer.subscribe(list(dict.fromkeys(topics)))
        heard, taken = time.monotonic(), 0
        while (most is None or taken < most) and (wait_s is None or time.monotonic() - heard < wait_s):
            messages = list(consumer.poll(_POLL_S))
            before = taken
            try:
                for message in messages[: None if most is None else most - taken]:
                    yield _row(message, message.delivery_count())
                    taken += 1
            finally:
                for index, message in enumerate(messages):
                    done = index < taken - before
                    if done and is_unreadable(message):
                        continue  # it is rejected or released unless it is acknowledged otherwise
                    consumer.acknowledge(message, kind if done else AcknowledgeType.RELEASE)
                if messages:
                    consumer.commit_sync()
                    heard = time.monotonic()
        if not consumer.metrics()["heartbeat-total"]:
            raise CoordinatorNotAvailable(
                f"No heartbeat of group {group} succeeded, so no record could be leased: the warning before has the "
                "reason, and `sharequeue doctor` checks the service."
            )


def _browsed(settings: Settings, group: str, topics: Sequence[str]) -> Generator[dict[str, Any], None, None]:
    """Yield the unfinished records of a group up to the end of the log, with their states."""
    with Database.open(settings) as database:
        require_group(database, group)
        found = {(each.topic, each.partition): each.spso for each in State(database).figures.describe(group)}
        known = {topic for topic, _ in (*found, *awaited_share_partitions(database, group))}
        for topic in topics:
            if topic not in known:
                hint = nearest(topic, known, f"topics of group {group}")
                raise UnknownTopicOrPartition(f"Group {group} does not read topic {topic}. {hint}")
        starts = {at: start for at, start in found.items() if at[0] in topics}
        windows = read_windows(database, group, dict.fromkeys(topics), most=None)
        states = {(window.topic, window.partition): window.states for window in windows}
        isolation = GroupConfigs.load(database, group).isolation_level
    with closing(scan(settings, isolation, starts)) as messages:
        for message in messages:
            state = _state(states.get(place_of(message), {}), offset_of(message))
            if state not in ("acknowledged", "archived"):
                yield {**_row(message, None), "state": state}


def _state(states: Mapping[str, OffsetSet], offset: int) -> str:
    return next((name for name, offsets in states.items() if offset in offsets), "fresh")


def _row(message: Message, deliveries: int | None) -> dict[str, Any]:
    kind, milliseconds = message.timestamp()
    headers = headers_of(message)
    value = None if is_unreadable(message) else message.value()  # it would be the error's text
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": milliseconds if kind else None,
        "timestamp_type": "LogAppendTime" if kind == TIMESTAMP_LOG_APPEND_TIME else "CreateTime",
        "delivery_count": deliveries,
        "headers": [[name, text_of(value, escaped=True)] for name, value in headers],
        "key": text_of(message.key(), escaped=True),
        "value": text_of(value, escaped=True),
        "problem": _problem(message, headers),
        "is_unreadable": is_unreadable(message),
    }


def _problem(message: Message, headers: Headers) -> str | None:
    """Return why a record could not be read whole; None if it could."""
    if headers == REMARK:
        return PROBLEM
    error = message.error()
    return None if error is None else error.str()


def _line(row: Mapping[str, Any], properties: Mapping[str, str]) -> str:
    """Format a record as Kafka's tool does: the requested parts, in its order, separated by tabs."""
    null = properties["null.literal"]
    pairs = (f"{name}:{null if value is None else value}" for name, value in row["headers"])
    headers = properties["headers.separator"].join(pairs)
    stamp, deliveries = row["timestamp"], row["delivery_count"]
    parts = {
        "print.timestamp": "NO_TIMESTAMP" if stamp is None else f"{row['timestamp_type']}:{stamp}",
        "print.partition": f"Partition:{row['partition']}",
        "print.offset": f"Offset:{row['offset']}",
        "print.delivery": f"Delivery:{'NOT_PRESENT' if deliveries is None else deliveries}",
        "print.headers": headers or "NO_HEADERS",
        "print.key": null if row["key"] is None else row["key"],
        "print.value": null if row["value"] is None else row["value"],
    }
    wanted = [part for name, part in parts.items() if properties[name].lower() == "true"]
    return properties["key.separator"].join(wanted) + properties["line.separator"]


COMMANDS = (consume,)
