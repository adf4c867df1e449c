"""`sharequeue dlq purge` and `dlq forget`: letters deleted, as far as Kafka can.

Nothing is deleted without `--execute`. A partition can only be deleted from its start up to an offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from sharequeue.cli.options import Moment, execute_option, settings_options
from sharequeue.cli.output import Output, answers, moment, number, text
from sharequeue.database import Database
from sharequeue.redrive.purging import Copies, Purge, PurgedPartition
from sharequeue.settings import Settings


def _before(context: click.Context, parameter: click.Parameter, given: Sequence[str]) -> dict[int, int]:
    try:
        return {
            int(partition): int(offset) for partition, _, offset in (text.partition(":") for text in given)
        }
    except ValueError as error:
        raise click.BadParameter(f"{' '.join(given)!r}: expected PARTITION:OFFSET, as in 0:1200") from error


_answers = answers(
    number("PARTITION"),
    number("FROM"),
    number("BEFORE"),
    number("LETTERS"),
    number("NOT-PUT-BACK"),
    moment("NEWEST"),
    text("GROUPS", cut=True),
    text("STATUS"),
)
_foreign_option = click.option(
    "--foreign", is_flag=True, help="Delete records among them that are no dead letters, too."
)


@click.command()
@settings_options
@_answers
@click.option(
    "--before",
    multiple=True,
    callback=_before,
    metavar="P:OFFSET",
    help="Delete what lies before this offset of a partition; repeatable.",
)
@click.option("--until", type=Moment(), help="Delete what was written before then, UTC if unsaid.")
@_foreign_option
@execute_option
@click.argument("topic")
def purge(
    settings: Settings,
    output: Output,
    before: dict[int, int],
    until: datetime | None,
    foreign: bool,
    execute: bool,
    topic: str,
) -> None:
    """Delete the oldest letters of TOPIC, of all groups. Without --execute it only shows what would be deleted.

    Kafka deletes a partition from its start up to an offset, and nothing in between. It is written to the audit log.
    Refused are a topic that is no group's dead-letter topic, or the source of one, and records that are no letters.
    """
    if bool(before) == (until is not None):
        raise click.UsageError("give --before or --until, one of them")
    with Database.open(settings) as database:
        work = Purge(settings, database, topic)
        wanted = before if until is None else work.before_time(until)
        plans = work.plan(wanted, foreign=foreign)
        if execute:
            work.run(plans)
    _print_plans(plans, output, execute)
    output.note("deleted" if execute else "a dry run: nothing was deleted; --execute deletes")


@click.command()
@settings_options
@_answers
@_foreign_option
@execute_option
@click.argument("topic")
@click.argument("source_topic")
@click.argument("partition", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(0))
def forget(
    settings: Settings,
    output: Output,
    foreign: bool,
    execute: bool,
    topic: str,
    source_topic: str,
    partition: int,
    offset: int,
) -> None:
    """Delete the letters that TOPIC has of one record of SOURCE_TOPIC, and say where else the record is.

    Kafka cannot delete one letter: every letter before it in its partition, of all groups, is deleted with it.
    Without --execute it only shows what that would be. Letters of the record that are written later are not deleted.
    Refused is a record that can have no letter there: an unknown source topic or partition, an offset past its end.
    """
    with Database.open(settings) as database:
        work = Purge(settings, database, topic)
        copies = work.copies_of(source_topic, partition, offset)
        before: dict[int, int] = {}
        for letter in copies.letters:
            before[letter.partition] = max(before.get(letter.partition, 0), letter.offset + 1)
        plans = work.plan(before, foreign=foreign)
        if execute:
            work.run(plans)
    _print_plans(plans, output, execute)
    said = _said(copies, f"{source_topic}-{partition} offset {offset}", topic, execute)
    output.say(said)
    for line in _left(copies, source_topic, partition, offset):
        click.echo(f"left: {line}", err=True)


def _print_plans(plans: Sequence[PurgedPartition], output: Output, execute: bool) -> None:
    output.rows(
        {
            "partition": plan.partition,
            "from": plan.log_start,
            "before": plan.before,
            "letters": plan.letters,
            "not_put_back": plan.not_put_back,
            "newest": plan.newest,
            "groups": ", ".join(f"{group} ({count})" for group, count in sorted(plan.groups.items())),
            "status": "deleted" if execute else "dry run",
        }
        for plan in plans
    )


def _said(copies: Copies, record: str, topic: str, execute: bool) -> str:
    """What was done about the letters of a record, or why there is nothing to do."""
    if copies.letters:
        done = "deleted" if execute else "a dry run: nothing was deleted; --execute deletes"
        return f"{len(copies.letters)} letters of {record}: {done}"
    if copies.known.written_at is not None:
        written = copies.known.written_at.isoformat(timespec="seconds")
        return f"{topic} has no letter of {record} any more: Postgres has one as written at {written}"
    return f"{topic} has no letter of {record}, and Postgres has none as written"


def _left(copies: Copies, source_topic: str, partition: int, offset: int) -> list[str]:
    """What this command does not delete."""
    return [
        f"the record itself: {source_topic}-{partition} still has offset {offset}"
        if copies.in_source
        else f"nothing in {source_topic}-{partition}: it does not have offset {offset} any more",
        *(
            ["a letter of it that waits to be written: do this again after `sharequeue dlq drain`"]
            if copies.known.waits
            else []
        ),
        *(
            f"letters in {other}, where groups of {source_topic} have theirs: `sharequeue dlq forget {other} …`"
            for other in copies.elsewhere
        ),
        *(
            f"the record as it was put back into {target}: look for the header sharequeue.redrive.from = "
            f"…:{at[0]}:{at[1]}"
            for at, targets in sorted(copies.put_back_to.items())
            for target in targets
        ),
        "what runs wrote of it, if it was accepted later, and replays: the output folders or tables of its pipelines",
        "texts of exceptions: the Parquet files <sink>-exceptions, and the headers of its letters until the broker "
        "has removed them from its disk",
        "Great Expectations' validation results and Data Docs, which show examples of letters",
    ]
