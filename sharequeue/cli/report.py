"""`sharequeue report`: where a group stands and how it came there, as one page."""

from __future__ import annotations

from pathlib import Path

import click

from sharequeue.cli.output import home_option, print_line
from sharequeue.database import Database
from sharequeue.groups.known import require_group
from sharequeue.reporting.files import replace_text, write_page
from sharequeue.reporting.page import page
from sharequeue.settings import Settings
from sharequeue.state.group_report import read_report
from sharequeue.state.reports import Reports


@click.command()
@home_option
@click.argument("group")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; `<output>/reports/<group>/<day>.html` by default, and `-` is stdout.",
)
@click.option(
    "--record/--no-record",
    default=False,
    help="Add the present figures to the history first, from which lag and throughput are drawn.",
)
def report(home: Path | None, group: str, output: Path | None, record: bool) -> None:
    """Write a page on GROUP: lag, throughput, delivery counts, what is in flight, dead letters, stuck leases.

    The page is one HTML file that needs nothing else. Its path is printed.
    """
    settings = Settings.load(home)
    with Database.open(settings) as database:
        require_group(database, group)
        if record:
            Reports(database).record(group)
        found = read_report(database, group)
    if output is None:
        print_line(str(write_page(settings, found)))
    elif str(output) == "-":
        click.echo(page(found), nl=False)
    else:
        replace_text(output, page(found))
        print_line(str(output))


COMMANDS = (report,)
