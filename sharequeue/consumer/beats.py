"""Over which way does a consumer send its heartbeats?

Straight to the database, where its login may keep groups (the service's role). A login of the worker's role may
not: its heartbeats go through the service, as a run's do.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.exc import DBAPIError

from sharequeue.database import Database
from sharequeue.errors import ClusterAuthorizationFailed
from sharequeue.groups.heartbeats import HeartbeatRequest, HeartbeatResponse, heartbeat
from sharequeue.groups.heartbeats_over_http import ServiceHeartbeats
from sharequeue.settings import Settings

Beat = Callable[[HeartbeatRequest], HeartbeatResponse]

_FORBIDDEN = "42501"


def beats(database: Database, settings: Settings, service_url: str | None) -> Beat:
    """Return how to send a heartbeat: to the service where a URL is given, else to the database while that is
    allowed, and then to the service that the settings name."""
    through: list[Beat] = []
    if service_url is not None:
        through.append(ServiceHeartbeats(settings.replace(service_url=service_url).service))

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
        through.append(ServiceHeartbeats(settings.service))
        return through[0](request)

    return beat
