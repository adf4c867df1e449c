"""Who calls?

Whoever has a token (`Authorization: Bearer sq_…`) is the token's principal; who says nothing is Kafka's
`User:ANONYMOUS`. A header that names nobody is refused: it is never taken for no header. A token counts in this
header alone, because a query string is in the logs of proxies.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import JSONResponse

from sharequeue.database import Database
from sharequeue.groups.tokens import TokenRefused, principal_of

ANONYMOUS = "User:ANONYMOUS"
"""Kafka's principal of a caller that has not said who it is."""


def principal(database: Database, authorization: Sequence[str]) -> str:
    """Return the principal that a request's `Authorization` headers, of which there are some, name.

    Raises TokenRefused for more than one, another scheme, and a token that is not in force.
    """
    scheme, _, secret = authorization[0].partition(" ")
    if len(authorization) > 1 or scheme.lower() != "bearer":
        raise TokenRefused(
            "Say who you are by one header, `Authorization: Bearer sq_…`; leave it out to call as "
            f"{ANONYMOUS}. Another scheme, or a second header, is not taken."
        )
    return principal_of(database, secret.strip(" "))


def unauthenticated(error: TokenRefused) -> JSONResponse:
    """The response to who is not who it says."""
    body = {"error_code": error.code, "error_message": error.message}
    return JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})
