"""`sharequeue dlq list` and `dlq show`: letters with their origin, cause, headers, key and value.

The topic is read committed, record by record: offsets include transaction markers, so they do not give the number.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any

import click
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.cli.deadletters.selecting import selection_options
from sharequeue.cli.failures import CommandRefused
from sharequeue.cli.options import Whole, settings_options, topic_argument
from sharequeue.cli.output import Output, answers, moment, nested, number, row_of, text
from sharequeue.cli.record_arguments import RecordCommand, record_arguments
from sharequeue.database import Database
from sharequeue.database.schema_files import SchemaOutdated
from sharequeue.deadletters.hidden import hidden_records
from sharequeue.deadletters.letters import DeadLetter, read_dead_letters
from sharequeue.deadletters.redrive.batches import UNHANDLED, HandledLetters, RedriveBatches
from sharequeue.deadletters.redrive.selection import LettersSeen, RedriveRefused, Selection, check_offsets
from sharequeue.domain.errors import ShareError, first_line
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.record_bytes import text_of
from sharequeue.domain.settings import SettingMissing, Settings
from sharequeue.groups.group_names import all_group_names
from sharequeue.kafka.topics import LogOffsets, Topics

__all__ = ["list_letters", "show"]


@click.command("list")
@settings_options
@answers(
    number("PARTITION"),
    number("OFFSET"),
    moment("WRITTEN-AT", wide=True),
    text("GROUP", wide=True),
    text("SOURCE-TOPIC"),
    number("SOURCE-PARTITION"),
    number("SOURCE-OFFSET"),
    number("DELIVERIES", wide=True),
    text("CAUSE"),
    text("STATUS"),
    text("ERROR", cut=True),
    nested("HEADERS", wide=True),
    text("KEY", wide=True),
    text("VALUE", wide=True),
)
@click.option("--limit", default=20, show_default=True, type=Whole(0), help="Number of letters; 0 for all.")
@click.option(
    "--base64", "as_base64", is_flag=True, help="Keys, values and headers in base64, byte for byte."
)
@selection_options
@topic_argument
def list_letters(
    settings: Settings, output: Output, limit: int, as_base64: bool, selection: Selection, topic: str
) -> None:
    """List the dead letters in TOPIC: the origin of each record, its deliveries, and the reason.

    STATUS is `sent` or `discarded` if no further redrive sends the letter. With -o jsonl --limit 0, each letter is
    one line with its headers, key and value.
    """
    logs = _logs(settings, topic, selection.offsets)
    seen = LettersSeen()
    found = seen.of(read_dead_letters(settings, topic, logs=logs))
    letters = islice((each for each in found if not each.foreign and selection.takes(each)), limit or None)
    first = next(letters, None)
    if first is None:
        _check_selection(settings, seen, selection, topic)
    handled = {} if first is None else _handled(settings, output, topic)
    rows = (
        {**_row(each, as_base64), "status": handled.get(each.partition, UNHANDLED).status(each.offset)}
        for each in chain(filter(None, [first]), letters)
    )
    output.rows(rows)
    if (note := seen.unreadable_note(topic)) is not None:
        output.warn(note)
    for hidden in hidden_records(settings, topic, logs):
        output.warn(str(hidden))
    if seen.others:
        output.warn(
            f"{seen.others:,} records of {topic} are not dead letters (they lack the headers), and are not listed"
        )


def _handled(settings: Settings, output: Output, topic: str) -> dict[int, HandledLetters]:
    """Return the letters that were sent back or discarded, by partition. Without the database, warn that this is not
    known: the letters themselves are in the topic."""
    try:
        with Topics(settings) as broker, Database.open(settings) as database:
            return RedriveBatches(database, topic, broker.info(topic).topic_id).handled()
    except (ShareError, SQLAlchemyError, SettingMissing, SchemaOutdated) as error:
        output.warn(f"could not check which letters were sent back or discarded: {first_line(error)}")
        return {}


def _row(letter: DeadLetter, as_base64: bool) -> dict[str, Any]:
    """Return a letter as a row. Bytes are text, with escapes if they are not UTF-8, or base64."""

    def content(given: bytes | None) -> str | None:
        return b64encode(given).decode() if as_base64 and given is not None else text_of(given, escaped=True)

    return row_of(
        letter,
        written_at=letter.written_ms,
        deliveries=letter.delivery_count,
        headers=[[name, content(value)] for name, value in letter.headers],
        key=content(letter.key),
        value=content(letter.value),
    )


@click.command(cls=RecordCommand)
@settings_options
@answers(text("NAME"), text("CONTENT", cut=True))
@record_arguments
def show(settings: Settings, output: Output, topic: str, partition: int, offset: int) -> None:
    """Show one dead letter of TOPIC in full: its headers, key and value."""
    logs = _logs(settings, topic, {partition: OffsetSet.of((offset, offset + 1))})
    only = {partition: logs[partition]}
    letters = read_dead_letters(settings, topic, {partition: offset}, only, {partition: offset + 1})
    letter = next((each for each in letters if each.offset == offset), None)
    if letter is None and offset >= logs[partition].last_stable_offset:
        (hidden,) = hidden_records(settings, topic, only)
        raise CommandRefused(f"{hidden}.", "BEHIND_OPEN_TRANSACTION")
    if letter is None:
        raise CommandRefused(
            f"{topic}-{partition} has no dead letter at offset {offset}: see `dlq list`.", "NO_SUCH_LETTER"
        )
    fields = [("key", letter.key), ("value", letter.value), *letter.headers]
    output.rows({"name": name, "content": text_of(content, escaped=True)} for name, content in fields)
    if letter.trace_command is not None:
        output.note(f"the life of its record: {letter.trace_command}")


def _check_selection(settings: Settings, seen: LettersSeen, selection: Selection, topic: str) -> None:
    """Refuse a selection that has found nothing because it names things that do not exist."""
    with Database.open(settings) as database, Topics(settings) as broker:
        try:
            seen.check(selection, topic, lambda: all_group_names(database), broker)
        except RedriveRefused as error:
            raise CommandRefused(error) from error


def _logs(settings: Settings, topic: str, offsets: Mapping[int, OffsetSet]) -> dict[int, LogOffsets]:
    """Return the start and end of a topic's partitions. Refuses offsets outside of them."""
    with Topics(settings) as broker:
        partitions, logs = broker.info(topic).partitions, broker.offsets(topic)
    try:
        check_offsets(topic, partitions, offsets, logs)
    except RedriveRefused as error:
        raise CommandRefused(error) from error
    return logs
