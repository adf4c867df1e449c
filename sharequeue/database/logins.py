"""Distinguish a login that Postgres refuses from a server that is not available."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

__all__ = ["is_login_refused"]

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
