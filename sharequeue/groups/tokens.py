"""Tokens, and the principal that each stands for.

Bearer tokens for the HTTP API of the service (`Authorization: Bearer sq_…`). A secret is shown once, when it is
created, and the caller stores it; the database has its SHA-256, by which it is found. What a principal may do is in
`acls`.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import SaslAuthenticationFailed

__all__ = ["SCOPES", "Token", "TokenRefused", "Tokens", "authorization", "hash_of", "principal_of"]

_PREFIX = "sq_"
"""The prefix of a secret, so that scanners find published ones."""
_BYTES = 32
_SECRET = re.compile(r"sq_[A-Za-z0-9_-]{43}")
_COLUMNS = "token_id, principal, note, created_at, expires_at, revoked_at, scopes"

SCOPES = ("heartbeat", "describe", "metrics", "admin")
"""The scopes of tokens. Every request needs one of them, in this order: heartbeats; reading of groups; `/metrics` and
all of `/ready`; every change."""


class TokenRefused(SaslAuthenticationFailed):
    """The token is invalid. Clients get Kafka's error; the service can tell it from a refusal by its broker."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the database has it, without its secret."""

    token_id: UUID
    principal: str
    note: str | None
    created_at: datetime
    expires_at: datetime | None
    """None: it does not expire."""
    revoked_at: datetime | None = None
    state: Literal["in force", "expired", "revoked"] = "in force"
    scopes: Sequence[str] | None = None
    """Its scopes, of `SCOPES`; None is all."""


class Tokens:
    """The tokens in one database. Changing them needs the owner's or the service's role (ClusterAuthorizationFailed
    otherwise); every change is in the audit trail."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        principal: str,
        lifetime: timedelta | None = None,
        note: str | None = None,
        scopes: Iterable[str] = (),
    ) -> tuple[Token, str]:
        """Make a token for a principal (`User:<name>`); return it and its secret, which is not stored.

        Without a lifetime it does not expire, and without scopes it has all of `SCOPES`. Raises InvalidRequest for an
        invalid principal, lifetime, note or scope.
        """
        limited = sorted(set(scopes)) or None
        secret = _PREFIX + secrets.token_urlsafe(_BYTES)
        [row] = self._database.call(
            sa.text(
                "select * from sharequeue.create_token(:principal, cast(:hash as bytea),"
                " cast(:lifetime as interval), :note, cast(:scopes as text[]))"
            ),
            principal=principal,
            hash=hash_of(secret),
            lifetime=lifetime,
            note=note,
            scopes=limited,
        )
        return Token(principal=principal, note=note, scopes=limited, **row), secret

    def find(self, principal: str | None = None) -> list[Token]:
        """Return all tokens, or those of a principal, also expired and revoked ones; the oldest first."""
        rows = self._database.rows(
            sa.text(
                f"select {_COLUMNS}, state from sharequeue.token_list"  # noqa: S608 - columns of ours
                " where principal = coalesce(:principal, principal) order by created_at, token_id"
            ),
            principal=principal,
        )
        return [Token(**row) for row in rows]

    def revoke(
        self, token_id: UUID | None = None, principal: str | None = None, *, dry_run: bool = False
    ) -> list[Token]:
        """Revoke the tokens that match all that is given; return them. They are refused from the next request on.

        With `dry_run` nothing changes. Raises InvalidRequest if nothing is given.
        """
        rows = self._database.call(
            sa.text(
                f"select {_COLUMNS} from sharequeue.revoke_tokens("  # noqa: S608 - columns of ours
                "cast(:token_id as uuid), :principal, :dry_run)"
            ),
            token_id=None if token_id is None else str(token_id),
            principal=principal,
            dry_run=dry_run,
        )
        return [Token(**row, state="in force" if dry_run else "revoked") for row in rows]


def hash_of(secret: str) -> bytes:
    """Return the hash of a secret, as the database stores it.

    Raises TokenRefused if it is not a secret; the message does not contain the given text.
    """
    if not _SECRET.fullmatch(secret):
        raise TokenRefused(
            "The token is malformed: expected sq_ and 43 letters, digits, - and _. `sharequeue tokens "
            "create` creates one."
        )
    return hashlib.sha256(secret.encode()).digest()


def principal_of(database: Database, secret: str, scope: str) -> str:
    """Return the principal of the bearer of a secret, for a request that needs a scope.

    Raises TokenRefused for an invalid or expired token, ClusterAuthorizationFailed if the token lacks that scope.
    """
    [row] = database.rows(
        sa.text("select sharequeue.principal_of_token(cast(:hash as bytea), :scope) as found"),
        hash=hash_of(secret),
        scope=scope,
    )
    if row["found"] is None:
        raise TokenRefused(
            "The token is unknown, has expired, or was revoked. `sharequeue tokens list` shows the existing "
            "ones, `sharequeue tokens create` creates another."
        )
    return str(row["found"])


def authorization(secret: str | None) -> dict[str, Any]:
    """Return the header by which a client authenticates; none without a secret.

    Raises TokenRefused for a malformed secret, which is then not sent.
    """
    if secret is None:
        return {}
    hash_of(secret)
    return {"Authorization": f"Bearer {secret}"}
