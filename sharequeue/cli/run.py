"""`sharequeue run`: a pipeline without Dagster, from the command line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sharequeue.cli.failures import CommandRefused, code_of
from sharequeue.cli.options import Finite, settings_options
from sharequeue.cli.output import Output, answers, flag, nested, number, text
from sharequeue.database import Database
from sharequeue.domain.names import nearest
from sharequeue.domain.settings import Settings
from sharequeue.state import State

if TYPE_CHECKING:
    from sharequeue.spark import Pipeline, RunReport
    from sharequeue.spark.job import RunBounds

TRIED = 100
"""The default number of records for `--dry-run`."""
NO_SUCH_JOB = "NO_SUCH_JOB"
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
    type=click.IntRange(1),
    help="Maximum number of rounds of lease, write and acknowledge; default: no limit.",
)
@click.option(
    "--max-records", type=click.IntRange(1), help="Maximum records leased in a round; default: 10,000,000."
)
@click.option(
    "--max-bytes",
    type=click.IntRange(0),
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
@click.option(
    "--records", type=click.IntRange(1), help=f"Number of records that `--dry-run` tries; default: {TRIED}."
)
@click.option(
    "--replaces",
    metavar="PIPELINE",
    help="The pipeline that worked on the group before, if this one replaces it.",
)
@click.option("--progress/--no-progress", default=True, show_default=True, help="Show progress on stderr.")
@click.argument("job", metavar="MODULE:JOB")
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
    progress: bool,
    job: str,
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
    """
    # Imported here: other commands do not need Spark.
    from sharequeue.spark.leasing.budget import MAX_RECORDS

    if records is not None and not dry_run:
        raise click.UsageError("--records needs --dry-run; a run has --max-records")
    if follow and dry_run:
        raise click.UsageError("--follow keeps running, but --dry-run only tries: give one of them")
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
    left = _left(settings, found, report)
    output.one_row({**asdict(report), "left": left}, str(report))
    if left or not _is_known(report):
        context.exit(WORK_LEFT)


def _is_known(report: RunReport) -> bool:
    """Return whether it is known what is left: not without an assignment, and not of partitions without a leader."""
    return bool(report.drained or report.rounds) and not report.leaderless


def _print_report(output: Output, report: RunReport) -> None:
    """Print the result of one of many runs immediately, for programs that read it as a stream."""
    if not output.text:
        output.one_row(asdict(report), "")
        sys.stdout.flush()


def _left(settings: Settings, job: Pipeline, report: RunReport) -> int:
    """Count the records for a later run: unfinished ones, and dead letters that this run could not write.

    Dead letters that a service writes do not count.
    """
    with Database.open(settings) as database:
        found = [each for each in State(database).figures.describe(job.group) if each.topic in job.topics]
    letters = report.dead_letters.left if report.dead_letters else 0
    return sum(each.lag - each.archiving for each in found) + letters


@contextmanager
def pipeline_code(output: Output, stopped: str = "stopped") -> Iterator[None]:
    """Call a pipeline in the block. What its code prints is not a result, and goes to stderr unless the results are
    for people. Raises CommandRefused for the errors of pipelines and for `sys.exit` in their code, and Abort with the
    text `stopped` after Ctrl-C.
    """
    # Imported here: other commands do not need Spark.
    from sharequeue.spark.handler import PipelineError, unlogged
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


def load_job(named: str) -> Pipeline:
    """Import MODULE:JOB. Raises CommandRefused if the job does not exist, BadParameter for another form."""
    from sharequeue.spark import Pipeline

    name, _, attribute = named.partition(":")
    if not name or not attribute:
        raise click.BadParameter(
            f"{named!r} does not have the form MODULE:JOB, such as my_module:orders", param_hint="MODULE:JOB"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except (ImportError, SyntaxError) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            reason = f"there is no module {error.name}, neither in {Path.cwd()} nor installed"
        else:
            reason = f"module {name} cannot be imported: {type(error).__name__}: {error}"
        raise CommandRefused(reason, NO_SUCH_JOB) from error
    found = getattr(module, attribute, None)
    if isinstance(found, Pipeline):
        return found
    jobs = [each for each, value in vars(module).items() if isinstance(value, Pipeline)]
    if found is None:
        raise CommandRefused(
            f"module {name} has no job {attribute}. {nearest(attribute, jobs, 'jobs')}", NO_SUCH_JOB
        )
    raise CommandRefused(
        f"{named} is not a job, but of type {type(found).__name__}: make one with `@sharequeue.spark.pipeline(…)`. "
        f"{nearest(attribute, jobs, 'jobs')}",
        NO_SUCH_JOB,
    )


COMMANDS = (run,)
