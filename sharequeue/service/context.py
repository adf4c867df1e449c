"""What do all requests to the service share?

The database, the broker, the coordinator and the figures; as whom a request is done; and how calls to the database,
which are synchronous, run in threads: as many at once as the pool has connections.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio.to_thread import run_sync
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request

from sharequeue.database import Database
from sharequeue.errors import BrokerNotAvailable, CoordinatorNotAvailable, ShareError
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.heartbeats import HeartbeatRequest, HeartbeatResponse, heartbeat
from sharequeue.groups.tokens import principal_of
from sharequeue.kafka.topics import Topics
from sharequeue.names import listed
from sharequeue.service.callers import ANONYMOUS, certified, demanded, secret_of
from sharequeue.service.coordinator import Coordinator
from sharequeue.service.metrics import Metrics
from sharequeue.service.watched_topics import record_topics, unknown_names
from sharequeue.settings import Settings

__all__ = ["Service", "refusal"]

_log = logging.getLogger(__name__)

POOL_SIZE = 10
"""Connections to the database, and calls to it at once."""

_BROKER_TIMEOUT_S = 5.0
_TURNS = 2
"""Heartbeats of one group at a time: they wait for each other in the database anyway, each holding a thread."""

Result = TypeVar("Result")


class Service:
    """What the routes share: database, broker, coordinator, figures."""

    def __init__(
        self, settings: Settings, configs: ServiceConfigs | None = None, *, require_token: bool = False
    ) -> None:
        self.configs = configs or ServiceConfigs.load()
        self.require_token = require_token
        self.bootstrap_servers = settings.bootstrap_servers
        self.database = Database.open(settings, pool_size=POOL_SIZE)
        self.topics = Topics(settings, timeout=_BROKER_TIMEOUT_S)
        self.coordinator = Coordinator(
            self.database,
            self.topics,
            self.configs,
            dead_letters=settings if settings.drain_dead_letters else None,
        )
        self.metrics = Metrics(self.database)
        self._limiter: anyio.CapacityLimiter | None = None
        self._turns: WeakValueDictionary[str, anyio.Semaphore] = WeakValueDictionary()

    def turn_of(self, group_id: str) -> anyio.Semaphore:
        """The semaphore of a group: heartbeats that wait for a locked group must not take every thread."""
        turns = self._turns.get(group_id)
        if turns is None:
            turns = self._turns[group_id] = anyio.Semaphore(_TURNS)
        return turns

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Run a synchronous call without holding up the others."""
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(POOL_SIZE)
        return await run_sync(work, limiter=self._limiter, abandon_on_cancel=True)

    async def principal(self, request: Request) -> str:
        """As whom a request is done, by the database as it is now. Raises TokenRefused."""
        named = request.headers.getlist("authorization")
        if named:
            secret = secret_of(named)
            return await self.in_thread(lambda: principal_of(self.database, secret))
        if (found := certified(request)) is not None:
            return found
        if self.require_token:
            raise demanded()
        return ANONYMOUS

    def heartbeat(self, request: HeartbeatRequest, principal: str) -> HeartbeatResponse:
        """Process a heartbeat of a principal. Topics that are new are looked up, so that they are initialised at
        once."""
        try:
            if request.subscribed_topic_names:
                self._look_up(request.subscribed_topic_names)
            response = heartbeat(self.database, request, self.configs, principal)
        except SQLAlchemyError as error:
            reason = str(error).splitlines()[0]
            _log.warning("heartbeat of %s failed: %s", request.member_id, reason)
            return refusal(CoordinatorNotAvailable())
        if response.assignment == () or request.subscribed_topic_names:
            self.coordinator.wake()
        return response

    def _look_up(self, names: tuple[str, ...]) -> None:
        unknown = unknown_names(self.database, names)
        # A broker that is known to be away is left to the watch: a heartbeat must not wait for it.
        if not unknown or "watch" in self.coordinator.faults:
            return
        try:
            found = self.topics.ask(unknown)
        except BrokerNotAvailable as error:
            _log.warning("topics %s cannot be looked up yet: %s", listed(unknown), error)
            return
        # Only what is new: what changed is the watch's to record, together with what follows from it.
        record_topics(self.database, found.known, ())

    def close(self) -> None:
        """Let go of the database and the broker."""
        self.topics.close()
        self.database.close()


def refusal(error: ShareError) -> HeartbeatResponse:
    """An error as the response to a heartbeat."""
    return HeartbeatResponse(error_code=error.code, error_message=error.message)
