"""`sharequeue report`: where a group stands and how it came there, as one page."""

from __future__ import annotations

from pathlib import Path

import click

from sharequeue.cli.options import group_option, settings_options
from sharequeue.cli.output import Output, answers, text
from sharequeue.database import Database
from sharequeue.groups.known import require_group
from sharequeue.reporting.files import replace_text, write_page
from sharequeue.reporting.page import page
from sharequeue.settings import Settings
from sharequeue.state.group_report import read_report
from sharequeue.state.reports import Reports

_BEGINS = b"<!doctype html>"
"""A file that begins so may be an earlier page, and is written anew."""


@click.command()
@settings_options
@answers(text("GROUP"), text("PATH"), one=True)
@group_option
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; `<output>/reports/<group>/<day>.html` by default, and `-` is stdout.",
)
@click.option(
    "--record/--no-record",
    default=False,
    help="Add the present figures to the history first, from which lag and throughput are drawn.",
)
def report(settings: Settings, output: Output, group: str, path: Path | None, record: bool) -> None:
    """Write a page on a group: lag, throughput, delivery counts, what is in flight, dead letters, stuck leases.

    The page is one HTML file that needs nothing else. Its path is printed.
    """
    if str(path) == "-" and not output.text:
        raise click.UsageError("--file - prints the page itself: leave out -o, or name a file")
    with Database.open(settings) as database:
        require_group(database, group)
        if record:
            Reports(database).record(group)
        found = read_report(database, group)
    if str(path) == "-":
        click.echo(page(found), nl=False)
        return
    if path is None:
        path = write_page(settings, found)
    else:
        if path.exists() and not path.read_bytes().startswith(_BEGINS):
            raise click.BadParameter(
                f"{path} is there already, is no page, and is not overwritten", param_hint="--file"
            )
        replace_text(path, page(found))
    output.one_row({"group": group, "path": path}, str(path))


COMMANDS = (report,)
