"""`sharequeue run`: a pipeline without Dagster, from the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sharequeue.cli.failures import CommandRefused, code_of
from sharequeue.cli.objects import load_job
from sharequeue.cli.options import Finite, Whole, settings_options
from sharequeue.cli.orders import carried_out
from sharequeue.cli.output import Output, answers, flag, nested, number, text
from sharequeue.cli.piped import Piped, opened_pipes
from sharequeue.database import Database
from sharequeue.domain.errors import PipelineError
from sharequeue.domain.results.launches import LaunchedRun
from sharequeue.domain.results.runs import FullRun
from sharequeue.domain.settings import Settings
from sharequeue.state import State

if TYPE_CHECKING:
    from sharequeue.spark import RunReport
    from sharequeue.spark.job import RunBounds

TRIED = 100
"""The default number of records for `--dry-run`."""
PROGRAM_ENDED = "PROGRAM_ENDED"
WHOLE_ERROR = "With --verbose, the whole error of Spark is shown as well."
WORK_LEFT = 3
"""The exit code of a run that did its work and left records for a later one."""

STOPPED = (
    "stopped: the records that the run held were given back and are delivered again, and those that it had "
    "acknowledged stay done. To go on, run the same command again"
)


@click.command()
@settings_options
@answers(
    text("GROUP"),
    *map(
        number,
        (
            "LEASED",
            "ACCEPTED",
            "RELEASED",
            "REJECTED",
            "GAPS",
            "EXHAUSTED",
            "WITHOUT-ROW",
            "LOST",
            "UNACKNOWLEDGED",
        ),
    ),
    number("LAG"),
    flag("DRAINED"),
    number("SECONDS"),
    number("START-SECONDS"),
    text("REMARK"),
    nested("DEAD-LETTERS"),
    nested("ROUNDS"),
    number("LEFT"),
    number("RECORDS"),
    nested("OUTCOMES"),
    nested("ERRORS"),
    one=True,
)
@click.option(
    "--max-rounds",
    type=Whole(1),
    help="Maximum number of rounds of lease, write and acknowledge; default: no limit.",
)
@click.option("--max-records", type=Whole(1), help="Maximum records leased in a round; default: 10,000,000.")
@click.option(
    "--max-bytes",
    type=Whole(0),
    help="Maximum bytes leased in a round; default: the value of the group.",
)
@click.option("--max-seconds", type=Finite(0), help="Seconds after which no new round begins.")
@click.option(
    "--follow",
    is_flag=True,
    help="Keep running: wait for records, and process them as they arrive, until stopped or at a limit.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only try the handler on the next records: nothing is leased, written or acknowledged.",
)
@click.option("--records", type=Whole(1), help=f"Number of records that `--dry-run` tries; default: {TRIED}.")
@click.option(
    "--replaces",
    metavar="PIPELINE",
    help="The pipeline that worked on the group before, if this one replaces it.",
)
@click.option(
    "--allow-left", is_flag=True, help="End with 0, not with 3, if records are left for a later run."
)
@click.option("--progress/--no-progress", default=True, show_default=True, help="Show progress on stderr.")
@click.option(
    "--pipes",
    metavar="MODULE:FUNCTION",
    help="The function that opens the context of Dagster Pipes, if it is in a store.",
)
@click.option("--dagster-pipes-context", hidden=True, help="What some Pipes clients add.")
@click.option("--dagster-pipes-messages", hidden=True, help="What some Pipes clients add.")
@click.argument("job", metavar="MODULE:JOB", required=False)
@click.pass_context
def run(
    context: click.Context,
    settings: Settings,
    output: Output,
    max_rounds: int | None,
    max_records: int | None,
    max_bytes: int | None,
    max_seconds: float | None,
    follow: bool,
    dry_run: bool,
    records: int | None,
    replaces: str | None,
    allow_left: bool,
    progress: bool,
    pipes: str | None,
    dagster_pipes_context: str | None,
    dagster_pipes_messages: str | None,
    job: str | None,
) -> None:
    """Run a pipeline until nothing is left to lease, such as `sharequeue run my_module:orders`.

    Modules in the working directory can be imported, as with `python -m`. Ctrl-C ends the run as cancelled: its
    records are given back together, and none becomes a suspect.

    With `--follow` it keeps its Spark session and its membership, and waits for notifications of records. It waits
    for a server that is away, also at the start. With `-o json`, stdout then has a line for each run that did
    something.

    Exit codes: 0 nothing is left; 3 records are left for a later run, or a partition has no leader; 1 failed; 130
    stopped by Ctrl-C, 143 by SIGTERM; 2 the command line is wrong. Without `--follow`, `-o json` writes only one line
    of figures to stdout.

    Where Dagster has launched it (`run.launch` in a defs.yaml), Dagster decides on the work, the job and the limits,
    and gets the progress and the result. The exit code is 0 if the work is done.
    """
    # Imported here: other commands do not need Spark.
    from sharequeue.spark.leasing.budget import MAX_RECORDS

    if records is not None and not dry_run:
        raise click.UsageError("--records needs --dry-run; a run has --max-records")
    if follow and dry_run:
        raise click.UsageError("--follow keeps running, but --dry-run only tries: give one of them")
    if (piped := opened_pipes(pipes, shown=progress)) is not None:
        given = (max_rounds, max_records, max_bytes, max_seconds, replaces)
        with piped:
            _run_piped(
                piped, settings, output, job, follow or dry_run or any(each is not None for each in given)
            )
        return
    if job is None:
        raise click.UsageError("Missing argument 'MODULE:JOB'.")
    bounds: RunBounds = {
        "max_rounds": max_rounds,
        "max_records": max_records or MAX_RECORDS,
        "max_bytes": max_bytes,
        "max_seconds": max_seconds,
        "replaces": replaces,
    }
    results = sys.stdout
    with pipeline_code(output, "stopped" if dry_run else STOPPED):
        found = load_job(job)
        if follow:

            def on_run(report: RunReport) -> None:
                with redirect_stdout(results):
                    _print_report(output, report)

            followed = found.follow(settings, progress=progress, on_run=on_run, **bounds)
        elif not dry_run:
            report = found.run(settings, progress=progress, **bounds)
        else:
            trial = found.try_on(records or TRIED, settings)
    if dry_run:
        output.one_row(asdict(trial), str(trial))
        return
    if follow:
        output.note(str(followed))
        return
    left = _left(settings, report, found.topics)
    output.one_row({**asdict(report), "left": left}, str(report))
    if (left or not _is_known(report)) and not allow_left:
        context.exit(WORK_LEFT)


def _run_piped(piped: Piped, settings: Settings, output: Output, job: str | None, has_limits: bool) -> None:
    """Do what Dagster has launched this command for, and print the figures of a run."""
    order = piped.order
    stopped = STOPPED if isinstance(order, LaunchedRun) else "stopped"
    with pipeline_code(output, stopped), piped.failures_reported():
        if has_limits:
            raise click.UsageError(
                "Dagster has launched this run: give its limits in `run` of the defs.yaml, not on the command line"
            )
        answers = []
        for answer in carried_out(order, settings, job, piped.log):
            piped.answer(answer)
            answers.append(answer)
    for answer in answers:
        if isinstance(answer, FullRun):
            left = _left(settings, answer.report, order.pipeline["topics"])
            output.one_row({**asdict(answer.report), "left": left}, str(answer.report))
        else:
            output.note(str(answer))


def _is_known(report: RunReport) -> bool:
    """Return whether it is known what is left: not without an assignment, and not of partitions without a leader."""
    return bool(report.drained or report.rounds) and not report.leaderless


def _print_report(output: Output, report: RunReport) -> None:
    """Print the result of one of many runs immediately, for programs that read it as a stream."""
    if not output.text:
        output.one_row(asdict(report), "")
        sys.stdout.flush()


def _left(settings: Settings, report: RunReport, topics: Sequence[str]) -> int:
    """Count the records for a later run: unfinished ones, and dead letters that this run could not write.

    Dead letters that a service writes do not count.
    """
    with Database.open(settings) as database:
        found = [each for each in State(database).figures.describe(report.group) if each.topic in topics]
    letters = report.dead_letters.left if report.dead_letters else 0
    return sum(each.lag - each.archiving for each in found) + letters


@contextmanager
def pipeline_code(output: Output, stopped: str = "stopped") -> Iterator[None]:
    """Call a pipeline in the block. What its code prints is not a result, and goes to stderr unless the results are
    for people. Raises CommandRefused for the errors of pipelines and for `sys.exit` in their code, and Abort with the
    text `stopped` after Ctrl-C.
    """
    # Imported here: other commands do not need Spark.
    from sharequeue.spark.handler import unlogged
    from sharequeue.spark.job_errors import SPARK_ERRORS, for_user
    from sharequeue.spark.signals import Terminated

    try:
        with unlogged(), nullcontext() if output.text else redirect_stdout(sys.stderr):
            yield
    except (PipelineError, *SPARK_ERRORS) as error:
        shown, whole = for_user(error)
        if whole and output.verbose:
            click.echo(whole, err=True)
        raise CommandRefused(
            f"{shown}\n{WHOLE_ERROR}" if whole and not output.verbose else str(shown), code_of(shown)
        ) from error
    except KeyboardInterrupt:
        raise click.Abort(stopped) from None
    except Terminated:
        raise
    except SystemExit as error:
        raise CommandRefused(
            f"the pipeline's code ended the program with exit code {error.code!r}: the command did not finish. "
            "Remove `sys.exit` from the module, and raise an error instead",
            PROGRAM_ENDED,
        ) from error


COMMANDS = (run,)
