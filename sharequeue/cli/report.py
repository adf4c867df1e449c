"""`sharequeue report`: the position of a group and its history, as one page."""

from __future__ import annotations

from pathlib import Path

import click

from sharequeue.cli.options import group_option, settings_options
from sharequeue.cli.output import Output, answers, text
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.group_names import require_group
from sharequeue.reports.files import replace_text, write_page
from sharequeue.reports.history import Reports
from sharequeue.reports.page import report_page
from sharequeue.reports.read import read_report

_BEGINS = b"<!doctype html>"
"""A file that begins with this may be an earlier page, and is overwritten."""


@click.command()
@settings_options
@answers(text("GROUP"), text("PATH"), one=True)
@group_option
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; default: `<output>/reports/<group>/<day>.html`; `-` is stdout.",
)
@click.option(
    "--record/--no-record",
    default=False,
    help="First add the current figures to the history, from which lag and throughput are drawn.",
)
def report(settings: Settings, output: Output, group: str, path: Path | None, record: bool) -> None:
    """Write a page on a group: lag, throughput, delivery counts, records in flight, dead letters, stuck leases.

    The page is one self-contained HTML file. Its path is printed.
    """
    if str(path) == "-" and not output.text:
        raise click.UsageError("--file - prints the page itself: leave out -o, or give a file")
    with Database.open(settings) as database:
        require_group(database, group)
        if record:
            Reports(database).record(group)
        found = read_report(database, group, settings)
    if str(path) == "-":
        click.echo(report_page(found), nl=False)
        return
    if path is None:
        path = write_page(settings, found)
    else:
        if path.exists() and not path.read_bytes().startswith(_BEGINS):
            raise click.BadParameter(
                f"{path} exists, is not a page, and is not overwritten: give another file",
                param_hint="--file",
            )
        replace_text(path, report_page(found))
    output.one_row({"group": group, "path": path}, str(path))


COMMANDS = (report,)
