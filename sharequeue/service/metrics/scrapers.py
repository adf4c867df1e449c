"""Who has scraped this replica, so that it can be scraped while the database, which has the tokens, is away.

Otherwise a Prometheus with a token could not see that the database is down, only that the replica refuses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256

from starlette.requests import Request

__all__ = ["Scrapers"]

KNOWN_SECONDS = 86_400.0
"""How long a token is accepted without the database after the database has last accepted it."""
MOST = 100
"""The maximum number of tokens, the last ones."""


class Scrapers:
    """The tokens that the database has accepted for `/metrics`, as hashes. `monotonic` returns seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._accepted: dict[bytes, float] = {}

    def accept(self, request: Request) -> None:
        """Record that the database has accepted the token of a request."""
        if (token := _hashed(request)) is not None:
            self._accepted.pop(token, None)
            self._accepted[token] = self._monotonic()
            for oldest in list(self._accepted)[:-MOST]:
                del self._accepted[oldest]

    def refuse(self, request: Request) -> None:
        """Record that the database has refused it, as it does once the token is revoked."""
        if (token := _hashed(request)) is not None:
            self._accepted.pop(token, None)

    def knows(self, request: Request) -> bool:
        """Return whether the database has accepted the token, and not refused it since."""
        token = _hashed(request)
        accepted = None if token is None else self._accepted.get(token)
        return accepted is not None and self._monotonic() - accepted < KNOWN_SECONDS


def _hashed(request: Request) -> bytes | None:
    header = request.headers.get("authorization")
    return None if header is None else sha256(header.encode()).digest()
