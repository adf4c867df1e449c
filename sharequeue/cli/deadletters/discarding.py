"""`sharequeue dlq discard`: discard dead letters, so that no redrive sends them."""

from __future__ import annotations

import click

from sharequeue.cli.deadletters.effects import FREED, freed_cells, warn_if_none, warn_of_freed
from sharequeue.cli.deadletters.selecting import selection_options
from sharequeue.cli.failures import CommandRefused
from sharequeue.cli.options import execute_option, settings_options, topic_argument
from sharequeue.cli.output import Output, answers, number, text
from sharequeue.database import Database
from sharequeue.deadletters.redrive.discard import Discard, Discarded, DiscardPlan
from sharequeue.deadletters.redrive.selection import RedriveRefused, Selection
from sharequeue.domain.names import plural
from sharequeue.domain.settings import Settings

__all__ = ["discard"]


@click.command()
@settings_options
@answers(
    text("SOURCE-TOPIC"),
    text("CAUSE"),
    number("LETTERS"),
    number("DISCARDED"),
    number("FREED-KEYS"),
    number("FREED-RECORDS"),
)
@selection_options
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
            done = work.run(plan) if execute else None
        except RedriveRefused as error:
            raise CommandRefused(error) from error
    _warn_of_plan(output, topic, selection, plan)
    if done is None:
        _print_plan(output, topic, plan)
    else:
        _print_done(output, plan, done)
    output.note(f"{plan.sent_before} were sent before, {plan.discarded_before} were discarded before")


def _warn_of_plan(output: Output, topic: str, selection: Selection, plan: DiscardPlan) -> None:
    """Name the records and the letters of the selection that are not counted, and keys without a letter."""
    for warning in filter(None, (plan.unreadable, *map(str, plan.hidden))):
        output.warn(warning)
    if not plan.absent_letters:
        warn_if_none(output, topic, selection, plan)
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


def _print_plan(output: Output, topic: str, plan: DiscardPlan) -> None:
    """Print what would be discarded, by source topic and cause."""
    rows = [
        {"source_topic": source, "cause": cause, "letters": letters}
        for (source, cause), letters in sorted(plan.by_source.items())
    ]
    output.rows(rows, ("SOURCE-TOPIC", "CAUSE", "LETTERS"))
    warn_of_freed(output, plan.freed, "they are delivered next")
    if plan.letters:
        output.warn(
            f"no redrive sends a discarded letter, and this cannot be undone; the letters stay in {topic} until "
            "its retention removes them, and their groups do not get the records again"
        )


def _print_done(output: Output, plan: DiscardPlan, done: Discarded) -> None:
    """Print what was discarded."""
    output.rows([{"discarded": done.letters} | freed_cells(done.freed)], ("DISCARDED", *FREED))
    if done.letters < plan.letters:
        output.warn(f"{plan.letters - done.letters:,} were sent, discarded or taken by a redrive meanwhile")
