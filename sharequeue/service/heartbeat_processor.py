"""Process the heartbeats that arrive at this replica.

One that only keeps a member alive is collected with others (`keep_alives`). Any other one is a call of its own, and
the topics that it names for the first time are looked up, so that they are initialised at once. All of them use
connections of their own: they never wait for other requests.
"""

from __future__ import annotations

import logging

from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.domain.errors import BrokerNotAvailable, CoordinatorNotAvailable, ShareError, first_line
from sharequeue.domain.names import listed
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.heartbeats import HeartbeatRequest, HeartbeatResponse, heartbeat
from sharequeue.kafka.topics import Topics
from sharequeue.service.admission import Threads
from sharequeue.service.coordinator import Coordinator
from sharequeue.service.coordinator.watched_topics import record_topics, unknown_topics
from sharequeue.service.error_responses import unavailable
from sharequeue.service.keep_alives import KeepAlives

__all__ = ["HeartbeatProcessor", "refusal"]

_log = logging.getLogger(__name__)


class HeartbeatProcessor:
    """The heartbeats of one replica."""

    def __init__(
        self,
        database: Database,
        configs: ServiceConfigs,
        topics: Topics,
        coordinator: Coordinator,
        threads: Threads,
    ) -> None:
        self.database = database
        self._configs = configs
        self._topics = topics
        self._coordinator = coordinator
        self._threads = threads
        self._gathered = KeepAlives(database, configs, threads.run_at_once, lambda: coordinator.keeps_up)

    async def response(self, request: HeartbeatRequest, principal: str) -> HeartbeatResponse:
        """Return the response to a heartbeat of a principal."""
        found = await self._gathered.response(request, principal)
        if found is not None:
            return found
        return await self._threads.run_in_turn(request.group_id, lambda: self.heartbeat(request, principal))

    def heartbeat(self, request: HeartbeatRequest, principal: str) -> HeartbeatResponse:
        """Process one heartbeat of a principal, in a call of its own."""
        try:
            if request.subscribed_topic_names:
                self._look_up(request.group_id, principal, request.subscribed_topic_names)
            response = heartbeat(self.database, request, self._configs, principal)
        except SQLAlchemyError as error:
            _log_failed(request, first_line(error))
            return refusal(unavailable(error))
        if response.error_code == CoordinatorNotAvailable.code:
            _log_failed(request, response.error_message or "")
        if response.assignment == [] or request.subscribed_topic_names:
            self._coordinator.wake()
        return response

    def _look_up(self, group_id: str, principal: str, names: tuple[str, ...]) -> None:
        unknown = unknown_topics(self.database, group_id, principal, names)
        # If the broker is known to be unavailable, only the watch asks it: a heartbeat must not wait for it.
        if not unknown or "watch" in self._coordinator.faults:
            return
        try:
            found = self._topics.ask(unknown)
        except BrokerNotAvailable as error:
            _log.warning("topics %s cannot be looked up yet: %s", listed(unknown), error)
            return
        # Only new topics: the watch records changes, together with their consequences.
        record_topics(self.database, found.known, ())


def refusal(error: ShareError) -> HeartbeatResponse:
    """Return an error as the response to a heartbeat."""
    return HeartbeatResponse(error_code=error.code, error_message=error.message)


def _log_failed(request: HeartbeatRequest, reason: str) -> None:
    _log.warning(
        "heartbeat of %s failed: %s",
        request.member_id,
        reason,
        extra={"group": request.group_id, "member": request.member_id, "run": request.client_id},
    )
