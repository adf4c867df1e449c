"""`sharequeue replay` and `publish`: a handler once more on records of the past, beside the live group."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from typing import Any, TypeVar

import click

from sharequeue.cli.failures import Refused
from sharequeue.cli.options import execute_option, settings_options
from sharequeue.cli.output import Output, answers, flag, nested, number, text
from sharequeue.cli.run import load_job
from sharequeue.settings import Settings

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
    number("DROPPED"),
    number("DEAD-LETTERS"),
    nested("MISSING"),
    number("SCANNED"),
    number("SECONDS"),
    nested("PARTITIONS"),
    one=True,
)
@click.option("--day", help="Records with timestamps of this day, such as 2013-01-01.")
@click.option("--timezone", default="UTC", show_default=True, help="The time zone of the day.")
@click.option("--since", help="Records with timestamps from then on (ISO 8601; UTC without a zone).")
@click.option("--until", help="Records with timestamps before (ISO 8601; UTC without a zone).")
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
    help="What these leases had accepted, such as 7 or 3-5,9, as a run's tag sharequeue/leases has them.",
)
@click.option(
    "--member", help="What the leases of this member had accepted; a run's tag sharequeue/member names it."
)
@click.option("--name", help="What the replay, and its folder, is called; made up of the choice by default.")
@click.option(
    "--allow-missing", is_flag=True, help="Replay what is left where retention has removed records."
)
@click.option("--dry-run", is_flag=True, help="Only find the records: how many there are, and where.")
@click.argument("job", metavar="MODULE:JOB")
def replay(
    settings: Settings,
    output: Output,
    day: str | None,
    timezone: str,
    since: str | None,
    until: str | None,
    offsets: tuple[str, ...],
    leases: tuple[str, ...],
    member: str | None,
    name: str | None,
    allow_missing: bool,
    dry_run: bool,
    job: str,
) -> None:
    """Run a pipeline's handler again on records of the past, such as `sharequeue replay my_module:orders --day …`.

    Nothing of the live group is touched: no lease, no delivery count, no SPSO, no dead letter. What the handler
    returns is written to <output>/replays/<group>/<sink>/<name>, which is replaced as a whole when it is replayed
    again. The working directory can be imported from.
    """
    # Imported here: Spark is nothing to the other commands.
    from sharequeue.spark import (
        HandlerError,
        OutputNotReachable,
        OutputNotShared,
        RegistryNotAvailable,
        SparkNotReady,
    )
    from sharequeue.spark.output.parquet import ColumnChanged
    from sharequeue.spark.replays.wanted import Window, checked_name, moment, parse_leases, parse_offsets

    if day is not None and (since is not None or until is not None):
        raise click.UsageError("name a day, or since and until, not both")
    window = _read("--day", lambda: Window.of_day(day, timezone)) if day is not None else None
    given: dict[str, Any] = {
        "since": window.since if window else since and _read("--since", lambda: moment(since)),
        "until": window.until if window else until and _read("--until", lambda: moment(until)),
        "offsets": _read("--offsets", lambda: parse_offsets(offsets)) if offsets else None,
        "leases": _read("--lease", lambda: parse_leases(leases)),
        "member": member,
        "name": _read("--name", lambda: checked_name(name)) if name else window and window.name,
    }
    chosen = [given["since"] or given["until"], given["offsets"], given["leases"], member]
    if sum(bool(each) for each in chosen) != 1:
        raise click.UsageError(
            "name what to replay: --day, --since and --until, --offsets, --lease, or --member"
        )
    try:
        # What the user's code prints is no figure.
        with nullcontext() if output.text else redirect_stdout(sys.stderr):
            report = load_job(job).replay(settings, **given, allow_missing=allow_missing, dry_run=dry_run)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except (
        ColumnChanged,
        HandlerError,
        OutputNotReachable,
        OutputNotShared,
        RegistryNotAvailable,
        SparkNotReady,
    ) as error:
        raise Refused(error) from error
    output.one_row(report.plain(), str(report))


@click.command()
@settings_options
@answers(
    text("GROUP"),
    text("SINK"),
    text("NAME"),
    number("RECORDS"),
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
    """Put the replay NAME into the live output of a pipeline, in the place of the rows of the same records.

    A reader finds each record once, before and after: files move in one commit of the manifest, rows of a Postgres
    table in one transaction. Published twice, the output is the same.
    """
    from sharequeue.spark import HandlerError, OutputNotReachable, OutputNotShared, SinkRefused, SparkNotReady
    from sharequeue.spark.output.compaction import CompactionFailed
    from sharequeue.spark.output.parquet import ColumnChanged

    try:
        with nullcontext() if output.text else redirect_stdout(sys.stderr):
            report = load_job(job).publish(name, settings, execute=execute)
    except (
        ColumnChanged,
        CompactionFailed,
        HandlerError,
        OutputNotReachable,
        OutputNotShared,
        SinkRefused,
        SparkNotReady,
    ) as error:
        raise Refused(error) from error
    output.one_row(asdict(report), str(report))


def _read(option: str, parse: Callable[[], T]) -> T:
    """Return what an option says. Raises BadParameter that names it."""
    try:
        return parse()
    except (ValueError, KeyError) as error:  # KeyError: a time zone that nobody knows
        raise click.BadParameter(str(error), param_hint=option) from error


COMMANDS = (replay, publish)
