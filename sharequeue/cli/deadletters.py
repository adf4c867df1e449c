"""`sharequeue dlq`: the letters in a dead-letter topic, with their causes.

The topic is read committed, record by record: offsets include transaction markers, so they do not give the number.
"""

from __future__ import annotations

import functools
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import chain, islice
from typing import Any, Protocol

import click
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.cli.failures import CommandRefused
from sharequeue.cli.options import (
    OFFSET,
    PARTITION,
    Finite,
    TimeOption,
    Whole,
    execute_option,
    group_option,
    named_group,
    settings_options,
    topic_argument,
)
from sharequeue.cli.output import Output, answers, moment, nested, number, row_of, text
from sharequeue.database import Database
from sharequeue.database.schema_files import SchemaOutdated
from sharequeue.deadletters.hidden import HiddenRecords, hidden_records
from sharequeue.deadletters.letters import DeadLetter, read_dead_letters
from sharequeue.deadletters.redrive.batches import UNHANDLED, HandledLetters, RedriveBatches
from sharequeue.deadletters.redrive.discard import Discard, Discarded
from sharequeue.deadletters.redrive.redrive import MAX_REDRIVES, MIN_RATE, Redrive, RedrivePlan, RedriveReport
from sharequeue.deadletters.redrive.redriven_letters import refused_by_reason
from sharequeue.deadletters.redrive.selection import (
    LettersSeen,
    RedriveRefused,
    Selection,
    check_offsets,
    parse_header,
    parse_offsets,
)
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.domain.errors import ShareError, first_line
from sharequeue.domain.names import plural
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.record_bytes import text_of
from sharequeue.domain.settings import SettingMissing, Settings
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.group_names import all_group_names, require_group
from sharequeue.kafka.topics import LogOffsets, Topics
from sharequeue.state import State
from sharequeue.state.dead_letters import FreedKeys


