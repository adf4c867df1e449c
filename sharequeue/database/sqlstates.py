"""The SQLSTATEs of Postgres that callers handle, and how to read one from an error."""

from sqlalchemy.exc import SQLAlchemyError

DEADLOCK = "40P01"
LOCK_NOT_AVAILABLE = "55P03"
"""A wait for a lock exceeded its timeout."""
QUERY_CANCELLED = "57014"
"""A statement exceeded its timeout."""


def sqlstate(error: SQLAlchemyError) -> str | None:
    """Return the SQLSTATE that Postgres gave an error; None if the error is not Postgres's."""
    state: str | None = getattr(getattr(error, "orig", None), "pgcode", None)
    return state
