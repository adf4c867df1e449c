"""Who is signed in to the pages?

A browser cannot send a token by itself, and is not to keep one. Whoever signs in with a token gets a session: a
secret of its own in a cookie, which only the pages take, and which ends by itself, with the token, or by signing out.
The database has its SHA-256, so every replica knows it, and a copy of the database opens nothing.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import timedelta

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.groups.tokens import hash_of, principal_of

__all__ = ["LIFETIME", "close_session", "open_session", "principal_of_session"]

LIFETIME = timedelta(hours=8)
_MOST = 20
"""Sessions of one token: one more ends the oldest."""
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")

_OPEN = sa.text(
    "insert into sharequeue.page_sessions (session_hash, token_id, opened_at, expires_at)"
    " select :session, token_id, sharequeue.clock(), sharequeue.clock() + cast(:lifetime as interval)"
    " from sharequeue.service_tokens where secret_hash = :token"
)
_CLEAN = sa.text(
    "delete from sharequeue.page_sessions s using ("
    " select session_hash, expires_at, row_number() over (partition by token_id order by opened_at desc) as place"
    " from sharequeue.page_sessions) as old"
    " where old.session_hash = s.session_hash and (old.expires_at <= sharequeue.clock() or old.place > :most)"
)
_PRINCIPAL = sa.text(
    "select sharequeue.principal_of_token(t.secret_hash, :scope) as found"
    " from sharequeue.page_sessions s join sharequeue.service_tokens t using (token_id)"
    " where s.session_hash = :session and s.expires_at > sharequeue.clock()"
)


def open_session(database: Database, token: str) -> str:
    """Sign in with a token; return the secret of the session.

    Raises TokenRefused, and ClusterAuthorizationFailed where the token is not good for looking.
    """
    principal_of(database, token, "describe")
    secret = secrets.token_urlsafe(32)
    with database.transaction() as connection:
        connection.execute(_OPEN, {"session": _hash(secret), "token": hash_of(token), "lifetime": LIFETIME})
        connection.execute(_CLEAN, {"most": _MOST})
    return secret


def principal_of_session(database: Database, secret: str, scope: str) -> str | None:
    """Return as whom a session's bearer acts; None where there is no such session, or its token is not in force.

    Raises ClusterAuthorizationFailed where the token has not that scope.
    """
    if not _SECRET.fullmatch(secret):
        return None
    rows = database.rows(_PRINCIPAL, session=_hash(secret), scope=scope)
    return rows[0]["found"] if rows else None


def close_session(database: Database, secret: str) -> None:
    """Sign out. Does nothing where there is no such session."""
    query = sa.text("delete from sharequeue.page_sessions where session_hash = :session")
    with database.transaction() as connection:
        connection.execute(query, {"session": _hash(secret)})


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
