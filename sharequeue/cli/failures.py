"""How an error is written: its code, what happened, and what to look at.

A code is Kafka's name where the error is Kafka's (`NON_EMPTY_GROUP`), else the name of our class (`SettingMissing`).
"""

from __future__ import annotations

from collections.abc import Mapping

import click

from sharequeue.errors import ShareError

__all__ = ["DATABASE_NOT_AVAILABLE", "Refused", "code_of", "print_failure"]

DATABASE_NOT_AVAILABLE = "DATABASE_NOT_AVAILABLE"

_MAKE_SURE: Mapping[str, tuple[str, ...]] = {
    DATABASE_NOT_AVAILABLE: (
        "Postgres runs: `sharequeue doctor` checks it",
        "its address is right: --database-url, SHAREQUEUE_DATABASE_URL, or stack.json in the data folder",
        "this machine may reach it, and the login and its password are right",
    ),
    "BROKER_NOT_AVAILABLE": (
        "Kafka runs: `sharequeue doctor` checks it",
        "its address is right: --bootstrap-server, SHAREQUEUE_BOOTSTRAP_SERVERS, or stack.json in the data folder",
        "the security settings SHAREQUEUE_KAFKA_… are those of the broker",
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


def print_failure(code: str, message: str) -> None:
    """Print an error on stderr, with the list of what to look at where there is one."""
    click.echo(f"Error: {code}: {message}" if code else f"Error: {message}", err=True)
    if _MAKE_SURE.get(code):
        click.echo("Make sure that", err=True)
        for each in _MAKE_SURE[code]:
            click.echo(f"  - {each}", err=True)
