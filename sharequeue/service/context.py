"""The shared parts of all requests to the service.

These are the database, the broker, the coordinator and the figures; the principal of a request and its rate limit;
and the threads in which the synchronous calls to the database run: as many at once as the pool has connections, and
not all of them for one caller. Heartbeats have their own threads, connections and rate: they never queue behind other
requests, so that reads never cost a member its session.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio.to_thread import run_sync
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request

from sharequeue.database import Database
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.heartbeats import HeartbeatRequest, HeartbeatResponse, heartbeat
from sharequeue.groups.tokens import TokenRefused, principal_of
from sharequeue.kafka.topics import Topics
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
from sharequeue.service.coordinator import Coordinator
from sharequeue.service.coordinator.watched_topics import record_topics, unknown_topics
from sharequeue.service.edge.rates import BURST_S, Rates
from sharequeue.service.gathered_heartbeats import GatheredHeartbeats
from sharequeue.service.health.faults import Faults
from sharequeue.service.health.servers import DatabaseProbe, ask_broker
from sharequeue.service.health.single_flight import SingleFlight
from sharequeue.service.metrics.registry import Metrics
from sharequeue.words.errors import BrokerNotAvailable, CoordinatorNotAvailable, ShareError
from sharequeue.words.names import listed
from sharequeue.words.settings import Settings

__all__ = ["Service", "refusal", "throttle_time_ms"]

_log = logging.getLogger(__name__)

POOL_SIZE = 10
"""Connections to the database, and concurrent calls to it; the number applies to heartbeats, and again to all
other requests."""

TELL_SECONDS = 2.0
_BROKER_TIMEOUT_S = 5.0
_TURNS = 2
"""Concurrent heartbeats of one group: they wait for each other in the database anyway, each holding a thread."""
_THREADS_OF_ONE = {True: 8, False: 4}
"""Concurrent calls of one caller, heartbeats and others, of the `POOL_SIZE`: there is always a thread for another
caller. Fewer of the others, because they use much CPU time: beside 24 requests for a list of 4,000 groups a heartbeat
took 782 ms (p99) with eight of them and 412 with three, at a load of 10 to 14 on two cores."""
_LONGEST_LINE = 2_000
"""Waiting calls of one caller. The requests of a disconnected client may still be waiting."""
_REFUSED_PER_SECOND = 20
"""Invalid tokens from one network. After more of them, each refusal takes longer, up to five
seconds."""
_LONGEST_DELAY_S = 5.0
_COSTS = {"/v1/share-group-heartbeat": 1, "/ready": 0}
_COST = 5
"""The cost of any other request, in heartbeats: it reads more, and is less frequent."""
_SMALL_BODY_BYTES = 64 << 10

Result = TypeVar("Result")

_caller: ContextVar[str] = ContextVar("caller", default="")
"""The caller of this task's request: its principal; before that is known, its network."""
_beats: ContextVar[bool] = ContextVar("beats", default=False)
"""Whether the request of this task is a heartbeat."""


