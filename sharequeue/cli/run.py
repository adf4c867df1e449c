"""`sharequeue run`: a pipeline without Dagster, from the command line."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sharequeue.cli.output import home_option, output_option, print_line
from sharequeue.names import nearest
from sharequeue.settings import Settings

if TYPE_CHECKING:
    from sharequeue.spark import Pipeline, RunReport

TRIED = 100
"""Records that `--dry-run` reads by default."""


@click.command()
@home_option
@output_option
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
    "--dry-run",
    "tried",
    type=click.IntRange(1),
    is_flag=False,
    flag_value=TRIED,
    metavar="[N]",
    help=f"Only try the handler on the next N records ({TRIED}): nothing is leased, written or acknowledged.",
)
@click.option("--progress/--no-progress", default=True, show_default=True, help="Show progress on stderr.")
@click.argument("job", metavar="MODULE:JOB")
def run(
    home: Path | None,
    output: str,
    max_rounds: int | None,
    max_records: int | None,
    max_bytes: int | None,
    max_seconds: float | None,
    tried: int | None,
    progress: bool,
    job: str,
) -> None:
    """Run a pipeline until nothing is left to lease, such as `sharequeue run my_module:orders`.

    The working directory can be imported from, as with `python -m`. Ctrl-C ends the run as cancelled: what it holds
    is given back, and no record pays for it.
    """
    # Imported here: Spark is nothing to the other commands.
    from sharequeue.spark import (
        HandlerError,
        LockLost,
        MostFailed,
        OutputNotShared,
        SinkRefused,
        SinkTaken,
        SparkNotReady,
    )
    from sharequeue.spark.leasing.budget import MAX_RECORDS

    found, settings = _job(job), Settings.load(home)
    try:
        if tried is not None:
            trial = found.try_on(tried, settings)
            print_line(str(trial) if output == "text" else json.dumps(asdict(trial), indent=2))
            return
        report = found.run(
            settings,
            max_rounds=max_rounds,
            max_records=max_records or MAX_RECORDS,
            max_bytes=max_bytes,
            max_seconds=max_seconds,
            progress=progress,
        )
    except (
        HandlerError,
        LockLost,
        MostFailed,
        OutputNotShared,
        SinkRefused,
        SinkTaken,
        SparkNotReady,
    ) as error:
        raise click.ClickException(f"{type(error).__name__}: {error}") from error
    print_line(str(report) if output == "text" else json.dumps(_plain(report), indent=2))


def _job(named: str) -> Pipeline:
    """Import MODULE:JOB. Raises ClickException where there is none, BadParameter for another form."""
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
            raise click.ClickException(
                f"there is no module {error.name}, neither in {Path.cwd()} nor among what is installed"
            ) from error
        raise click.ClickException(f"module {name} cannot be imported: {error}") from error
    found = getattr(module, attribute, None)
    if isinstance(found, Pipeline):
        return found
    jobs = [each for each, value in vars(module).items() if isinstance(value, Pipeline)]
    if found is None:
        raise click.ClickException(
            f"module {name} has no job {attribute}. {nearest(attribute, jobs, 'jobs')}"
        )
    raise click.ClickException(
        f"{named} is no job, but of type {type(found).__name__}: make one with `@sharequeue.spark.pipeline(…)`. "
        f"{nearest(attribute, jobs, 'jobs')}"
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
