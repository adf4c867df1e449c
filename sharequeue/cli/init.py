"""`sharequeue init`: create a starter project."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from sharequeue.cli.failures import CommandRefused
from sharequeue.cli.options import named_group
from sharequeue.cli.output import Output, answers, text
from sharequeue.starter import NotEmpty, Starter


@click.command()
@answers(text("PATH"))
@click.option(
    "--group", default="orders", show_default=True, callback=named_group, help="The share group's id."
)
@click.option("--topic", help="The topic that it reads; default: the group's id.")
@click.option("--package", default="queues", show_default=True, help="The Python package of your code.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
def init(output: Output, group: str, topic: str | None, package: str, folder: Path) -> None:
    """Write a project with one queue into FOLDER: its handler, its dead letters, sample records, a test.

    FOLDER is by default the working directory. Nothing is overwritten: if one of the files exists, nothing is
    written.
    """
    try:
        written = Starter(group, topic or group, package).write(folder)
    except (ValueError, NotEmpty) as error:
        raise CommandRefused(error) from error
    if not output.text:
        output.rows({"path": path} for path in written)
    for path in written:
        output.note(f"  {path}")
    if folder != Path():
        output.note(f"\ncd {shlex.quote(str(folder))}")
    output.note(
        f"\nsharequeue up                         start Postgres, Kafka and the service on this machine\n"
        f"python -m {package}.samples 100         create the topics and 100 sample records\n"
        "sharequeue up --ui                    start Dagster: its sensor launches a run within half a minute\n"
        "\nREADME.md has the rest."
    )


COMMANDS = (init,)
