"""ShareGroupHeartbeat over HTTP.

`groups` defines the meaning of the fields. Our additions: `client_id` in the request (Kafka has it in the request
header), `topic_name` and `session_timeout_ms` in the response. The response always has status 200 and Kafka's error
number in the body, as in Kafka: an HTTP error means that the response is not the service's.
"""

from __future__ import annotations

import logging
import time

from pydantic import Field
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from sharequeue.domain.errors import ShareError, UnknownServerError
from sharequeue.groups.assignments import AssignedTopic
from sharequeue.groups.heartbeats import HeartbeatRequest, HeartbeatResponse
from sharequeue.groups.tokens import TokenRefused
from sharequeue.service.admission import address, throttle_time_ms
from sharequeue.service.call import SOON_S, Call
from sharequeue.service.error_responses import Throttled
from sharequeue.service.heartbeat_processor import refusal
from sharequeue.service.messages import Int32, Refusal, RequestBody, Text, ThrottleTime, parsed

_log = logging.getLogger(__name__)


class HeartbeatBody(RequestBody):
    """ShareGroupHeartbeat's request. Null, or a missing field, means "unchanged"."""

    request = "ShareGroupHeartbeat"

    group_id: Text
    member_id: Text
    member_epoch: int = Field(ge=-(2**31), le=2**31 - 1)
    rack_id: Text | None = None
    subscribed_topic_names: list[Text] | None = Field(default=None, max_length=10_000)
    client_id: Text = ""


class AssignmentAnswer(TypedDict):
    """The assignment of a member."""

    topic_partitions: list[AssignedTopic]


class HeartbeatAnswer(Refusal, ThrottleTime):
    """ShareGroupHeartbeat's response. A null assignment means that it is unchanged."""

    member_id: str | None
    member_epoch: Int32
    heartbeat_interval_ms: Int32
    session_timeout_ms: Int32
    assignment: AssignmentAnswer | None


async def share_group_heartbeat(call: Call) -> Response:
    """Join, stay or leave. Refused heartbeats have status 200, too: read `error_code`."""
    principal = await call.principal()
    call.require_json()
    began = time.monotonic()
    try:
        async with call.service.threads.room_for(call.request):
            body = await call.body()
            if time.monotonic() - began > SOON_S:
                principal = await call.principal()
            asked = heartbeat_request(body, address(call.request))
            response = await call.service.heartbeats.response(asked, principal.name)
    except (Throttled, TokenRefused, ClientDisconnect):
        raise
    except ShareError as error:
        response = refusal(error)
    except Exception:
        _log.exception("a heartbeat failed")
        response = refusal(UnknownServerError())
    call.service.metrics.own.heartbeats.labels(str(response.error_code)).inc()
    return JSONResponse(heartbeat_answer(response, throttle_time_ms(call.request)))


def heartbeat_request(body: bytes, client_host: str) -> HeartbeatRequest:
    """Parse the heartbeat request in a body. Raises the errors of `parsed`."""
    found = parsed(HeartbeatBody, body)
    topics = found.subscribed_topic_names
    return HeartbeatRequest(
        group_id=found.group_id,
        member_id=found.member_id,
        member_epoch=found.member_epoch,
        rack_id=found.rack_id,
        subscribed_topic_names=None if topics is None else tuple(topics),
        client_id=found.client_id,
        client_host=client_host,
    )


def heartbeat_answer(response: HeartbeatResponse, throttle_time_ms: int) -> HeartbeatAnswer:
    """Return the response to a ShareGroupHeartbeat."""
    return {
        "throttle_time_ms": throttle_time_ms,
        "error_code": response.error_code,
        "error_message": response.error_message,
        "member_id": response.member_id,
        "member_epoch": response.member_epoch,
        "heartbeat_interval_ms": response.heartbeat_interval_ms,
        "session_timeout_ms": response.session_timeout_ms,
        "assignment": None if response.assignment is None else {"topic_partitions": response.assignment},
    }