def _offsets(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[int, OffsetSet]:
    try:
        return parse_offsets(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _header(context: click.Context, parameter: click.Parameter, given: str | None) -> tuple[str, str] | None:
    try:
        return None if given is None else parse_header(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_CHOICES = (
    click.option("--cause", type=click.Choice(["rejected", "exhausted"]), help="Only letters of this cause."),
    click.option(
        "--since", type=TimeOption(), help="Only letters written at or after this time; UTC without a zone."
    ),
    click.option(
        "--until", type=TimeOption(), help="Only letters written before this time; UTC without a zone."
    ),
    click.option("--group", callback=named_group, help="Only letters of this share group."),
    click.option("--source-topic", help="Only records of this topic."),
    click.option("--source-partition", type=PARTITION, help="Only records of this partition."),
    click.option(
        "--header",
        callback=_header,
        metavar="NAME=VALUE",
        help="Only letters with this header, by its exact text.",
    ),
    click.option(
        "--offsets",
        multiple=True,
        callback=_offsets,
        metavar="P:FIRST-LAST",
        help="Only letters at these offsets of the dead-letter topic; may be repeated.",
    ),
)


def _choosing(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select letters; the command gets them as one `selection`."""

    @functools.wraps(command)
    def chosen(
        *,
        cause: str | None,
        since: datetime | None,
        until: datetime | None,
        group: str | None,
        source_topic: str | None,
        source_partition: int | None,
        header: tuple[str, str] | None,
        offsets: dict[int, OffsetSet],
        **others: Any,
    ) -> None:
        selection = Selection(
            cause=cause,
            since=since,
            until=until,
            group=group,
            source_topic=source_topic,
            source_partition=source_partition,
            header=header,
            offsets=offsets,
        )
        command(selection=selection, **others)

    for option in reversed(_CHOICES):
        chosen = option(chosen)
    return chosen


@click.group()
def dlq() -> None:
    """Dead letters: records that were rejected, or failed too often."""


@dlq.command("list")
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
@_choosing
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


@dlq.command()
@settings_options
@answers(text("NAME"), text("CONTENT", cut=True))
@topic_argument
@click.argument("partition", type=PARTITION)
@click.argument("offset", type=OFFSET)
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


@dlq.command()
@settings_options
@answers(
    text("TARGET"),
    number("LETTERS"),
    text("OTHER-GROUPS", cut=True),
    number("SENT"),
    number("RESUMED"),
    number("GONE"),
    number("REFUSED"),
    number("DISCARDED"),
    number("FREED-KEYS"),
    number("FREED-RECORDS"),
)
@_choosing
@click.option("--to", "target", help="Send to this topic; default: each record's source.")
@click.option("--only-group", help="Runs of every other share group skip the records.")
@click.option(
    "--by-key",
    is_flag=True,
    help="Choose partitions by key; otherwise records return to their own partitions.",
)
@click.option("--rate", type=Finite(min=MIN_RATE), help="Maximum records per second.")
@click.option(
    "--max-redrives",
    default=MAX_REDRIVES,
    show_default=True,
    type=Whole(1),
    help="Records that were sent back this often are not sent again.",
)
@execute_option
@topic_argument
def redrive(
    settings: Settings,
    output: Output,
    selection: Selection,
    target: str | None,
    only_group: str | None,
    by_key: bool,
    rate: float | None,
    max_redrives: int,
    execute: bool,
    topic: str,
) -> None:
    """Send dead letters of TOPIC back, each once. Without --execute, only show what would be done."""
    with Database.open(settings) as database:
        try:
            work = Redrive(
                settings,
                database,
                topic,
                selection,
                target=target,
                only_group=only_group,
                by_key=by_key,
                rate=rate,
                max_redrives=max_redrives,
            )
            plan = work.plan()
            report = work.run(plan, output.say) if execute else None
        except RedriveRefused as error:
            raise CommandRefused(error) from error
    if plan.unreadable is not None:
        output.warn(plan.unreadable)
    _warn_if_none(output, topic, selection, plan)
    if gone := plan.gone if report is None else report.gone:
        output.warn(
            f"{gone:,} dead letters have no copy of their record, and the record is no longer in its topic, so they "
            f"cannot be sent. They stay in {topic}; `dlq show` prints what is known of each. The group config "
            "errors.deadletterqueue.copy.record.enable=true adds a copy to each new letter"
        )
    if bare := plan.without_headers if report is None else report.without_headers:
        output.warn(
            f"{plural(bare, 'dead letter')} with a copy of key and value only, as a broker's own share groups write "
            "it: the record is no longer in its topic, so it is sent without its headers"
        )
    if plan.published:
        output.warn(
            f"{plan.published:,} dead letters are left out: a replay with their records was published, so the group "
            "would have them twice"
        )
    for hidden in plan.hidden:
        output.warn(str(hidden))
    if report is not None:
        _warn_of_refused(output, topic, report)
        row = {
            "sent": report.sent,
            "resumed": report.resumed,
            "gone": report.gone,
            "refused": len(report.refused),
            "discarded": plan.discarded,
            **_freed(report.freed),
        }
        output.rows([row], ("SENT", "RESUMED", "GONE", "REFUSED", "DISCARDED", *_FREED))
        if not report.sent or report.looping:
            _note_held_back(output, plan, report.looping)
        return
    rows = [
        {"target": name, "letters": count, "other_groups": ", ".join(plan.other_groups.get(name, ())) or None}
        for name, count in sorted(plan.targets.items())
    ]
    output.rows(rows, ("TARGET", "LETTERS", "OTHER-GROUPS"))
    _warn_of_freed(output, plan.freed, "the records that are sent come after them, at the end of the log")
    for name, groups in plan.other_groups.items():
        output.warn(f"{', '.join(groups)} will also get what is sent to {name}; see --only-group")
    if plan.by_key:
        output.warn(
            f"{plan.by_key} come from partitions that their target topic does not have: keys choose the partition"
        )
    _note_held_back(output, plan)


_FREED = ("FREED-KEYS", "FREED-RECORDS")


def _freed(freed: FreedKeys) -> dict[str, int]:
    return {"freed_keys": freed.keys, "freed_records": freed.records}


def _warn_of_freed(output: Output, freed: FreedKeys, then: str) -> None:
    """Say which keys a dry run would let go on."""
    if freed:
        output.warn(
            f"{plural(freed.keys, 'key')} that these letters hold would go on, with "
            f"{plural(freed.records, 'held record')}; {then}"
        )


class _Plan(Protocol):
    """A plan for the letters of a selection."""

    @property
    def selected(self) -> int: ...
    @property
    def has_letters(self) -> bool: ...
    @property
    def hidden(self) -> tuple[HiddenRecords, ...]: ...


def _warn_if_none(output: Output, topic: str, selection: Selection, plan: _Plan) -> None:
    """Warn if a selection takes no letter."""
    if plan.selected:
        return
    if plan.has_letters:
        output.warn(f"{topic} has dead letters, but none of this selection: {selection}")
    elif not plan.hidden:
        output.warn(f"{topic} has no dead letters: check the topic's name")


def _warn_of_refused(output: Output, topic: str, report: RedriveReport) -> None:
    """Name the letters that could not be sent, as `--offsets` takes them, by the reason."""
    if not report.refused:
        return
    output.warn(
        f"{plural(len(report.refused), 'dead letter')} could not be sent, and stay in {topic}; the next redrive "
        f"tries them again, unless you discard them (`sharequeue dlq discard {topic} --offsets P:FIRST-LAST`):"
    )
    for reason, letters in refused_by_reason(report.refused).items():
        output.warn(f"{', '.join(letters)}: {reason}")


def _note_held_back(output: Output, plan: RedrivePlan, looping: int = 0) -> None:
    output.note(
        f"{plan.sent_before} were sent before, {plan.discarded} were discarded, {plan.looping + looping} were sent "
        "back too often (--max-redrives)"
    )


@dlq.command()
@settings_options
@answers(
    text("SOURCE-TOPIC"),
    text("CAUSE"),
    number("LETTERS"),
    number("DISCARDED"),
    number("FREED-KEYS"),
    number("FREED-RECORDS"),
)
@_choosing
@execute_option
@topic_argument
def discard(settings: Settings, output: Output, selection: Selection, execute: bool, topic: str) -> None:
    """Discard dead letters of TOPIC: no redrive sends them. Without --execute, only show what would be done.

    This cannot be undone. Nothing is deleted: the letters stay in TOPIC until its retention removes them.
    """
    with Database.open(settings) as database:
        try:
            work = Discard(settings, database, topic, selection)
            plan = work.plan()
            done = work.run(plan) if execute else Discarded()
        except RedriveRefused as error:
            raise CommandRefused(error) from error
    for warning in filter(None, (plan.unreadable, *map(str, plan.hidden))):
        output.warn(warning)
    if not plan.absent_letters:
        _warn_if_none(output, topic, selection, plan)
        if not plan.has_letters and selection != Selection():
            output.warn(
                f"keys that wait for letters which {topic} no longer has go on with `sharequeue dlq discard {topic}` "
                "without a condition"
            )
    if plan.being_sent:
        output.warn(
            f"{plural(plan.being_sent, 'dead letter')} of a redrive that has not ended may have been sent, and "
            "cannot be discarded: if its process is gone, do a redrive, which ends it, then discard what is left"
        )
    if plan.absent_letters:
        output.warn(
            f"letters that hold keys and are not in {topic}: {plan.absent_letters:,}. Its retention has removed "
            "them, or they are in an earlier dead-letter topic of the group. Their keys go on, too"
        )
    if execute:
        output.rows([{"discarded": done.letters} | _freed(done.freed)], ("DISCARDED", *_FREED))
        if done.letters < plan.letters:
            output.warn(
                f"{plan.letters - done.letters:,} were sent, discarded or taken by a redrive meanwhile"
            )
    else:
        rows = [
            {"source_topic": source, "cause": cause, "letters": letters}
            for (source, cause), letters in sorted(plan.by_source.items())
        ]
        output.rows(rows, ("SOURCE-TOPIC", "CAUSE", "LETTERS"))
        _warn_of_freed(output, plan.freed, "they are delivered next")
        if plan.letters:
            output.warn(
                f"no redrive sends a discarded letter, and this cannot be undone; the letters stay in {topic} until "
                "its retention removes them, and their groups do not get the records again"
            )
    output.note(f"{plan.sent_before} were sent before, {plan.discarded_before} were discarded before")


@dlq.command()
@settings_options
@answers(
    text("TOPIC"),
    number("PARTITION"),
    number("WAITING"),
    text("DEAD-LETTER-TOPIC"),
    text("REMARK"),
    number("WRITTEN"),
    number("RESUMED"),
    number("DROPPED"),
    number("HELD"),
    text("REASON"),
)
@group_option
@execute_option
def write(settings: Settings, output: Output, group: str, execute: bool) -> None:
    """Write the waiting dead letters of a group, each exactly once. Without --execute, only list them."""
    with Database.open(settings) as database:
        require_group(database, group)
        state, configs = State(database), GroupConfigs.load(database, group)
        if not execute:
            waiting = [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "waiting": each.archiving,
                    "dead_letter_topic": configs.dead_letter_topic or None,
                    "remark": each.held_reason,
                }
                for each in state.figures.describe(group)
                if each.archiving
            ]
            output.rows(waiting, ("TOPIC", "PARTITION", "WAITING", "DEAD-LETTER-TOPIC", "REMARK"))
            return
        report = DeadLetterWriter(settings, state, group, configs).write(output.say)
    held = {each.share_partition: each for each in report.held}
    done = {each.share_partition: each for each in report.partitions}
    rows = [
        {
            "topic": at.topic,
            "partition": at.partition,
            "written": done[at].written if at in done else 0,
            "resumed": done[at].resumed if at in done else 0,
            "dropped": done[at].dropped if at in done else 0,
            "held": held[at].records if at in held else 0,
            "reason": held[at].reason if at in held else None,
        }
        for at in sorted({*done, *held})
    ]
    output.rows(rows, ("TOPIC", "PARTITION", "WRITTEN", "RESUMED", "DROPPED", "HELD", "REASON"))
    if held:
        raise click.exceptions.Exit(1)


COMMANDS = (dlq,)
