"""How does a heartbeat reach a service?

ShareGroupHeartbeat as JSON over HTTP, for whoever may not keep groups itself.
"""

from __future__ import annotations

import time
from typing import Any

import httpx

from sharequeue import traces
from sharequeue.errors import NONE, CoordinatorNotAvailable, UnknownServerError
from sharequeue.groups.assignments import assigned_topics
from sharequeue.groups.heartbeats import LEAVE_EPOCH, HeartbeatRequest, HeartbeatResponse
from sharequeue.groups.tokens import TokenRefused, authorization
from sharequeue.settings import ServiceAddress

PATH = "/v1/share-group-heartbeat"
TIMEOUT_S = 10.0
_REFUSED = (401, 403)
_LONGEST_WAIT_MS = 5_000


class ServiceHeartbeats:
    """Heartbeats to the service at an address, or a bare URL. May be called from several threads, for any number of
    members. Raises SettingMissing for certificates that cannot be used."""

    def __init__(self, service: ServiceAddress | str, timeout: float = TIMEOUT_S) -> None:
        address = ServiceAddress.of(service)
        self._token = address.token
        self._http = address.client(timeout)
        self._not_before = 0.0

    @property
    def closed(self) -> bool:
        """Whether nothing is sent any more."""
        return self._http.is_closed

    def close(self) -> None:
        """Let go of the connections. Harmless to repeat."""
        self._http.close()

    def __call__(self, request: HeartbeatRequest, timeout: float | None = None) -> HeartbeatResponse:
        """Return the service's response, which may be a refusal; `timeout` in seconds.

        A token that is not taken is SASL_AUTHENTICATION_FAILED, one that is good for something else
        CLUSTER_AUTHORIZATION_FAILED: no such request will succeed. Raises
        `CoordinatorNotAvailable` when nobody answers, or somebody else does, or the service failed.
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
            who = authorization(self._token)
        except TokenRefused as error:
            return HeartbeatResponse(error.code, error.message)
        if (trace := traces.current()) is not None:
            who = {**who, traces.HEADER: trace}
        if request.member_epoch != LEAVE_EPOCH:
            # As Kafka's clients do: a service that is asked too often says how long it is not to be asked.
            time.sleep(max(0.0, self._not_before - time.monotonic()))
        try:
            reply = self._http.post(PATH, json=body, headers=who, timeout=timeout or self._http.timeout)
            found: Any = reply.json() if reply.is_success or reply.status_code in _REFUSED else None
        except (httpx.HTTPError, ValueError) as failure:
            raise CoordinatorNotAvailable(
                f"the service at {self._http.base_url} does not answer ({failure or type(failure).__name__}). "
                "`sharequeue up` or `sharequeue serve` starts one; `sharequeue doctor` looks for what is wrong."
            ) from None
        try:
            response = _response(found)
            throttled_ms = min(found.get("throttle_time_ms", 0), _LONGEST_WAIT_MS)
            self._not_before = time.monotonic() + throttled_ms / 1000
        except (KeyError, TypeError, ValueError):
            raise CoordinatorNotAvailable(
                f"what answers at {self._http.base_url} is not the service, or is not well: HTTP {reply.status_code}"
            ) from None
        if response.error_code == UnknownServerError.code:
            raise CoordinatorNotAvailable(f"the service failed: {response.error_message}")
        return response


def _response(found: Any) -> HeartbeatResponse:
    """Read a response. Raises KeyError, TypeError or ValueError for what is none."""
    if found["error_code"] != NONE:
        return HeartbeatResponse(int(found["error_code"]), found.get("error_message"))
    assignment = found.get("assignment")
    return HeartbeatResponse(
        member_id=found["member_id"],
        member_epoch=int(found["member_epoch"]),
        heartbeat_interval_ms=int(found["heartbeat_interval_ms"]),
        session_timeout_ms=int(found["session_timeout_ms"]),
        assignment=None if assignment is None else assigned_topics(assignment["topic_partitions"]),
    )
