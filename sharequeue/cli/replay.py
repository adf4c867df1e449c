"""`sharequeue replay` and `publish`: process past records again with a handler, apart from the live group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any, TypeVar

import click

from sharequeue.cli.objects import load_job
from sharequeue.cli.options import TimeOption, execute_option, settings_options
from sharequeue.cli.output import Output, answers, flag, nested, number, text
from sharequeue.cli.run import pipeline_code
from sharequeue.domain.settings import Settings

T = TypeVar("T")


@click.command()
@settings_options
@answers(
    text("GROUP"),
    text("SINK"),
    text("NAME"),
    text("SELECTION"),
    flag("DRY-RUN"),
    text("PATH"),
    number("RECORDS"),
    number("ACCEPTED"),
    number("ACCEPTED-ROWS"),
    number("RELEASED"),
    number("REJECTED"),
    number("WITHOUT-ROW"),
    nested("MISSING"),
    number("SCANNED"),
    number("SECONDS"),
    nested("PARTITIONS"),
    one=True,
)
@click.option("--day", help="Records with timestamps of this day, such as 2013-01-01.")
@click.option("--timezone", default="UTC", show_default=True, help="The time zone of the day.")
@click.option(
    "--since", type=TimeOption(), help="Records with timestamps at or after this time; UTC without a zone."
)
@click.option(
    "--until", type=TimeOption(), help="Records with timestamps before this time; UTC without a zone."
)
@click.option(
    "--offsets",
    multiple=True,
    metavar="TOPIC:PARTITION:FIRST-LAST",
    help="Records at these offsets, both ends included; may be repeated.",
)
@click.option(
    "--lease",
    "leases",
    multiple=True,
    metavar="ID",
    help="Records that these leases accepted, such as 7 or 3-5,9, as in a run's tag sharequeue/leases.",
)
@click.option("--name", help="The name of the replay and of its folder; by default made from the selection.")
@click.option(
    "--allow-missing", is_flag=True, help="Replay the remaining records if retention has removed some."
)
@click.option("--dry-run", is_flag=True, help="Only find the records: their number and location.")
@click.argument("job", metavar="MODULE:JOB")
def replay(
    settings: Settings,
    output: Output,
    day: str | None,
    timezone: str,
    since: datetime | None,
    until: datetime | None,
    offsets: tuple[str, ...],
    leases: tuple[str, ...],
    name: str | None,
    allow_missing: bool,
    dry_run: bool,
    job: str,
) -> None:
    """Run a pipeline's handler again on past records, such as `sharequeue replay my_module:orders --day …`.

    The live group is not changed: no lease, no delivery count, no SPSO, no dead letter. The handler's rows
    are written to <output>/replays/<group>/<sink>/<name>, which is replaced as a whole by the next replay of that
    name. Modules in the working directory can be imported.
    """
    # Imported here: other commands do not need Spark.
    from sharequeue.spark.replays.selection import TimeWindow, checked_name, parse_leases, parse_offsets

    if day is not None and (since is not None or until is not None):
        raise click.UsageError("give --day, or --since and --until, not both")
    window = _read("--day", lambda: TimeWindow.of_day(day, timezone)) if day is not None else None
    given: dict[str, Any] = {
        "since": window.since if window else since,
        "until": window.until if window else until,
        "offsets": _read("--offsets", lambda: parse_offsets(offsets)) if offsets else None,
        "leases": _read("--lease", lambda: parse_leases(leases)),
        "name": _read("--name", lambda: checked_name(name)) if name else window and window.name,
    }
    chosen = [given["since"] or given["until"], given["offsets"], given["leases"]]
    if sum(bool(each) for each in chosen) != 1:
        raise click.UsageError(
            "select the records with exactly one of these: --day; --since or --until; --offsets; --lease"
        )
    try:
        with pipeline_code(output):
            report = load_job(job).replay(settings, **given, allow_missing=allow_missing, dry_run=dry_run)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    output.one_row(report.plain(), str(report))


@click.command()
@settings_options
@answers(
    text("GROUP"),
    text("SINK"),
    text("NAME"),
    number("RECORDS"),
    number("REDRIVEN"),
    number("HIDDEN-ROWS"),
    number("ADDED-ROWS"),
    number("FOLDERS"),
    nested("SUMMARIES"),
    text("WHERE"),
    flag("PUBLISHED"),
    one=True,
)
@execute_option
@click.argument("job", metavar="MODULE:JOB")
@click.argument("name")
def publish(settings: Settings, output: Output, execute: bool, job: str, name: str) -> None:
    """Move the replay NAME into the live output of a pipeline, in place of the rows of the same records.

    A reader finds each record once, before and after: files move in one commit of the manifest, rows of a Postgres
    table in one transaction. Publishing the same replay again changes no row.
    """
    with pipeline_code(output):
        report = load_job(job).publish(name, settings, execute=execute)
    output.one_row(asdict(report), str(report))


def _read(option: str, parse: Callable[[], T]) -> T:
    """Return the value of an option. Raises BadParameter with the option's name."""
    try:
        return parse()
    except (ValueError, KeyError) as error:  # KeyError: an unknown time zone
        raise click.BadParameter(str(error), param_hint=option) from error


COMMANDS = (replay, publish)
