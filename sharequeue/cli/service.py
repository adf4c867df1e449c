"""`sharequeue serve`: the coordinator service in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from sharequeue.cli.output import home_option
from sharequeue.settings import Settings


@click.command()
@home_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", default=28080, show_default=True, type=click.IntRange(1, 65535), help="The port to listen on."
)
def serve(home: Path | None, host: str, port: int) -> None:
    """Run the coordinator service: members, assignment, expiry, sweeps, metrics. Ends on Ctrl-C."""
    # Imported here: the web server's modules are nothing to the other commands.
    from sharequeue.service import serve as run

    run(Settings.load(home), host, port)


COMMANDS = (serve,)
