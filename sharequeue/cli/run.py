"""`sharequeue run`: a pipeline without Dagster, from the command line."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sharequeue.cli.failures import Refused
from sharequeue.cli.options import settings_options
from sharequeue.cli.output import Output, answers, flag, nested, number, text
from sharequeue.database import Database
from sharequeue.names import nearest
from sharequeue.settings import Settings
from sharequeue.state import State

if TYPE_CHECKING:
    from sharequeue.spark import Pipeline, RunReport

TRIED = 100
"""Records that `--dry-run` reads by default."""
NO_SUCH_JOB = "NO_SUCH_JOB"
WORK_LEFT = 3
"""The exit code of a run that has done its part, and has left records to a later one."""


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
            "DROPPED",
            "LOST",
            "UNACKNOWLEDGED",
        ),
    ),
    number("LAG"),
    flag("DRAINED"),
    number("SECONDS"),
    text("REMARK"),
    nested("LEFT-OUT"),
    nested("NOT-ASSIGNED"),
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
    help="Rounds of lease, write and acknowledge; no bound if not given.",
)
@click.option(
    "--max-records", type=click.IntRange(1), help="Records leased in a round; 10,000,000 by default."
)
@click.option(
    "--max-bytes",
    type=click.IntRange(0),
    help="Bytes leased in a round; by default as set for the job or its group.",
)
@click.option("--max-seconds", type=click.FloatRange(0), help="No round begins after so many seconds.")
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="TOPIC-N",
    help="Lease from this partition alone, such as orders-0, if it is assigned to the run; may be repeated.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Go on: wait for records, and run whenever there are any, until stopped or out of bounds.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only try the handler on the next records: nothing is leased, written or acknowledged.",
)
@click.option(
    "--records", type=click.IntRange(1), help=f"How many records `--dry-run` tries; {TRIED} by default."
)
@click.option(
    "--replaces",
    metavar="PIPELINE",
    help="The pipeline that worked on the group before, if this one takes its place.",
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
    partitions: tuple[str, ...],
    follow: bool,
    dry_run: bool,
    records: int | None,
    replaces: str | None,
    progress: bool,
    job: str,
) -> None:
    """Run a pipeline until nothing is left to lease, such as `sharequeue run my_module:orders`.

    The working directory can be imported from, as with `python -m`. Ctrl-C ends the run as cancelled: what it holds
    is given back, and no record pays for it.

    With `--follow` it keeps its Spark session and its membership, and waits for records without asking for them; an
    outage of a server is waited out. With `-o json`, stdout then has a line for each run that did something.

    Exit codes: 0 drained; 3 records are left to a later run; 1 failed; 130 stopped by Ctrl-C, 143 by SIGTERM; 2 the
    command line is wrong. Without `--follow`, `-o json` writes one line of figures and nothing else to stdout.
    """
    # Imported here: Spark is nothing to the other commands.
    from sharequeue.spark import (
        GroupTaken,
        HandlerError,
        LockLost,
        MostFailed,
        OutputNotReachable,
        OutputNotShared,
        RegistryNotAvailable,
        SinkRefused,
        SinkTaken,
        SparkNotReady,
    )
    from sharequeue.spark.leasing.budget import MAX_RECORDS

    if records is not None and not dry_run:
        raise click.UsageError("--records says how many records `--dry-run` tries; a run has --max-records")
    if follow and dry_run:
        raise click.UsageError("--follow goes on running, and --dry-run only tries: give one of them")
    bounds: dict[str, Any] = {
        "max_rounds": max_rounds,
        "max_records": max_records or MAX_RECORDS,
        "max_bytes": max_bytes,
        "max_seconds": max_seconds,
        "only": partitions or None,
        "replaces": replaces,
        "progress": progress,
    }
    results = sys.stdout
    try:
        # What the user's code prints is no figure.
        with nullcontext() if output.text else redirect_stdout(sys.stderr):
            found = load_job(job)
            if follow:

                def on_run(report: RunReport) -> None:
                    with redirect_stdout(results):
                        _tell(output, report)

                followed = found.follow(settings, **bounds, on_run=on_run)
            elif not dry_run:
                report = found.run(settings, **bounds)
            else:
                trial = found.try_on(records or TRIED, settings)
    except (
        GroupTaken,
        HandlerError,
        LockLost,
        MostFailed,
        OutputNotReachable,
        OutputNotShared,
        RegistryNotAvailable,
        SinkRefused,
        SinkTaken,
        SparkNotReady,
    ) as error:
        raise Refused(error) from error
    if dry_run:
        output.one_row(asdict(trial), str(trial))
        return
    if follow:
        output.note(str(followed))
        return
    left = _left(settings, found, report)
    output.one_row({**_plain(report), "left": left}, str(report))
    if left or not (report.drained or report.rounds):  # who was assigned nothing does not know what is left
        context.exit(WORK_LEFT)


def _tell(output: Output, report: RunReport) -> None:
    """Print what one of many runs did, at once: programs read it as it comes."""
    if not output.text:
        output.one_row(_plain(report), "")
        sys.stdout.flush()


def _left(settings: Settings, job: Pipeline, report: RunReport) -> int:
    """Count the records that a later run has to do with: not done, or dead letters that this one could not write.

    Dead letters that a service is writing are none of them.
    """
    with Database.open(settings) as database:
        found = [each for each in State(database).figures.describe(job.group) if each.topic in job.topics]
    letters = report.dead_letters.left if report.dead_letters else 0
    return sum(each.lag - each.archiving for each in found) + letters


def load_job(named: str) -> Pipeline:
    """Import MODULE:JOB. Raises Refused where there is none, BadParameter for another form."""
    from sharequeue.spark import Pipeline

    name, _, attribute = named.partition(":")
    if not name or not attribute:
        raise click.BadParameter(
            f"{named!r} is not of that form, such as my_module:orders", param_hint="MODULE:JOB"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise Refused(
                f"there is no module {error.name}, neither in {Path.cwd()} nor among what is installed",
                NO_SUCH_JOB,
            ) from error
        raise Refused(f"module {name} cannot be imported: {error}", NO_SUCH_JOB) from error
    except (ImportError, SyntaxError) as error:
        raise Refused(
            f"module {name} cannot be imported: {type(error).__name__}: {error}", NO_SUCH_JOB
        ) from error
    found = getattr(module, attribute, None)
    if isinstance(found, Pipeline):
        return found
    jobs = [each for each, value in vars(module).items() if isinstance(value, Pipeline)]
    if found is None:
        raise Refused(
            f"module {name} has no job {attribute}. {nearest(attribute, jobs, 'jobs')}", NO_SUCH_JOB
        )
    raise Refused(
        f"{named} is no job, but of type {type(found).__name__}: make one with `@sharequeue.spark.pipeline(…)`. "
        f"{nearest(attribute, jobs, 'jobs')}",
        NO_SUCH_JOB,
    )


def _plain(report: RunReport) -> dict[str, object]:
    """What JSON has of a report."""
    names = ("group", "leased", "accepted", "released", "rejected", "gaps", "exhausted", "dropped", "lost")
    letters = report.dead_letters
    return {
        **{name: getattr(report, name) for name in names},
        "unacknowledged": report.unacknowledged,
        "lag": report.lag,
        "drained": report.drained,
        "seconds": report.seconds,
        "remark": report.remark,
        "left_out": report.left_out,
        "not_assigned": report.not_assigned,
        "dead_letters": letters
        and {
            "written": letters.written,
            "dropped": letters.dropped,
            "left": letters.left,
            "warning": letters.warning and str(letters.warning),
        },
        "rounds": [asdict(each) for each in report.rounds],
    }


COMMANDS = (run,)
