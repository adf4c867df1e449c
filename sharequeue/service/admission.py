"""Who may use how much of the service: the principal of a request, its rate, and its threads.

With a token (`Authorization: Bearer sq_…`) the principal is the token's; else with a client certificate it is the
certificate's subject; else it is Kafka's `User:ANONYMOUS`, or the request is refused. A header with an invalid token
is refused, and never treated as a missing header. A token is read from this header only, because proxies log query
strings. Invalid tokens have a rate of their own, for each network: the responses to them take longer and longer.

The synchronous calls of requests run in as many threads as a pool has connections, and not all of them are for one
caller. Heartbeats have their own rate, threads and connections, so that they never queue behind other requests: reads
never cost a member its session. So have pages, with a limit of time.
"""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio import sleep
from anyio.to_thread import run_sync
from starlette.requests import Request

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.tokens import TokenRefused, principal_of
from sharequeue.service.edge.connections import CONNECTION, Connection
from sharequeue.service.edge.rates import BURST_S, Rates, network_of
from sharequeue.service.error_responses import Throttled, token_required

__all__ = [
    "ANONYMOUS",
    "CALLER",
    "POOL_SIZE",
    "Admission",
    "Caller",
    "Threads",
    "address",
    "database_of_pages",
    "delay",
    "throttle_time_ms",
]

ANONYMOUS = "User:ANONYMOUS"
"""Kafka's principal of an unauthenticated caller."""

_REFUSED_PER_SECOND = 20
"""Invalid tokens from one network. After more of them, each refusal takes longer, up to five
seconds."""
_LONGEST_DELAY_S = 5.0

POOL_SIZE = 10
"""Connections to the database, and concurrent calls to it; the number applies to heartbeats, and again to all
other requests."""
_TURNS = 2
"""Concurrent heartbeats of one group: they wait for each other in the database anyway, each holding a thread."""
_THREADS_OF_ONE = {True: 8, False: 4}
"""Concurrent calls of one caller, heartbeats and others, of the `POOL_SIZE`: there is always a thread for another
caller. Fewer of the others, because they use much CPU time: beside 24 requests for a list of 4,000 groups a heartbeat
took 782 ms (p99) with eight of them and 412 with three, at a load of 10 to 14 on two cores."""
_LONGEST_LINE = 2_000
"""Waiting calls of one caller. The requests of a disconnected client may still be waiting."""
_SMALL_BODY_BYTES = 64 << 10

STATEMENT_SECONDS = 5.0
"""The longest statement of a page."""
PAGE_SECONDS = 30.0
"""How long a page waits for its turn and is made."""
PAGES_AT_ONCE = 3
"""The maximum number of concurrent pages; each has a connection."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request."""

    name: str = ""
    """Its principal; before that is known, its network."""
    beats: bool = False
    """Whether the request is a heartbeat."""


CALLER: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 - it is frozen
"""The caller of this task's request."""


def secret_of(request: Request) -> str:
    """Return the token in a request's `Authorization` headers; there is at least one.

    A request that only reads may have the token as the password of `Basic`, as browsers send it. Browsers also add it
    to requests that another site causes; so such a request must not change anything. Raises TokenRefused for more
    than one header, and for another scheme.
    """
    first, *more = request.headers.getlist("authorization")
    scheme, _, secret = first.partition(" ")
    if not more and scheme.lower() == "bearer":
        return secret.strip(" ")
    if not more and scheme.lower() == "basic" and request.method in ("GET", "HEAD"):
        with suppress(ValueError):
            return b64decode(secret.strip(" "), validate=True).decode().partition(":")[2]
    raise TokenRefused(
        "Authenticate with one header, `Authorization: Bearer sq_…`, or leave it out to call as "
        f"{ANONYMOUS}. Other schemes, or a second header, are not accepted. A GET may have the token as the "
        "password of `Basic`."
    )


def certified(request: Request) -> str | None:
    """Return the principal of the client's certificate, as Kafka names it; None without a certificate."""
    connection = _connection(request)
    return None if connection is None else connection.principal


def network(request: Request) -> str:
    """Return the origin of a request: the remote address of its connection. Headers do not count."""
    if (connection := _connection(request)) is not None:
        return connection.network
    return network_of(request.client.host) if request.client else ""


def address(request: Request) -> str:
    """Return the address of a client for people: what a trusted proxy has named, if that is an address, else that of
    the connection."""
    named = request.client.host if request.client else ""
    with suppress(ValueError):
        return str(ip_address(named.partition("%")[0]))
    connection = _connection(request)
    return str(connection.address[0][0]) if connection is not None else ""


def _connection(request: Request) -> Connection | None:
    found: Connection | None = request.scope.get(CONNECTION)
    return found


async def delay(request: Request, seconds: float) -> None:
    """Delay the response to a request; if there are too many connections, its connection is closed first."""
    with client_is_not_late(request):
        await sleep(seconds)


