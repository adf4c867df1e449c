"""`sharequeue up`, `down`, `status`, `reset`, `env`: the embedded stack."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import click

from sharequeue.cli.output import home_option, output_option, print_line, print_rows, print_to_stderr
from sharequeue.local import dagster_ui, stack
from sharequeue.local.home import Home
from sharequeue.local.preflight import StackError
from sharequeue.settings import Settings


@click.command()
@home_option
@output_option
@click.option("--ui", is_flag=True, help="Start Dagster's webserver and daemon too, and print the URL.")
@click.option("--no-service", is_flag=True, help="Leave the coordinator service out.")
def up(home: Path | None, output: str, ui: bool, no_service: bool) -> None:
    """Start Postgres, Kafka and the coordinator service, as far as they do not run.

    What an environment variable points to (SHAREQUEUE_DATABASE_URL, SHAREQUEUE_BOOTSTRAP_SERVERS,
    SHAREQUEUE_SERVICE_URL) is used and not started. Harmless when everything runs.
    """
    progress = print_line if output == "text" else print_to_stderr
    info = stack.up(home, progress, service=not no_service)
    found = {
        name: value
        for name, value in asdict(info).items()
        if not name.endswith(("database_url", "dagster_url"))
    }
    if ui:
        found["dagster"] = dagster_ui.start(Settings.load(info.home), progress)
        progress(f"dagster      {found['dagster']}")
    if output == "json":
        click.echo(json.dumps(found, default=str, indent=2))


@click.command()
@home_option
def down(home: Path | None) -> None:
    """Stop the embedded stack. The data stay; nobody else's process is touched."""
    if not stack.down(home, print_line):
        print_line("nothing was running")


@click.command()
@home_option
@output_option
def status(home: Path | None, output: str) -> None:
    """Show for each component whether it runs, and where. Exit code 1 when one has died."""
    found = stack.status(home)
    if output == "text":
        print_line(f"data folder  {Settings.load(home).home}")
    print_rows(("NAME", "STATE", "PID", "ADDRESS", "LOG"), [asdict(each) for each in found], output)
    if any(each.state == "died" for each in found):
        raise StackError("A component has died. Its log has the reason; `sharequeue up` starts it again.")


@click.command()
@home_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
def reset(home: Path | None, yes: bool, dry_run: bool) -> None:
    """Stop the embedded stack and remove its data: topics, state, history, outputs; not the jars."""
    data_folder = Home.at(Settings.load(home).home)
    owned = data_folder.owned() if data_folder.exists else []
    if not owned:
        print_line(f"nothing to remove in {data_folder.path}")
        return
    listed = ", ".join(path.name for path in owned)
    if dry_run:
        print_line(f"would stop the stack and remove from {data_folder.path}: {listed}")
        return
    if not yes and not click.confirm(f"Stop the stack and remove from {data_folder.path}: {listed}?"):
        raise click.ClickException("Nothing was removed.")
    removed = stack.reset(home, print_line)
    print_line(f"removed from {data_folder.path}: {', '.join(path.name for path in removed)}")


@click.command()
@home_option
def env(home: Path | None) -> None:
    """Print what Dagster's own commands need, for a shell: `eval "$(sharequeue env)"`, then `dg list defs`.

    It has the password of Dagster's database in it.
    """
    settings = Settings.load(home)
    dagster_ui.prepare(Home.at(settings.home))
    for name, value in dagster_ui.addresses(settings).items():
        click.echo(f"export {name}={shlex.quote(value)}")


COMMANDS = (up, down, status, reset, env)
