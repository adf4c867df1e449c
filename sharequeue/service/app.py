"""The HTTP routes of the service.

ShareGroupHeartbeat as JSON, admin operations (`admin`), descriptions of groups, probes (`probes`), and HTML pages
(`pages`). The response to a heartbeat always has status 200 and Kafka's error number in the body, as in Kafka: an
HTTP error means that the response is not the service's. Requests below `/v1/` run as a principal (`callers`), to
which the ACLs of groups and topics apply. The rules are in `groups`, background work is in `coordinator`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from anyio.to_thread import run_sync
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from sharequeue.domain.errors import (
    InvalidRequest,
    ShareError,
    UnknownServerError,
    first_line,
)
from sharequeue.domain.names import shown
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.descriptions import describe_group
from sharequeue.groups.group_names import require_there
from sharequeue.groups.tokens import TokenRefused
from sharequeue.reports.page import report_page
from sharequeue.reports.read import read_report
from sharequeue.reports.remarks import remarks_of
from sharequeue.service.admin import OPERATIONS, Admin, Operation
from sharequeue.service.admission import throttle_time_ms
from sharequeue.service.bodies import group_description, heartbeat_request, heartbeat_response, parsed
from sharequeue.service.callers import Throttled, address, delay, refused, unavailable
from sharequeue.service.context import Service
from sharequeue.service.edge.hosts import AllowedHosts
from sharequeue.service.edge.response_headers import CommonHeaders
from sharequeue.service.heartbeat_processor import refusal
from sharequeue.service.metrics.registry import RequestDurations
from sharequeue.service.pages import Pages
from sharequeue.service.pages import routes as page_routes
from sharequeue.service.pages.layout import secured
from sharequeue.service.probes import health, metrics, openapi, ready
from sharequeue.state import State

__all__ = ["create_app"]

Handler = Callable[[Service, Request], Awaitable[Response]]

_log = logging.getLogger(__name__)

_MAX_BODY_BYTES = 1 << 20
_SOON_S = 1.0
_STATES = {"Empty", "Stable", "Dead"}
_HEARTBEAT = "/v1/share-group-heartbeat"
_SEND_JSON = "Send the request as `Content-Type: application/json`."
_SEND_PLAIN = "The body has the Content-Encoding {}, which is not supported: send it without."


class _GroupId(PathConvertor):
    """The rest of a path: a group id may contain any character, including line ends."""

    regex = "(?s:.+)"


register_url_convertor("group", _GroupId())


def create_app(
    settings: Settings,
    configs: ServiceConfigs | None = None,
    *,
    coordinate: bool = True,
    require_token: bool = False,
) -> Starlette:
    """Build the service as an ASGI application; with `coordinate`, its coordinator runs from start-up to shutdown.

    With `require_token` every caller needs a token. The service starts even if the database and the broker are away:
    `/ready` names what is missing, and the service works once they respond. Raises `SettingMissing` without their
    addresses and for settings that no client accepts, `InvalidConfig` for an invalid `group.share.*`.
    """
    service = Service(settings, configs, require_token=require_token)
    pages = Pages(service)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        stop = threading.Event()
        runner = threading.Thread(
            target=service.coordinator.run, args=(stop,), name="sharequeue-coordinator", daemon=True
        )
        recorder = threading.Thread(
            target=service.record_work, args=(stop,), name="sharequeue-work", daemon=True
        )
        if coordinate:
            runner.start()
            recorder.start()
        try:
            yield
        finally:
            stop.set()
            service.coordinator.wake()
            if coordinate:
                # A round that waits for a lost server may be interrupted: all its work is transactional.
                await run_sync(runner.join, 2.0, abandon_on_cancel=True)
            pages.close()
            service.close()

    routes = [
        Route(_HEARTBEAT, _route(service, _heartbeat), methods=["POST"]),
        *(
            Route(operation.path, _route(service, _admin(operation)), methods=["POST"])
            for operation in OPERATIONS
        ),
        Route("/v1/groups", _route(service, _groups)),
        Route("/v1/groups/{group_id:group}", _route(service, _group)),
        Route("/v1/reports/{group_id:group}", _route(service, _report)),
        # For probes and Prometheus, which a proxy in front of the service may authenticate.
        Route("/health", _route(service, health)),
        Route("/ready", _route(service, ready)),
        Route("/metrics", _route(service, metrics)),
        Route("/openapi.json", _route(service, openapi)),
        *page_routes(pages),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[
            Middleware(CommonHeaders),
            Middleware(RequestDurations, durations=service.metrics.own.requests),
            Middleware(AllowedHosts, hosts=settings.allowed_hosts),
        ],
        exception_handlers={HTTPException: _not_served},
    )
    # A redirect would name the service as a proxy sees it, perhaps by http, and clients would send their token there.
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def _route(service: Service, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(service, request)
        except Throttled as error:
            # A client that does not wait is delayed, as on a broker, which does not read its requests meanwhile.
            await delay(request, min(error.seconds, _SOON_S))
            return _throttled(request, error)
        except ClientDisconnect:
            return Response(status_code=400)  # the client has closed the connection
        except ShareError as error:
            return refused(error)
        except SQLAlchemyError as error:
            _log.warning("%s failed: %s", request.url.path, first_line(error))
            return refused(unavailable(error), 503)
        except Exception:
            _log.exception("%s failed", request.url.path)
            return refused(UnknownServerError(), 500)

    return endpoint


def _throttled(request: Request, error: Throttled) -> JSONResponse:
    if request.method != "POST":
        return refused(error)
    wait_ms = math.ceil(error.seconds * 1000)
    if request.url.path == _HEARTBEAT:
        return JSONResponse(heartbeat_response(refusal(error), wait_ms))
    return JSONResponse(
        {"error_code": error.code, "error_message": error.message, "throttle_time_ms": wait_ms}
    )


async def _not_served(request: Request, error: Exception) -> Response:
    """Return the response for an unknown path or method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - the handler of that alone
    what = (
        f"{request.method} {shown(request.url.path)} is not an endpoint: /openapi.json lists the endpoints."
    )
    response = refused(InvalidRequest(what), error.status_code)
    response.headers.update(error.headers or {})
    return response