def client_is_not_late(request: Request) -> AbstractContextManager[None]:
    """Return a block in which the service itself makes the client wait: that time does not count as the client's. If
    there are too many connections, this one is closed first."""
    connection = _connection(request)
    return nullcontext() if connection is None else connection.waits_for_us()


class Threads:
    """The threads of one replica, and the callers that wait for one."""

    def __init__(self) -> None:
        self._limiters: dict[Hashable, anyio.CapacityLimiter] = {}
        self._turns: WeakValueDictionary[Hashable, anyio.Semaphore] = WeakValueDictionary()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run a synchronous call without blocking others. Raises Throttled if too many calls of the caller wait."""
        async with self._share():
            return await self.run_at_once(work)

    async def run_in_turn(self, group_id: str, work: Callable[[], Result]) -> Result:
        """Run a heartbeat of a group: heartbeats that wait for a locked group must not occupy all threads. The limit
        of the caller applies first, so that a caller outside the group does not delay its members."""
        own = self._turn((CALLER.get().name, group_id))
        async with own, self._share(), self._turn(group_id):
            return await self.run_at_once(work)

    async def run_at_once(self, work: Callable[[], Result]) -> Result:
        """Run a synchronous call in the next free thread, without the limit of its caller."""
        return await self._in_one_of(POOL_SIZE, CALLER.get().beats, work)

    async def run_page(self, work: Callable[[], Result]) -> Result:
        """Run the synchronous call that makes a page. Raises TimeoutError."""
        with anyio.fail_after(PAGE_SECONDS):
            return await self._in_one_of(PAGES_AT_ONCE, "pages", work)

    @asynccontextmanager
    async def room_for(self, request: Request) -> AsyncIterator[None]:
        """Wait until a request's whole body may be read: two at a time for one caller if large, or of unknown
        size."""
        length = request.headers.get("content-length", "")
        # The first digits are enough, but not leading zeros.
        if length.isdecimal() and int(length.lstrip("0")[:9] or 0) <= _SMALL_BODY_BYTES:
            yield
            return
        turn = self._turn(("large", CALLER.get()))
        with client_is_not_late(request):
            await turn.acquire()
        try:
            yield
        finally:
            turn.release()

    @asynccontextmanager
    async def _share(self) -> AsyncIterator[None]:
        caller = CALLER.get()
        share = self._turn(("caller", caller), _THREADS_OF_ONE[caller.beats])
        if share.statistics().tasks_waiting >= _LONGEST_LINE:
            raise Throttled(1.0)
        async with share:
            yield

    async def _in_one_of(self, threads: int, whose: Hashable, work: Callable[[], Result]) -> Result:
        if whose not in self._limiters:
            self._limiters[whose] = anyio.CapacityLimiter(threads)
        return await run_sync(work, limiter=self._limiters[whose], abandon_on_cancel=True)

    def _turn(self, of: Hashable, at_once: int = _TURNS) -> anyio.Semaphore:
        turns = self._turns.get(of)
        if turns is None:
            turns = self._turns[of] = anyio.Semaphore(at_once)
        return turns


def database_of_pages(settings: Settings) -> Database:
    """Open the pages' own connections: they never take any from heartbeats."""
    options = replace(
        settings.database,
        pool_size=PAGES_AT_ONCE,
        statement_timeout_ms=int(STATEMENT_SECONDS * 1000),
        lock_timeout_ms=1000,
    )
    return Database(settings.database_url, options=options)


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

    async def principal(self, request: Request, scope: str, cost: int) -> str:
        """Return the principal of a request by the current state of the database; may be called again.

        `scope` is the one that its token needs, and `cost` what it takes of the principal's rate, in heartbeats.

        Raises TokenRefused, ClusterAuthorizationFailed for a token that lacks the scope, Throttled for a caller that
        sends too many requests.
        """
        beats = scope == "heartbeat"
        CALLER.set(Caller(network(request), beats))
        try:
            found = await self._named(request, scope)
        except TokenRefused:
            if "authorization" in request.headers:
                await self.slowed(request)
            raise
        CALLER.set(Caller(found, beats))
        if not hasattr(request.state, "over_s"):
            over = self._rates[beats].take(found, cost)
            if over > BURST_S:
                raise Throttled(over)
            request.state.over_s = over
        return found

    async def slowed(self, request: Request) -> None:
        """Delay responses to invalid tokens; the delay grows with their number from the caller's network."""
        over = self.refused.take(network(request), most_over=_LONGEST_DELAY_S)
        await delay(request, min(over, _LONGEST_DELAY_S))

    async def _named(self, request: Request, scope: str) -> str:
        if "authorization" in request.headers:
            secret = secret_of(request)
            database = self._databases[CALLER.get().beats]
            return await self._threads.run(lambda: principal_of(database, secret, scope))
        if (found := certified(request)) is not None:
            return found
        if self.require_token:
            raise token_required()
        return ANONYMOUS


def throttle_time_ms(request: Request) -> int:
    """Return how long the client must wait: its request was processed, but it sends too many."""
    return math.ceil(getattr(request.state, "over_s", 0.0) * 1000)
