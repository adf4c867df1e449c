"""`sharequeue init`: a project to begin with."""

from __future__ import annotations

from pathlib import Path

import click

from sharequeue.cli.output import print_line
from sharequeue.starter import NotEmpty, Starter


@click.command()
@click.option("--group", default="orders", show_default=True, help="The share group's id.")
@click.option("--topic", help="The topic that it reads; called like the group if not given.")
@click.option("--package", default="queues", show_default=True, help="The Python package of your code.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
def init(group: str, topic: str | None, package: str, folder: Path) -> None:
    """Write a project with one queue into FOLDER: its handler, its dead letters, sample records, a test.

    FOLDER is the working directory if not given. Nothing is overwritten: where a file is there already, nothing is
    written.
    """
    try:
        written = Starter(group, topic or group, package).write(folder)
    except (ValueError, NotEmpty) as error:
        raise click.ClickException(str(error)) from error
    for path in written:
        print_line(f"  {path}")
    if folder != Path():
        print_line(f"\ncd {folder}")
    print_line(
        f"\nsharequeue up                         start Postgres, Kafka and the service on this machine\n"
        f"python -m {package}.samples 100         make the topics and 100 sample records\n"
        "sharequeue up --ui                    start Dagster: its sensor launches a run within half a minute\n"
        "\nREADME.md has the rest."
    )


COMMANDS = (init,)
