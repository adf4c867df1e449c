"""Over which way does a consumer send its heartbeats?

Straight to the database, where its login may keep groups (the service's role). A login of the worker's role may
not: its heartbeats go through the service, as a run's do.
"""

from __future__ import annotations

from collections.abc import Callable

import httpx
from sqlalchemy.exc import DBAPIError

from sharequeue.database import Database
from sharequeue.errors import ClusterAuthorizationFailed, CoordinatorNotAvailable
from sharequeue.groups.assignments import AssignedTopic
from sharequeue.groups.heartbeats import HeartbeatRequest, HeartbeatResponse, heartbeat
from sharequeue.settings import Settings

Beat = Callable[[HeartbeatRequest], HeartbeatResponse]

PATH = "/v1/share-group-heartbeat"
TIMEOUT_S = 10.0
_FORBIDDEN = "42501"


def beats(database: Database, settings: Settings, service_url: str | None) -> Beat:
    """Return how to send a heartbeat: to the service where a URL is given, else to the database while that is
    allowed, and then to the service that the settings name."""
    through: list[Beat] = [] if service_url is None else [over_http(service_url)]

    def beat(request: HeartbeatRequest) -> HeartbeatResponse:
        if through:
            return through[0](request)
        try:
            response = heartbeat(database, request)
        except DBAPIError as error:
            if getattr(error.orig, "pgcode", None) != _FORBIDDEN:
                raise
        else:
            if response.error_code != ClusterAuthorizationFailed.code:
                return response
        # Raises what is missing, where no service is named.
        through.append(over_http(settings.service_url))
        return through[0](request)

    return beat


def over_http(service_url: str) -> Beat:
    """Return how to send a heartbeat to the service at this URL."""
    # The service's address is a direct one: a proxy of the environment is for the outside world.
    client = httpx.Client(base_url=service_url, timeout=TIMEOUT_S, trust_env=False)

    def beat(request: HeartbeatRequest) -> HeartbeatResponse:
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
            reply = client.post(PATH, json=body)
            response = reply.json() if reply.is_success else None
        except (httpx.HTTPError, ValueError) as failure:
            raise CoordinatorNotAvailable(
                f"the service at {service_url} does not answer ({failure or type(failure).__name__})"
            ) from None
        if not isinstance(response, dict) or "error_code" not in response:
            raise CoordinatorNotAvailable(f"what answers at {service_url} is not the service, or is not well")
        assignment = response.get("assignment")
        return HeartbeatResponse(
            error_code=int(response["error_code"]),
            error_message=response.get("error_message"),
            member_id=response.get("member_id"),
            member_epoch=int(response.get("member_epoch") or 0),
            heartbeat_interval_ms=int(response.get("heartbeat_interval_ms") or 0),
            session_timeout_ms=int(response.get("session_timeout_ms") or 0),
            assignment=None
            if assignment is None
            else tuple(
                AssignedTopic(each["topic_id"], each["topic_name"], tuple(each["partitions"]))
                for each in assignment["topic_partitions"]
            ),
        )

    return beat
