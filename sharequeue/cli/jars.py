"""`sharequeue jars`: optional sets of jars for Spark."""

from __future__ import annotations

from pathlib import Path

import click

from sharequeue.cli.options import home_option
from sharequeue.cli.output import Output, answers, text
from sharequeue.domain.settings import Settings
from sharequeue.domain.settings.jar_sets import DESCRIPTIONS, SERIES, folder_of
from sharequeue.local import optional_jars

_COLUMNS = (text("NAME"), text("STATE"), text("WHAT"), text("FOLDER", wide=True))


@click.group()
def jars() -> None:
    """Manage optional sets of jars for Spark. SHAREQUEUE_SPARK_JARS selects the sets of a session."""


@jars.command()
@home_option
@answers(*_COLUMNS)
@click.argument("names", nargs=-1, required=True, type=click.Choice(list(DESCRIPTIONS)), metavar="NAME...")
def fetch(home: Path | None, output: Output, names: tuple[str, ...]) -> None:
    """Fetch sets, unless they are there, and check their checksums: s3a, delta, iceberg, avro."""
    settings = Settings.load(home)
    optional_jars.ensure(settings, names, output.note)
    output.rows(_row(settings, name) for name in names)


@jars.command("list")
@home_option
@answers(*_COLUMNS)
def list_jars(home: Path | None, output: Output) -> None:
    """List the sets, and whether they are fetched."""
    settings = Settings.load(home)
    output.rows(_row(settings, name) for name in DESCRIPTIONS)


def _row(settings: Settings, name: str) -> dict[str, str]:
    state = optional_jars.state(settings, name)
    what = f"{DESCRIPTIONS[name]}; Spark {', '.join(SERIES[name])} ({optional_jars.MEGABYTES[name]} MB)"
    folder = str(folder_of(settings.jars, name)) if state != optional_jars.NOT_FOR_THIS_SPARK else ""
    return {"name": name, "state": state, "what": what, "folder": folder}


COMMANDS = (jars,)
