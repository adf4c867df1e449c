"""The errors of Postgres that callers handle: their SQLSTATEs, and those that a session's state causes."""

import psycopg2
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database.refusals import refusal_of
from sharequeue.domain.errors import first_line

DEADLOCK = "40P01"
LOCK_NOT_AVAILABLE = "55P03"
"""A wait for a lock exceeded its timeout."""
QUERY_CANCELLED = "57014"
"""A statement exceeded its timeout."""
FORBIDDEN = "42501"
"""The login has no right."""
DUPLICATE_OBJECT = "42710"
"""An object of this name exists."""
DUPLICATE_ROW = "23505"
"""A row with this key exists; also an object of this name, if it is created at the same time."""
READ_ONLY = "25006"
"""A statement that writes, in a read-only transaction."""

_OF_THE_SESSION = ("25", "26")
"""Classes of errors that are the session's, not the call's: the transaction is read-only or aborted, a prepared
statement is gone. On another session the same call may succeed."""
_PERHAPS_OF_THE_SESSION = ("0A", "22021", "22P05", "28", "3D", "3F", "42", "XX")
"""Classes of errors that a session's state may cause, but a mistake in the call may as well: a role or search_path
that was set, a login that was dropped and created again, an encoding, a cached plan."""


def sqlstate(error: SQLAlchemyError) -> str | None:
    """Return the SQLSTATE that Postgres gave an error; None if the error is not Postgres's."""
    state: str | None = getattr(getattr(error, "orig", None), "pgcode", None)
    return state


class ReadOnlyDatabase(psycopg2.OperationalError):
    """The database is read-only: nothing can be written, and all work waits. It is a standby, or
    default_transaction_read_only is on, which managed servers set when their disk is full. Make it writable, or let
    the address lead to the primary server; work then goes on by itself."""

    pgcode = READ_ONLY

    def __init__(self) -> None:
        super().__init__(" ".join((self.__doc__ or "").split()))


def is_of_the_session(error: SQLAlchemyError) -> bool:
    """Return whether the session causes the error, so that it must be ended."""
    return (sqlstate(error) or "").startswith(_OF_THE_SESSION)


def may_be_of_the_session(error: SQLAlchemyError) -> bool:
    """Return whether the session may cause the error: the call is worth a try on another one."""
    return (sqlstate(error) or "").startswith(_OF_THE_SESSION + _PERHAPS_OF_THE_SESSION)


def outage_reason(error: SQLAlchemyError) -> str:
    """Return why the database cannot be used, on one line: it is read-only, refuses the connection, or is away."""
    original = getattr(error, "orig", None) or error
    reason = first_line(original)
    if isinstance(original, ReadOnlyDatabase):
        return reason
    refusal = refusal_of(error)
    return f"the database {refusal.what if refusal else 'does not answer'}: {reason}"
