"""The HTTP application of the service: routes, errors, start and end.

The routes are the table in `endpoints`. Requests below `/v1/` run as a principal (`admission`), to which the ACLs of
groups and topics apply. The rules are in `groups`, background work is in `coordinator`.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from anyio.to_thread import run_sync
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
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
from sharequeue.service.admission import delay
from sharequeue.service.call import Call, Endpoint
from sharequeue.service.context import Service
from sharequeue.service.edge.hosts import AllowedHosts
from sharequeue.service.edge.response_headers import CommonHeaders
from sharequeue.service.endpoints import ENDPOINTS
from sharequeue.service.error_responses import Throttled, error_fields, refused, unavailable
from sharequeue.service.heartbeat_processor import refusal
from sharequeue.service.metrics.registry import RequestDurations
from sharequeue.service.operations.heartbeat import HeartbeatBody, heartbeat_answer

__all__ = ["create_app"]

_log = logging.getLogger(__name__)

_LONGEST_DELAY_S = 1.0


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
            service.close()

    app = Starlette(
        routes=[Route(each.path, _served(service, each), methods=[each.method]) for each in ENDPOINTS],
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


def _served(service: Service, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        call = Call(service, request, endpoint)
        try:
            return await endpoint.handler(call)
        except Throttled as error:
            # A client that does not wait is delayed, as on a broker, which does not read its requests meanwhile.
            await delay(request, min(error.seconds, _LONGEST_DELAY_S))
            return _throttled(endpoint, error)
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

    return serve


def _throttled(endpoint: Endpoint, error: Throttled) -> JSONResponse:
    milliseconds = math.ceil(error.seconds * 1000)
    if endpoint.body is None:
        return refused(error)
    if endpoint.body is HeartbeatBody:
        return JSONResponse(heartbeat_answer(refusal(error), milliseconds))
    return JSONResponse({**error_fields(error), "throttle_time_ms": milliseconds})


async def _not_served(request: Request, error: Exception) -> Response:
    """Return the response for an unknown path or method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - the handler of that alone
    what = (
        f"{request.method} {shown(request.url.path)} is not an endpoint: /openapi.json lists the endpoints."
    )
    response = refused(InvalidRequest(what), error.status_code)
    response.headers.update(error.headers or {})
    return response
