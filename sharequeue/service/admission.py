"""Admit a request: find its principal (`callers`), and apply the rate limit of that principal.

Invalid tokens have a limit of their own, for each network: the responses to them take longer and longer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from starlette.requests import Request

from sharequeue.database import Database
from sharequeue.groups.tokens import TokenRefused, principal_of
from sharequeue.service.callers import (
    ANONYMOUS,
    Throttled,
    certified,
    delay,
    demanded,
    needed_scope,
    network,
    secret_of,
)
from sharequeue.service.edge.rates import BURST_S, Rates
from sharequeue.service.threads import CALLER, Caller, Threads

__all__ = ["Admission", "throttle_time_ms"]

_REFUSED_PER_SECOND = 20
"""Invalid tokens from one network. After more of them, each refusal takes longer, up to five
seconds."""
_LONGEST_DELAY_S = 5.0
_COSTS = {"/v1/share-group-heartbeat": 1, "/ready": 0}
_COST = 5
"""The cost of any other request, in heartbeats: it reads more, and is less frequent."""


class Admission:
    """The admission of one replica. `databases` has the one for the tokens of heartbeats (True), and that for the
    tokens of other requests."""

    def __init__(
        self,
        databases: Mapping[bool, Database],
        threads: Threads,
        *,
        require_token: bool,
        requests_per_second: float,
    ) -> None:
        self.require_token = require_token
        self.refused = Rates(_REFUSED_PER_SECOND)
        """The invalid tokens of each network."""
        self._databases = databases
        self._threads = threads
        self._rates = {beats: Rates(requests_per_second) for beats in (True, False)}

    async def principal(self, request: Request) -> str:
        """Return the principal of a request by the current state of the database; may be called again.

        Raises TokenRefused, ClusterAuthorizationFailed for a token that lacks the scope, Throttled for a caller that
        sends too many requests.
        """
        beats = needed_scope(request) == "heartbeat"
        CALLER.set(Caller(network(request), beats))
        try:
            found = await self._named(request)
        except TokenRefused:
            if "authorization" in request.headers:
                await self.slowed(request)
            raise
        CALLER.set(Caller(found, beats))
        if not hasattr(request.state, "over_s"):
            over = self._rates[beats].take(found, _COSTS.get(request.url.path, _COST))
            if over > BURST_S:
                raise Throttled(over)
            request.state.over_s = over
        return found

    async def slowed(self, request: Request) -> None:
        """Delay responses to invalid tokens; the delay grows with their number from the caller's network."""
        over = self.refused.take(network(request), most_over=_LONGEST_DELAY_S)
        await delay(request, min(over, _LONGEST_DELAY_S))

    async def _named(self, request: Request) -> str:
        if "authorization" in request.headers:
            secret = secret_of(request)
            scope = needed_scope(request)
            database = self._databases[CALLER.get().beats]
            return await self._threads.run(lambda: principal_of(database, secret, scope))
        if (found := certified(request)) is not None:
            return found
        if self.require_token:
            raise demanded()
        return ANONYMOUS


def throttle_time_ms(request: Request) -> int:
    """Return how long the client must wait: its request was processed, but it sends too many."""
    return math.ceil(getattr(request.state, "over_s", 0.0) * 1000)
