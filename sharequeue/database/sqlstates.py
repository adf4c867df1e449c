"""The errors of Postgres that callers handle: their SQLSTATEs, and refused logins, which have none."""

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

DEADLOCK = "40P01"
LOCK_NOT_AVAILABLE = "55P03"
"""A wait for a lock exceeded its timeout."""
QUERY_CANCELLED = "57014"
"""A statement exceeded its timeout."""


def sqlstate(error: SQLAlchemyError) -> str | None:
    """Return the SQLSTATE that Postgres gave an error; None if the error is not Postgres's."""
    state: str | None = getattr(getattr(error, "orig", None), "pgcode", None)
    return state


_REFUSED = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "not permitted to log in",
    "no such database",
    "no such user",
)
"""Messages of Postgres and PgBouncer for a wrong login or database. The driver has no SQLSTATE for them."""


def is_login_refused(error: DBAPIError) -> bool:
    """Return whether the server responds, but refuses this login, or has no database of this name."""
    return any(message in str(error.orig) for message in _REFUSED)
