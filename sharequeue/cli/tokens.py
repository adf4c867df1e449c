"""`sharequeue tokens`: bearer tokens for the service's HTTP API, which identify a caller."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

import click

from sharequeue.cli.failures import CommandRefused
from sharequeue.cli.options import duration, execute_option, settings_options
from sharequeue.cli.output import Column, Output, answers, moment, row_of, text
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.tokens import SCOPES, Token, Tokens

_NEVER = "never"


def _columns(last: str) -> tuple[Column, ...]:
    return (
        text("ID"),
        text("PRINCIPAL", cut=True),
        text(last),
        text("SCOPE"),
        moment("CREATED"),
        moment("EXPIRES"),
        moment("REVOKED", wide=True),
        text("NOTE", cut=True),
    )


@click.group()
def tokens() -> None:
    """Bearer tokens for the service's HTTP API. ACLs decide what the principal of a token may do."""


def _lifetime(context: click.Context, parameter: click.Parameter, given: str) -> timedelta | None:
    return None if given == _NEVER else duration(context, parameter, given)


@tokens.command()
@settings_options
@answers(
    text("TOKEN"), text("ID"), text("PRINCIPAL"), text("SCOPE"), moment("EXPIRES"), text("NOTE"), one=True
)
@click.option("--principal", required=True, help="The principal of requests with the token: User:<name>.")
@click.option(
    "--expires",
    "lifetime",
    default="P90D",
    show_default=True,
    callback=_lifetime,
    help="The time until the token expires, such as P90D; or never.",
)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(SCOPES),
    help="Operations that the token allows; may be repeated. Default: all that its principal may do.",
)
@click.option("--note", help="The purpose of the token.")
def create(
    settings: Settings,
    output: Output,
    principal: str,
    lifetime: timedelta | None,
    scopes: tuple[str, ...],
    note: str | None,
) -> None:
    """Create a token and print it, only this once and alone on stdout. The database stores only its SHA-256."""
    with Database.open(settings) as database:
        token, secret = Tokens(database).create(principal, lifetime, note, scopes)
    until = (
        "without expiry"
        if token.expires_at is None
        else f"until {token.expires_at.isoformat(timespec='seconds')}"
    )
    limited = f", only for {', '.join(token.scopes)}" if token.scopes else ""
    click.echo(f"token {token.token_id} of {principal}{limited}, {until}; it is shown only once", err=True)
    output.one_row({"token": secret, **_row(token)}, secret)


@tokens.command("list")
@settings_options
@answers(*_columns("STATE"))
@click.option("--principal", help="Only tokens of this principal; default: all.")
def list_tokens(settings: Settings, output: Output, principal: str | None) -> None:
    """List tokens, including expired and revoked ones. Their secrets are not stored."""
    with Database.open(settings) as database:
        found = Tokens(database).find(principal)
    output.rows(_row(each) for each in found)


@tokens.command()
@settings_options
@answers(*_columns("STATUS"))
@click.option("--id", "token_id", type=click.UUID, help="One token.")
@click.option("--principal", help="All tokens of User:<name>.")
@execute_option
def revoke(
    settings: Settings, output: Output, execute: bool, token_id: UUID | None, principal: str | None
) -> None:
    """Revoke tokens: the service refuses them from its next request on."""
    if token_id is None and principal is None:
        raise click.UsageError("Nothing is selected: give --id or --principal.")
    with Database.open(settings) as database:
        held = Tokens(database)
        gone = held.revoke(token_id, principal, dry_run=not execute)
        if not gone and not _known(held.find(principal), token_id):
            # In an emergency a misspelt name must not look like a success.
            raise CommandRefused(
                "There is no such token: `sharequeue tokens list` shows all.", "TOKEN_NOT_FOUND"
            )
    output.note(f"{'revoked' if execute else 'would revoke'} {len(gone)}")
    output.rows({**_row(each), "status": "revoked" if execute else output.planned} for each in gone)


def _known(found: Iterable[Token], token_id: UUID | None) -> bool:
    return any(token_id in (None, each.token_id) for each in found)


def _row(token: Token) -> dict[str, object]:
    return row_of(
        token,
        id=token.token_id,
        scope=", ".join(token.scopes) if token.scopes else "all",
        created=token.created_at,
        expires=token.expires_at,
        revoked=token.revoked_at,
    )


COMMANDS = (tokens,)
