"""Print errors: the code, what happened, and what to check.

A code is Kafka's name for Kafka's errors (`NON_EMPTY_GROUP`), else the name of our class (`SettingMissing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import click
from pydantic import ValidationError
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError

from sharequeue.database.refusals import LOGIN, PARAMETER, TLS, refusal_of
from sharequeue.database.sqlstates import (
    LOCK_NOT_AVAILABLE,
    QUERY_CANCELLED,
    ReadOnlyDatabase,
    sqlstate,
)
from sharequeue.domain.errors import RequestTimedOut, ShareError, first_line
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.settings import SettingInvalid

__all__ = [
    "CommandRefused",
    "code_of",
    "database_failure",
    "print_failure",
    "raise_first",
    "setting_failure",
    "status_of",
    "warn_of_letters",
]

_TIMEOUTS = (QUERY_CANCELLED, LOCK_NOT_AVAILABLE)
DATABASE_NOT_AVAILABLE = "DATABASE_NOT_AVAILABLE"

DATABASE_LOGIN_REFUSED = "DATABASE_LOGIN_REFUSED"
DATABASE_REFUSED = "DATABASE_REFUSED"
SETTING_INVALID = "SETTING_INVALID"

_MAKE_SURE: Mapping[str, tuple[str, ...]] = {
    DATABASE_NOT_AVAILABLE: (
        "Postgres is running: `sharequeue doctor` checks it",
        "its address is right: --database-url, SHAREQUEUE_DATABASE_URL, or stack.json in the data folder",
        "this machine can connect to it",
        "nothing ends its sessions: the log of Postgres, or of a pooler, has the reason, which the driver drops (a "
        "timeout of the role, a pool that is too small)",
    ),
    DATABASE_LOGIN_REFUSED: (
        "the user, the password and the name of the database are right: --database-url, "
        "SHAREQUEUE_DATABASE_URL, or stack.json in the data folder",
        "the user has LOGIN, and pg_hba.conf allows it from this machine",
    ),
    DATABASE_REFUSED: (
        "the login has the role for this: `sharequeue migrate --roles` creates roles and grants permissions",
        "the database is the right one: `sharequeue doctor` shows its address, and checks its schema",
    ),
    SETTING_INVALID: (
        "the address is like postgresql://user:password@host:5432/name: --database-url, SHAREQUEUE_DATABASE_URL",
        "the brokers are like host:9092,host:9092: --bootstrap-server, SHAREQUEUE_BOOTSTRAP_SERVERS",
        "the other variables SHAREQUEUE_… have values of the right type",
    ),
    RequestTimedOut.name: (
        "no session holds a lock in Postgres for long: see `pg_stat_activity`",
        "SHAREQUEUE_DATABASE_STATEMENT_TIMEOUT_MS and SHAREQUEUE_DATABASE_LOCK_TIMEOUT_MS are long enough",
    ),
    "BROKER_NOT_AVAILABLE": (
        "Kafka is running: `sharequeue doctor` checks it",
        "its address is right: --bootstrap-server, SHAREQUEUE_BOOTSTRAP_SERVERS, or stack.json in the data folder",
        "the security settings SHAREQUEUE_KAFKA_… are those of the broker",
    ),
    "SASL_AUTHENTICATION_FAILED": (
        "SHAREQUEUE_KAFKA_SASL_USERNAME and SHAREQUEUE_KAFKA_SASL_PASSWORD, or the password's file, are right",
        "SHAREQUEUE_KAFKA_SASL_MECHANISM is one that the broker's listener supports",
        "if the service refuses a token: `sharequeue tokens list`, with its database, shows it as valid",
    ),
    "COORDINATOR_NOT_AVAILABLE": (
        "the service is running: `sharequeue serve`; `sharequeue doctor` checks it",
        "its address is right: --service-url, SHAREQUEUE_SERVICE_URL, or stack.json in the data folder",
    ),
    "NON_EMPTY_GROUP": (
        "no run of the group is active, and its sensor is off: `sharequeue groups describe --members` lists them",
        "killed members have expired: that takes the group's session timeout",
    ),
    "GROUP_ID_NOT_FOUND": (
        "the name is right: `sharequeue groups list`",
        "the database is the right one: `sharequeue doctor` shows its address",
    ),
    "GROUP_AUTHORIZATION_FAILED": (
        "the login in Postgres is the intended one",
        "an ACL allows it, and none denies it: `sharequeue acls list --group G`",
    ),
    "INCONSISTENT_CLUSTER_ID": (
        "the broker's address is that of the state's cluster",
        "every other cluster has its own database",
        "the database is not a copy: `sharequeue adopt` shows to which one the state belongs",
    ),
}


class CommandRefused(click.ClickException):
    """An expected refusal or failure."""

    def __init__(self, error: Exception | str, code: str | None = None) -> None:
        super().__init__(str(error))
        self.code = code or (code_of(error) if isinstance(error, Exception) else "REFUSED")


def code_of(error: BaseException) -> str:
    """Return the code of an error."""
    return error.name if isinstance(error, ShareError) else type(error).__name__


def database_failure(error: SQLAlchemyError) -> CommandRefused:
    """Return the error for operators that corresponds to an error of the database."""
    original = getattr(error, "orig", None)
    reason = "; ".join([first_line(original or error), *getattr(error, "__notes__", ())])
    if sqlstate(error) in _TIMEOUTS:
        return CommandRefused(
            f"Postgres did not finish in the time allowed ({reason}).", RequestTimedOut.name
        )
    if refusal := refusal_of(error):
        codes = {LOGIN: DATABASE_LOGIN_REFUSED, PARAMETER: SETTING_INVALID, TLS: SETTING_INVALID}
        code = codes.get(refusal, DATABASE_NOT_AVAILABLE)
        return CommandRefused(f"The database {refusal.what} ({reason}): {refusal.remedy}.", code)
    if isinstance(original, ReadOnlyDatabase):
        return CommandRefused(reason, DATABASE_NOT_AVAILABLE)
    if original is None or isinstance(error, OperationalError):
        return CommandRefused(f"The database does not respond ({reason}).", DATABASE_NOT_AVAILABLE)
    return CommandRefused(f"Postgres refused the statement ({reason}).", DATABASE_REFUSED)


def setting_failure(error: ValueError | ArgumentError) -> CommandRefused:
    """Return the error for an invalid setting, without values, because they may have passwords."""
    if isinstance(error, ValidationError):
        found = "; ".join(
            f"SHAREQUEUE_{'_'.join(map(str, each['loc'])).upper()}: {each['msg']}"
            for each in error.errors(include_input=False)
        )
        return CommandRefused(f"A setting cannot be read ({found}).", SETTING_INVALID)
    if isinstance(error, SettingInvalid):
        return CommandRefused(f"A setting cannot be read ({error.variable}: {error}).", SETTING_INVALID)
    return CommandRefused(f"The address of the database cannot be read ({error}).", SETTING_INVALID)


def status_of(error: ShareError) -> str:
    """Return the STATUS of a row that was refused."""
    return f"Error: {error.name}: {error}"


def raise_first(errors: Sequence[ShareError]) -> None:
    """Raise the first of the errors, if any, once all rows are printed."""
    if errors:
        raise errors[0]


def print_failure(code: str, message: str) -> None:
    """Print an error on stderr, with the list of things to check if it has one."""
    click.echo(f"Error: {code}: {message}" if code else f"Error: {message}", err=True)
    if _MAKE_SURE.get(code):
        click.echo("Make sure that", err=True)
        for each in _MAKE_SURE[code]:
            click.echo(f"  - {each}", err=True)


def warn_of_letters(statuses: Iterable[SharePartitionStatus]) -> None:
    """Warn of dead letters that are lost if the state of these share-partitions is removed."""
    for each in statuses:
        if each.archiving:
            click.echo(
                f"warning: {each.share_partition}: {each.archiving} dead letters are not yet written, "
                f"and would be lost. Write them first: sharequeue dlq write --group {each.group_id} --execute",
                err=True,
            )
