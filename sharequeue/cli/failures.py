"""How an error is written: its code, what happened, and what to look at.

A code is Kafka's name where the error is Kafka's (`NON_EMPTY_GROUP`), else the name of our class (`SettingMissing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import click
from pydantic import ValidationError
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError

from sharequeue.errors import RequestTimedOut, ShareError
from sharequeue.jvm.jar_sets import JarSetInvalid
from sharequeue.settings import OutputInvalid
from sharequeue.values import SharePartitionStatus

__all__ = [
    "Refused",
    "code_of",
    "database_failure",
    "print_failure",
    "raise_first",
    "setting_failure",
    "status_of",
    "warn_of_letters",
]

_TIMEOUTS = ("57014", "55P03")
"""SQLSTATEs of a statement, and of a wait for a lock, that took too long."""
DATABASE_NOT_AVAILABLE = "DATABASE_NOT_AVAILABLE"

DATABASE_REFUSED = "DATABASE_REFUSED"
SETTING_INVALID = "SETTING_INVALID"

_MAKE_SURE: Mapping[str, tuple[str, ...]] = {
    DATABASE_NOT_AVAILABLE: (
        "Postgres runs: `sharequeue doctor` checks it",
        "its address is right: --database-url, SHAREQUEUE_DATABASE_URL, or stack.json in the data folder",
        "this machine may reach it, and the login and its password are right",
    ),
    DATABASE_REFUSED: (
        "the login has the role for this: `sharequeue migrate --roles` makes the roles and grants to them",
        "the database is the right one: `sharequeue doctor` shows its address, and checks its schema",
    ),
    SETTING_INVALID: (
        "the address is as postgresql://user:password@host:5432/name: --database-url, SHAREQUEUE_DATABASE_URL",
        "the other variables SHAREQUEUE_… have values of their kind",
    ),
    RequestTimedOut.name: (
        "nobody holds a lock for long in Postgres: see `pg_stat_activity`",
        "SHAREQUEUE_DATABASE_STATEMENT_TIMEOUT_MS and SHAREQUEUE_DATABASE_LOCK_TIMEOUT_MS are long enough",
    ),
    "BROKER_NOT_AVAILABLE": (
        "Kafka runs: `sharequeue doctor` checks it",
        "its address is right: --bootstrap-server, SHAREQUEUE_BOOTSTRAP_SERVERS, or stack.json in the data folder",
        "the security settings SHAREQUEUE_KAFKA_… are those of the broker",
    ),
    "SASL_AUTHENTICATION_FAILED": (
        "SHAREQUEUE_KAFKA_SASL_USERNAME and SHAREQUEUE_KAFKA_SASL_PASSWORD, or the password's file, are right",
        "SHAREQUEUE_KAFKA_SASL_MECHANISM is one that the broker's listener takes",
        "if the service refuses a token: `sharequeue tokens list`, on its database, says that it is in force",
    ),
    "COORDINATOR_NOT_AVAILABLE": (
        "the service runs: `sharequeue serve`, and `sharequeue doctor` checks it",
        "its address is right: --service-url, SHAREQUEUE_SERVICE_URL, or stack.json in the data folder",
    ),
    "NON_EMPTY_GROUP": (
        "no run of the group is active, and its sensor is off: `sharequeue members --group G` shows who is there",
        "members that were killed have expired: that takes the group's session timeout",
    ),
    "GROUP_ID_NOT_FOUND": (
        "the name is right: `sharequeue groups list`",
        "the database is the right one: `sharequeue doctor` shows its address",
    ),
    "GROUP_AUTHORIZATION_FAILED": (
        "the login in Postgres is the one that you mean",
        "an ACL allows it, and none denies it: `sharequeue acls list --group G`",
    ),
    "INCONSISTENT_CLUSTER_ID": (
        "the broker's address is that of the cluster whose records this state is of",
        "another cluster has a database of its own",
    ),
}


class Refused(click.ClickException):
    """Something was refused, or failed, as was to be expected."""

    def __init__(self, error: Exception | str, code: str | None = None) -> None:
        super().__init__(str(error))
        self.code = code or (code_of(error) if isinstance(error, Exception) else "REFUSED")


def code_of(error: BaseException) -> str:
    """Return the code of an error."""
    return error.name if isinstance(error, ShareError) else type(error).__name__


def database_failure(error: SQLAlchemyError) -> Refused:
    """Return what an error of the database means to an operator."""
    original = getattr(error, "orig", None)
    reason = next(iter(str(original or error).strip().splitlines()), type(error).__name__)
    if getattr(original, "pgcode", None) in _TIMEOUTS:
        return Refused(f"Postgres was not done in the time allowed ({reason}).", RequestTimedOut.name)
    if original is None or isinstance(error, OperationalError):
        return Refused(f"The database does not answer ({reason}).", DATABASE_NOT_AVAILABLE)
    return Refused(f"Postgres refused this ({reason}).", DATABASE_REFUSED)


def setting_failure(error: ValueError | ArgumentError) -> Refused:
    """Return what a setting that cannot be read means to an operator; values are left out, there may be passwords."""
    if isinstance(error, ValidationError):
        found = "; ".join(
            f"SHAREQUEUE_{'_'.join(map(str, each['loc'])).upper()}: {each['msg']}"
            for each in error.errors(include_input=False)
        )
        return Refused(f"A setting cannot be read ({found}).", SETTING_INVALID)
    if isinstance(error, OutputInvalid):
        return Refused(f"A setting cannot be read (SHAREQUEUE_OUTPUT: {error}).", SETTING_INVALID)
    if isinstance(error, JarSetInvalid):
        return Refused(f"A setting cannot be read (SHAREQUEUE_SPARK_JARS: {error}).", SETTING_INVALID)
    return Refused(f"The address of the database cannot be read ({error}).", SETTING_INVALID)


def status_of(error: ShareError) -> str:
    """Return the STATUS of a row whose part was refused."""
    return f"Error: {error.name}: {error}"


def raise_first(errors: Sequence[ShareError]) -> None:
    """Raise the first of the errors, if any, once the rows of all parts are printed."""
    if errors:
        raise errors[0]


def print_failure(code: str, message: str) -> None:
    """Print an error on stderr, with the list of what to look at where there is one."""
    click.echo(f"Error: {code}: {message}" if code else f"Error: {message}", err=True)
    if _MAKE_SURE.get(code):
        click.echo("Make sure that", err=True)
        for each in _MAKE_SURE[code]:
            click.echo(f"  - {each}", err=True)


def warn_of_letters(statuses: Iterable[SharePartitionStatus]) -> None:
    """Say how many dead letters would be lost where the state of these share-partitions is dropped."""
    for each in statuses:
        if each.archiving:
            click.echo(
                f"warning: {each.share_partition}: {each.archiving} dead letters are not written yet, "
                f"and would be lost. Write them first: sharequeue dlq drain --group {each.group_id} --execute",
                err=True,
            )