class Service:
    """The shared parts of the routes: database, broker, coordinator, figures."""

    def __init__(
        self, settings: Settings, configs: ServiceConfigs | None = None, *, require_token: bool = False
    ) -> None:
        self.configs = configs or ServiceConfigs.load()
        self.require_token = require_token
        self.settings = settings
        self.bootstrap_servers = settings.bootstrap_servers
        self.database = Database.open(settings, pool_size=POOL_SIZE)
        self.topics = Topics(settings, timeout=_BROKER_TIMEOUT_S)
        self.topics.check_settings()
        self.coordinator = Coordinator(
            self.database,
            self.topics,
            self.configs,
            dead_letters=settings if settings.drain_dead_letters else None,
        )
        self.faults = Faults(self.coordinator)
        self.metrics = Metrics(self.database, self.coordinator, self.faults)
        self.database_state = SingleFlight(DatabaseProbe(self.database), "sharequeue-database-probe")
        self.broker_state = SingleFlight(lambda: ask_broker(self.topics), "sharequeue-broker-probe")
        self._beats_database = Database.open(settings, pool_size=POOL_SIZE)
        self.metrics.own.count_statements(self._beats_database.engine)
        self._limiters: dict[bool, anyio.CapacityLimiter] = {}
        self._turns: WeakValueDictionary[Hashable, anyio.Semaphore] = WeakValueDictionary()
        self.gathered = GatheredHeartbeats(
            self._beats_database, self.configs, self._run, lambda: self.coordinator.keeps_up
        )
        self._rates = {beats: Rates(settings.service_limits.requests_per_second) for beats in (True, False)}
        self._refused = Rates(_REFUSED_PER_SECOND)

    def _turn(self, of: Hashable, at_once: int = _TURNS) -> anyio.Semaphore:
        turns = self._turns.get(of)
        if turns is None:
            turns = self._turns[of] = anyio.Semaphore(at_once)
        return turns

    @asynccontextmanager
    async def _share(self) -> AsyncIterator[None]:
        share = self._turn(("caller", _beats.get(), _caller.get()), _THREADS_OF_ONE[_beats.get()])
        if share.statistics().tasks_waiting >= _LONGEST_LINE:
            raise Throttled(1.0)
        async with share:
            yield

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Run a synchronous call without blocking others. Raises Throttled if too many calls of the caller wait."""
        async with self._share():
            return await self._run(work)

    async def in_turn(self, group_id: str, work: Callable[[], Result]) -> Result:
        """Run a heartbeat of a group: heartbeats that wait for a locked group must not occupy all threads. The limit
        of the caller applies first, so that a caller outside the group does not delay its members."""
        own = self._turn((_caller.get(), group_id))
        async with own, self._share(), self._turn(group_id):
            return await self._run(work)

    async def _run(self, work: Callable[[], Result]) -> Result:
        beats = _beats.get()
        if beats not in self._limiters:
            self._limiters[beats] = anyio.CapacityLimiter(POOL_SIZE)
        return await run_sync(work, limiter=self._limiters[beats], abandon_on_cancel=True)

    @asynccontextmanager
    async def room_for(self, request: Request) -> AsyncIterator[None]:
        """Wait until a request's whole body may be read: two at a time for one caller if large, or of unknown
        size."""
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:9]) <= _SMALL_BODY_BYTES:
            yield
            return
        async with self._turn(("large", _beats.get(), _caller.get())):
            yield

    async def principal(self, request: Request) -> str:
        """Return the principal of a request by the current state of the database; may be called again.

        Raises TokenRefused, ClusterAuthorizationFailed for a token that lacks the scope, Throttled for a caller that
        sends too many requests.
        """
        origin = network(request)
        _caller.set(origin)
        _beats.set(needed_scope(request) == "heartbeat")
        try:
            found = await self._named(request)
        except TokenRefused:
            if "authorization" in request.headers:
                await self.slowed(request)
            raise
        _caller.set(found)
        if not hasattr(request.state, "over_s"):
            over = self._rates[_beats.get()].take(found, _COSTS.get(request.url.path, _COST))
            if over > BURST_S:
                raise Throttled(over)
            request.state.over_s = over
        return found

    async def slowed(self, request: Request) -> None:
        """Delay responses to invalid tokens; the delay grows with their number from the caller's network."""
        over = self._refused.take(network(request), most_over=_LONGEST_DELAY_S)
        await delay(request, min(over, _LONGEST_DELAY_S))

    async def _named(self, request: Request) -> str:
        if "authorization" in request.headers:
            secret = secret_of(request)
            scope = needed_scope(request)
            database = self._beats_database if _beats.get() else self.database
            return await self.in_thread(lambda: principal_of(database, secret, scope))
        if (found := certified(request)) is not None:
            return found
        if self.require_token:
            raise demanded()
        return ANONYMOUS

    def heartbeat(self, request: HeartbeatRequest, principal: str) -> HeartbeatResponse:
        """Process a heartbeat of a principal. New topics are looked up, so that they are initialised at once."""
        try:
            if request.subscribed_topic_names:
                self._look_up(request.group_id, principal, request.subscribed_topic_names)
            response = heartbeat(self._beats_database, request, self.configs, principal)
        except SQLAlchemyError as error:
            _log_failed(request, str(error).splitlines()[0])
            return refusal(CoordinatorNotAvailable())
        if response.error_code == CoordinatorNotAvailable.code:
            _log_failed(request, response.error_message or "")
        if response.assignment == [] or request.subscribed_topic_names:
            self.coordinator.wake()
        return response

    def _look_up(self, group_id: str, principal: str, names: tuple[str, ...]) -> None:
        unknown = unknown_topics(self._beats_database, group_id, principal, names)
        # If the broker is known to be unavailable, only the watch asks it: a heartbeat must not wait for it.
        if not unknown or "watch" in self.coordinator.faults:
            return
        try:
            found = self.topics.ask(unknown)
        except BrokerNotAvailable as error:
            _log.warning("topics %s cannot be looked up yet: %s", listed(unknown), error)
            return
        # Only new topics: the watch records changes, together with their consequences.
        record_topics(self._beats_database, found.known, ())

    def tell(self, stop: threading.Event) -> None:
        """Every two seconds, update the faults, and record this replica's work for the other replicas."""
        while not stop.is_set():
            self.faults.look()
            try:
                self.coordinator.work.write(self.database, self.coordinator.name)
            except (SQLAlchemyError, ShareError) as error:
                # The coordinator gets the same error and logs it.
                _log.debug("the ages of this replica's work could not be written: %s", error)
            stop.wait(TELL_SECONDS)

    def close(self) -> None:
        """Close the connections to the database and the broker."""
        self.topics.close()
        self.database.close()
        self._beats_database.close()


def _log_failed(request: HeartbeatRequest, reason: str) -> None:
    _log.warning(
        "heartbeat of %s failed: %s",
        request.member_id,
        reason,
        extra={"group": request.group_id, "member": request.member_id, "run": request.client_id},
    )


def throttle_time_ms(request: Request) -> int:
    """Return how long the client must wait: its request was processed, but it sends too many."""
    return math.ceil(getattr(request.state, "over_s", 0.0) * 1000)


def refusal(error: ShareError) -> HeartbeatResponse:
    """Return an error as the response to a heartbeat."""
    return HeartbeatResponse(error_code=error.code, error_message=error.message)
