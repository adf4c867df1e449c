"""`sharequeue migrate` and `sharequeue verify`: the schema, and the invariants of what it holds."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sharequeue.cli.output import home_option, output_option, say
from sharequeue.database import Database
from sharequeue.database import migrate as apply_migrations
from sharequeue.settings import Settings
from sharequeue.state import State


@click.command()
@home_option
@output_option
@click.option("--dry-run", is_flag=True, help="Only say what would be applied.")
def migrate(home: Path | None, output: str, dry_run: bool) -> None:
    """Bring the database's schema up to date; several at once are harmless."""
    with Database.open(Settings.load(home)) as database:
        names = apply_migrations(database, dry_run=dry_run)
    if output == "json":
        click.echo(json.dumps(names, indent=2))
        return
    for name in names:
        say(f"{'would apply' if dry_run else 'applied'} {name}")
    if not names:
        say("the schema is up to date")


@click.command()
@home_option
@output_option
@click.option("--group", help="Only this group.")
def verify(home: Path | None, output: str, group: str | None) -> None:
    """Check every invariant of the state; exit code 1 when one is violated."""
    with Database.open(Settings.load(home)) as database:
        violations = State(database).verify(group)
    if output == "json":
        click.echo(json.dumps(violations, indent=2))
    else:
        for violation in violations:
            say(violation)
        if not violations:
            say("every invariant holds")
    if violations:
        raise click.exceptions.Exit(1)


COMMANDS = (migrate, verify)
