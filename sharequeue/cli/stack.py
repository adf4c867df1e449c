"""`sharequeue up`, `down`, `status`, `reset`, `env`: the embedded stack."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click

from sharequeue.cli.options import execute_option, home_option
from sharequeue.cli.output import Output, answers, moment, number, text
from sharequeue.domain.settings import Settings
from sharequeue.local import dagster_ui, stack
from sharequeue.local.home import Home
from sharequeue.local.preflight import StackError


@click.command()
@home_option
@answers(
    text("HOME"),
    text("BOOTSTRAP-SERVERS"),
    text("SERVICE-URL"),
    text("JARS"),
    moment("CREATED-AT"),
    text("DAGSTER"),
    one=True,
)
@click.option("--ui", is_flag=True, help="Start Dagster's webserver and daemon too, and print the URL.")
@click.option("--no-service", is_flag=True, help="Do not start the coordinator service.")
def up(home: Path | None, output: Output, ui: bool, no_service: bool) -> None:
    """Start Postgres, Kafka and the coordinator service, unless they are running.

    Servers with an address in an environment variable (SHAREQUEUE_DATABASE_URL, SHAREQUEUE_BOOTSTRAP_SERVERS,
    SHAREQUEUE_SERVICE_URL) are used and not started.
    """
    if ui:
        dagster_ui.project()  # an error before anything is started
    info = stack.up(home, output.say, service=not no_service)
    # Addresses with passwords are not columns.
    found = {**asdict(info), "created_at": datetime.fromisoformat(info.created_at)}
    if ui:
        found["dagster"] = dagster_ui.start(Settings.load(info.home), output.say)
        output.say(f"dagster      {found['dagster']}")
    if not output.text:
        output.rows([found])


@click.command()
@home_option
@answers(text("NAME"), text("STATE"))
def down(home: Path | None, output: Output) -> None:
    """Stop the embedded stack. Its data are kept; no other process is stopped."""
    stopped = stack.down(home, output.say)
    if not output.text:
        output.rows({"name": name, "state": "stopped"} for name in stopped)
    if not stopped:
        output.note("nothing was running")


@click.command()
@home_option
@answers(text("NAME"), text("STATE"), number("PID"), text("ADDRESS"), text("LOG", wide=True))
def status(home: Path | None, output: Output) -> None:
    """Show the status and address of each component. Exit code 1 if one has died."""
    found = stack.status(home)
    output.note(f"data folder  {Settings.load(home).home}")
    output.rows(asdict(each) for each in found)
    died = [each for each in found if each.state == "died"]
    if died:
        logs = ", ".join(str(each.log) for each in died)
        raise StackError(
            f"A component has died. Its log has the reason ({logs}); `sharequeue up` starts it again."
        )


@click.command()
@home_option
@answers(text("PATH"), text("STATUS"))
@execute_option
def reset(home: Path | None, output: Output, execute: bool) -> None:
    """Stop the embedded stack and remove its data: topics, state, history, outputs; not the jars."""
    data_folder = Home.at(Settings.load(home).home)
    owned = data_folder.owned() if data_folder.exists else []
    done = stack.reset(home, output.say) if execute and owned else owned
    if not output.text:
        output.rows({"path": path, "status": "removed" if execute else output.planned} for path in done)
    listed = ", ".join(path.name for path in done)
    if not owned:
        output.note(f"nothing to remove in {data_folder.path}")
    elif execute:
        output.note(f"removed from {data_folder.path}: {listed}")
    else:
        output.note(f"would stop the stack and remove from {data_folder.path}: {listed}")


@click.command()
@home_option
@answers(text("NAME"), text("VALUE"))
def env(home: Path | None, output: Output) -> None:
    """Print the environment of Dagster's own commands, for a shell: `eval "$(sharequeue env)"`, then `dg list defs`.

    It sets DAGSTER_HOME to the embedded stack's, and includes the password of Dagster's database.
    """
    settings = Settings.load(home)
    dagster_ui.prepare(Home.at(settings.home))
    found = dagster_ui.addresses(settings)
    if not output.text:
        output.rows({"name": name, "value": value} for name, value in found.items())
    for name, value in found.items():
        output.note(f"export {name}={shlex.quote(value)}")


COMMANDS = (up, down, status, reset, env)
