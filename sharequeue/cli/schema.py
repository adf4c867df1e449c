"""`sharequeue migrate` and `sharequeue verify`: the schema, and the invariants of what it holds."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sharequeue.cli.output import home_option, output_option, print_line
from sharequeue.database import Database
from sharequeue.database.migrations import migrate as apply_migrations
from sharequeue.database.schema_dump import DumpFailed, print_schema
from sharequeue.groups.known import require_group
from sharequeue.settings import Settings
from sharequeue.state import State


@click.command()
@home_option
@output_option
@click.option("--dry-run", is_flag=True, help="Only show what would be applied.")
@click.option(
    "--roles", is_flag=True, help="Make the missing roles, hand the schema to the owner, grant the rest."
)
@click.option(
    "--print-schema",
    "show",
    is_flag=True,
    help="Only print the schema as it is now: tables whole, functions and views as signatures.",
)
def migrate(home: Path | None, output: str, dry_run: bool, roles: bool, show: bool) -> None:
    """Bring the database's schema up to date, in one transaction; several at once are harmless.

    With --roles once, and again after a change of their names (SHAREQUEUE_DATABASE_OWNER_ROLE, _SERVICE_ROLE,
    _WORKER_ROLE, _READER_ROLE); roles that are there already are only granted to.
    """
    settings = Settings.load(home)
    with Database.open(settings) as database:
        if show:
            try:
                click.echo(print_schema(database), nl=False)
            except DumpFailed as error:
                raise click.ClickException(str(error)) from error
            return
        names = apply_migrations(database, dry_run=dry_run, roles=settings.roles if roles else None)
    if output == "json":
        click.echo(json.dumps(names, indent=2))
        return
    for name in names:
        print_line(f"{'would apply' if dry_run else 'applied'} {name}")
    if not names:
        print_line("the schema is up to date")
    if roles:
        for purpose, name in settings.roles._asdict().items():
            print_line(f"{'would grant' if dry_run else 'granted'} {purpose} to {name}")


@click.command()
@home_option
@output_option
@click.option("--group", help="Only this group.")
def verify(home: Path | None, output: str, group: str | None) -> None:
    """Check every invariant of the state; exit code 1 when one is violated."""
    with Database.open(Settings.load(home)) as database:
        if group is not None:
            require_group(database, group)
        violations = State(database).figures.verify(group)
    if output == "json":
        click.echo(json.dumps(violations, indent=2))
    else:
        for violation in violations:
            print_line(violation)
        if not violations:
            print_line("every invariant holds")
    if violations:
        raise click.exceptions.Exit(1)


COMMANDS = (migrate, verify)
