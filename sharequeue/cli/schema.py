"""`sharequeue migrate`, `verify` and `adopt`: the schema, the invariants of the state, and its database."""

from __future__ import annotations

import click

from sharequeue.cli.options import GroupsNamed, execute_option, groups_option, settings_options
from sharequeue.cli.output import Output, answers, moment, number, text
from sharequeue.cli.run import pipeline_code
from sharequeue.database import Database
from sharequeue.database.migrations import migrate as apply_migrations
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import StatePlace
from sharequeue.state import State


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
@click.option(
    "--files",
    is_flag=True,
    help="Also look for the files of every output that counts; starts Spark.",
)
def verify(settings: Settings, output: Output, named: GroupsNamed, files: bool) -> None:
    """Check every invariant of the state; exit code 1 if one is violated."""
    with Database.open(settings) as database:
        violations = named.checked(database, State(database).figures.verify)
        if files:
            violations += _without_files(settings, output, database, named)
    output.violations(violations, "every invariant holds")


def _without_files(settings: Settings, output: Output, database: Database, named: GroupsNamed) -> list[str]:
    """Return the outputs that count and have no files."""
    from sharequeue.spark.output.manifest import missing_outputs
    from sharequeue.spark.session import spark_session

    with pipeline_code(output):
        spark = spark_session(settings, "verify")
        return [
            each for group in named.of(database) for each in missing_outputs(spark, State(database), group)
        ]


@click.command()
@settings_options
@answers(
    text("BOUND-TO"), moment("SINCE"), text("HERE"), number("SHARE-PARTITIONS"), text("STATUS"), one=True
)
@execute_option
def adopt(settings: Settings, output: Output, execute: bool) -> None:
    """Make this database go on with the state, where a copy, a restore or a move has made two of one.

    Nothing is written, swept or begun in a copy of the database of a state until then. Stop everything that uses the
    other database first: it is refused in output folders once this one has written there. All leases are fenced, as
    by `state raise-epochs`.
    """
    with Database.open(settings) as database:
        state = State(database)
        place = state.administration.place()
        count = state.administration.adopt() if execute else len(state.figures.describe())
    output.one_row(
        {
            "bound_to": place.bound_to,
            "since": place.bound_at,
            "here": place.here,
            "share_partitions": count,
            "status": "done" if execute else output.planned,
        },
        f"{_found(place)} {'It goes on here now' if execute else 'It would go on here'}, and the leases of {count} "
        f"share-partitions {'were' if execute else 'would be'} fenced.",
    )


def _found(place: StatePlace) -> str:
    if place.bound_to is None:
        return f"This is {place.here}; its state was never used."
    if place.is_copy:
        return f"This is {place.here}, a copy: its state is that of {place.bound_to}, since {place.bound_at}."
    return f"This is {place.here}; the state is bound to it since {place.bound_at}: this is not a copy."


COMMANDS = (migrate, verify, adopt)
