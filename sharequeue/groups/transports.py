"""The transports of a heartbeat from a member to its group: over HTTP to the service, or directly to the database.

ShareGroupHeartbeat as JSON over HTTP is for logins that may not change groups (the worker's role). A login of the
service's role calls the group coordinator (`heartbeats`) in this process.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import httpx
from sqlalchemy.exc import DBAPIError

from sharequeue.database import Database
from sharequeue.database.sqlstates import FORBIDDEN, sqlstate
from sharequeue.domain import traces
from sharequeue.domain.errors import (
    NONE,
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    UnknownServerError,
)
from sharequeue.domain.settings import ServiceAddress, SettingMissing, Settings
from sharequeue.domain.settings.service_address import unanswered
from sharequeue.groups.assignments import AssignedTopic
from sharequeue.groups.configs import GroupConfigs, ServiceConfigs
from sharequeue.groups.heartbeats import (
    LEAVE_EPOCH,
    HeartbeatRequest,
    HeartbeatResponse,
    heartbeat,
    is_keep_alive,
)
from sharequeue.groups.tokens import TokenRefused, authorization

PATH = "/v1/share-group-heartbeat"
TIMEOUT_S = 10.0
_REFUSED = (401, 403)
_LONGEST_WAIT_MS = 5_000


class Transport(Protocol):
    """Sends heartbeats."""

    def __call__(self, request: HeartbeatRequest, timeout: float | None = None) -> HeartbeatResponse:
        """Return the response, which may be a refusal; `timeout` in seconds. Raises temporary errors."""
        ...

    def close(self) -> None:
        """Close the connections. Harmless to repeat."""
        ...


class DatabaseTransport:
    """Heartbeats directly to the database.

    They go to the service of the settings as soon as the login proves not to be allowed to change groups.
    """

    def __init__(
        self, database: Database, settings: Settings, loaded: Callable[[GroupConfigs], None] = lambda _: None
    ) -> None:
        self._database = database
        self._settings = settings
        self._loaded = loaded
        """Called with the configs of the group when they were loaded for a request."""
        self._host = socket.gethostname()
        self._configs: ServiceConfigs | None = None
        self._service: ServiceTransport | None = None

    def close(self) -> None:
        """Close the connections to the service; the caller closes the database."""
        if self._service is not None:
            self._service.close()

    def __call__(self, request: HeartbeatRequest, timeout: float | None = None) -> HeartbeatResponse:
        """Return the response.

        Configs are loaded with each request except those that only keep a member alive. Raises the errors of the
        database, and ClusterAuthorizationFailed if a service is needed and the settings have none.
        """
        if self._service is None:
            try:
                return self._directly(request)
            except ClusterAuthorizationFailed:
                try:
                    self._service = ServiceTransport(self._settings.service)
                except SettingMissing as missing:
                    raise ClusterAuthorizationFailed(
                        f"this login may not maintain groups: {missing}"
                    ) from None
        return self._service(request, timeout)

    def _directly(self, request: HeartbeatRequest) -> HeartbeatResponse:
        try:
            if request.member_epoch != LEAVE_EPOCH and not (self._configs and is_keep_alive(request)):
                configs = GroupConfigs.load(self._database, request.group_id)
                self._configs = configs.service
                self._loaded(configs)
            response = heartbeat(self._database, replace(request, client_host=self._host), self._configs)
        except DBAPIError as error:
            if sqlstate(error) == FORBIDDEN:
                raise ClusterAuthorizationFailed from None
            raise
        if response.error_code == ClusterAuthorizationFailed.code:
            raise ClusterAuthorizationFailed
        return response


class ServiceTransport:
    """Heartbeats to the service at an address, or a bare URL. May be called from several threads, for any number of
    members. Raises SettingMissing for certificates that cannot be used."""

    def __init__(self, service: ServiceAddress | str, timeout: float = TIMEOUT_S) -> None:
        address = ServiceAddress.of(service)
        self._token = address.token
        self._http = address.client(timeout)
        self._not_before = 0.0

    def close(self) -> None:
        """Close the connections. Harmless to repeat."""
        self._http.close()

    def __call__(self, request: HeartbeatRequest, timeout: float | None = None) -> HeartbeatResponse:
        """Return the service's response, which may be a refusal; `timeout` in seconds.

        A refused token is SASL_AUTHENTICATION_FAILED, one without the needed scope CLUSTER_AUTHORIZATION_FAILED: a
        repeated request will not succeed. Raises `CoordinatorNotAvailable` when nothing responds, another program
        does, or the service failed.
        """
        topics = request.subscribed_topic_names
        body = {
            "group_id": request.group_id,
            "member_id": request.member_id,
            "member_epoch": request.member_epoch,
            "client_id": request.client_id,
            "rack_id": request.rack_id,
            "subscribed_topic_names": None if topics is None else list(topics),
        }
        try:
            headers = authorization(self._token)
        except TokenRefused as error:
            return HeartbeatResponse(error.code, error.message)
        if (trace := traces.current()) is not None:
            headers = {**headers, traces.HEADER: trace}
        if request.member_epoch != LEAVE_EPOCH:
            # As Kafka's clients do: an overloaded service returns how long to wait before the next request.
            time.sleep(max(0.0, self._not_before - time.monotonic()))
        try:
            reply = self._http.post(PATH, json=body, headers=headers, timeout=timeout or self._http.timeout)
            found: Any = reply.json() if reply.is_success or reply.status_code in _REFUSED else None
        except (httpx.HTTPError, ValueError) as failure:
            raise CoordinatorNotAvailable(
                unanswered(str(self._http.base_url), failure)
                or f"the service at {self._http.base_url} does not answer "
                f"({failure or type(failure).__name__}). `sharequeue up` or `sharequeue serve` starts one; "
                "`sharequeue doctor` shows what is wrong."
            ) from None
        try:
            response = _response(found)
            throttled_ms = min(found.get("throttle_time_ms", 0), _LONGEST_WAIT_MS)
            self._not_before = time.monotonic() + throttled_ms / 1000
        except (KeyError, TypeError, ValueError):
            raise CoordinatorNotAvailable(
                f"{self._http.base_url} returned HTTP {reply.status_code} instead of a response to the "
                "heartbeat: check that this is the address of the service, and look into its log"
            ) from None
        if response.error_code == UnknownServerError.code:
            raise CoordinatorNotAvailable(f"the service failed: {response.error_message}")
        return response


def _response(found: Any) -> HeartbeatResponse:
    """Read a response. Raises KeyError, TypeError or ValueError if it is not one."""
    if found["error_code"] != NONE:
        return HeartbeatResponse(int(found["error_code"]), found.get("error_message"))
    assignment = found.get("assignment")
    return HeartbeatResponse(
        member_id=found["member_id"],
        member_epoch=int(found["member_epoch"]),
        heartbeat_interval_ms=int(found["heartbeat_interval_ms"]),
        session_timeout_ms=int(found["session_timeout_ms"]),
        assignment=None if assignment is None else [_topic(each) for each in assignment["topic_partitions"]],
    )


def _topic(found: Any) -> AssignedTopic:
    return AssignedTopic(
        topic_id=found["topic_id"], topic_name=found["topic_name"], partitions=found["partitions"]
    )
