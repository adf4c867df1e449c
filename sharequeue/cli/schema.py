"""`sharequeue migrate` and `sharequeue verify`: the schema, and the invariants of the state."""

from __future__ import annotations

import click

from sharequeue.cli.options import GroupsNamed, groups_option, settings_options
from sharequeue.cli.output import Output, answers, text
from sharequeue.database import Database
from sharequeue.database.migrations import migrate as apply_migrations
from sharequeue.state import State
from sharequeue.words.settings import Settings


@click.command()
@settings_options
@answers(text("FILE"), text("STATUS"))
@click.option("--dry-run", is_flag=True, help="Only show what would be applied.")
@click.option(
    "--roles",
    is_flag=True,
    help="Create missing roles, make the owner role own the schema, grant the others.",
)
def migrate(settings: Settings, output: Output, dry_run: bool, roles: bool) -> None:
    """Bring the database's schema up to date in one transaction; several calls at the same time are harmless.

    Use --roles once, and again after a change of the names (SHAREQUEUE_DATABASE_OWNER_ROLE, _SERVICE_ROLE,
    _WORKER_ROLE, _READER_ROLE); existing roles only get permissions.
    """
    with Database.open(settings) as database:
        names = apply_migrations(database, dry_run=dry_run, roles=settings.roles if roles else None)
    status = "would apply" if dry_run else "applied"
    if not output.text:
        output.rows({"file": name, "status": status} for name in names)
    for name in names:
        output.note(f"{status} {name}")
    if not names:
        output.note("the schema is up to date")
    if roles:
        for purpose, name in settings.roles._asdict().items():
            output.note(f"{'would grant' if dry_run else 'granted'} {purpose} to {name}")


@click.command()
@settings_options
@answers(text("VIOLATION"))
@groups_option(default_all=True)
def verify(settings: Settings, output: Output, named: GroupsNamed) -> None:
    """Check every invariant of the state; exit code 1 if one is violated."""
    with Database.open(settings) as database:
        violations = named.checked(database, State(database).figures.verify)
    output.violations(violations, "every invariant holds")


COMMANDS = (migrate, verify)
