"""`sharequeue dlq redrive`: send dead letters back to their topics."""

from __future__ import annotations

import click

from sharequeue.cli.deadletters.effects import FREED, freed_cells, warn_if_none, warn_of_freed
from sharequeue.cli.deadletters.selecting import selection_options
from sharequeue.cli.failures import CommandRefused
from sharequeue.cli.options import Finite, Whole, execute_option, settings_options, topic_argument
from sharequeue.cli.output import Output, answers, number, text
from sharequeue.database import Database
from sharequeue.deadletters.redrive.redrive import MAX_REDRIVES, MIN_RATE, Redrive, RedrivePlan, RedriveReport
from sharequeue.deadletters.redrive.redriven_letters import refused_by_reason
from sharequeue.deadletters.redrive.selection import RedriveRefused, Selection
from sharequeue.domain.names import plural
from sharequeue.domain.settings import Settings

__all__ = ["redrive"]


@click.command()
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
@selection_options
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
    warn_if_none(output, topic, selection, plan)
    _warn_of_left(output, topic, plan, report)
    if report is None:
        _print_plan(output, plan)
    else:
        _warn_of_refused(output, topic, report)
        _print_report(output, plan, report)


def _warn_of_left(output: Output, topic: str, plan: RedrivePlan, report: RedriveReport | None) -> None:
    """Name the letters that are left out, or sent without their headers."""
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


def _print_plan(output: Output, plan: RedrivePlan) -> None:
    """Print what a redrive would send, by target."""
    rows = [
        {"target": name, "letters": count, "other_groups": ", ".join(plan.other_groups.get(name, ())) or None}
        for name, count in sorted(plan.targets.items())
    ]
    output.rows(rows, ("TARGET", "LETTERS", "OTHER-GROUPS"))
    warn_of_freed(output, plan.freed, "the records that are sent come after them, at the end of the log")
    for name, groups in plan.other_groups.items():
        output.warn(f"{', '.join(groups)} will also get what is sent to {name}; see --only-group")
    if plan.by_key:
        output.warn(
            f"{plan.by_key} come from partitions that their target topic does not have: keys choose the partition"
        )
    _note_held_back(output, plan)


def _print_report(output: Output, plan: RedrivePlan, report: RedriveReport) -> None:
    """Print what a redrive has done."""
    row = {
        "sent": report.sent,
        "resumed": report.resumed,
        "gone": report.gone,
        "refused": len(report.refused),
        "discarded": plan.discarded,
        **freed_cells(report.freed),
    }
    output.rows([row], ("SENT", "RESUMED", "GONE", "REFUSED", "DISCARDED", *FREED))
    if not report.sent or report.looping:
        _note_held_back(output, plan, report.looping)


def _note_held_back(output: Output, plan: RedrivePlan, looping: int = 0) -> None:
    output.note(
        f"{plan.sent_before} were sent before, {plan.discarded} were discarded, {plan.looping + looping} were sent "
        "back too often (--max-redrives)"
    )