def _admin(operation: Operation) -> Handler:
    async def answer(service: Service, request: Request) -> Response:
        await service.admission.principal(request)
        if (not_json := _not_json(request)) is not None:
            return not_json
        async with service.threads.room_for(request):
            asked = parsed(operation.body, await _body(request))
            # Checked again: a body may arrive slowly, and its token may be revoked meanwhile.
            admin = Admin(service.database, service.topics, await service.admission.principal(request))
            try:
                response = await service.threads.run(lambda: operation.do(admin, asked))
            except Throttled:
                raise
            except ShareError as error:
                response = {"error_code": error.code, "error_message": error.message}
            return JSONResponse({**response, "throttle_time_ms": throttle_time_ms(request)})

    return answer


def _not_json(request: Request) -> Response | None:
    """Return the response to a request whose headers name another body than JSON; None if they do not."""
    # Another site can make a browser send any body, but not with this content type without a preflight request.
    kinds = [each.partition(";")[0].strip().lower() for each in request.headers.getlist("content-type")]
    if kinds != ["application/json"]:
        return refused(InvalidRequest(_SEND_JSON), 415)
    encoding = ", ".join(request.headers.getlist("content-encoding")).strip()
    if encoding.lower() not in ("", "identity"):
        return refused(InvalidRequest(_SEND_PLAIN.format(shown(encoding))), 415)
    return None


async def _heartbeat(service: Service, request: Request) -> Response:
    principal = await service.admission.principal(request)
    if (not_json := _not_json(request)) is not None:
        return not_json
    began = time.monotonic()
    try:
        async with service.threads.room_for(request):
            body = await _body(request)
            if time.monotonic() - began > _SOON_S:
                principal = await service.admission.principal(request)
            asked = heartbeat_request(body, address(request))
            response = await service.heartbeats.response(asked, principal)
    except (Throttled, TokenRefused, ClientDisconnect):
        raise
    except ShareError as error:
        response = refusal(error)
    except Exception:
        _log.exception("a heartbeat failed")
        response = refusal(UnknownServerError())
    service.metrics.own.heartbeats.labels(str(response.error_code)).inc()
    return JSONResponse(heartbeat_response(response, throttle_time_ms(request)))


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise InvalidRequest(f"The body is longer than {_MAX_BODY_BYTES} bytes.")
    return bytes(body)


async def _groups(service: Service, request: Request) -> Response:
    admin = Admin(service.database, service.topics, await service.admission.principal(request))
    states = {each.strip().capitalize() for each in request.query_params.get("state", "").split(",")} - {""}
    if states - _STATES:
        raise InvalidRequest("`state` must be a comma-separated list of Empty, Stable and Dead.")
    groups = await service.threads.run(lambda: admin.groups(states or _STATES))
    return Response(f'{{"groups": {groups}}}', media_type="application/json")


async def _group(service: Service, request: Request) -> Response:
    group_id = await _described(service, request)
    group = await service.threads.run(lambda: describe_group(service.database, group_id))
    partitions = await service.threads.run(lambda: State(service.database).figures.describe(group_id))
    remarks = await service.threads.run(lambda: remarks_of(service.database, group_id, partitions))
    waiting = {topic: why for (waits, topic), why in service.coordinator.waiting.items() if waits == group_id}
    return JSONResponse(group_description(group, partitions, remarks, waiting))


async def _described(service: Service, request: Request) -> str:
    """Return the group in a path. The caller must be allowed to describe it and all its topics.

    Raises InvalidGroupId, GroupAuthorizationFailed, TopicAuthorizationFailed.
    """
    group_id = str(request.path_params["group_id"])
    admin = Admin(service.database, service.topics, await service.admission.principal(request))
    await service.threads.run(lambda: admin.require_whole(group_id))
    return group_id


async def _report(service: Service, request: Request) -> Response:
    group_id = await _described(service, request)

    def made() -> str:
        require_there(service.database, group_id)
        return report_page(read_report(service.database, group_id, service.settings))

    return secured(HTMLResponse(await service.threads.run(made)))
