"""Which requests does the service serve over HTTP?

ShareGroupHeartbeat as JSON, the groups to look at, and what an operator asks of any service: is it alive, is
it ready, what are its figures. The response to a heartbeat always has status 200 and Kafka's error number in the
body, as in Kafka: an HTTP error means that the response is not the service's. Calls to the database are
synchronous and run in threads, as many at once as the pool has connections. Rules are in `groups`, what
happens by itself in `coordinator`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio.to_thread import run_sync
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from sharequeue import __version__
from sharequeue.database import Database
from sharequeue.database.migrations import pending
from sharequeue.database.schema_files import SchemaOutdated
from sharequeue.errors import (
    BrokerNotAvailable,
    CoordinatorNotAvailable,
    InvalidRequest,
    ShareError,
    UnknownServerError,
)
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.descriptions import describe_group, list_groups
from sharequeue.groups.heartbeats import HeartbeatRequest, HeartbeatResponse, heartbeat
from sharequeue.groups.known import require_group
from sharequeue.groups.tokens import TokenRefused
from sharequeue.kafka.topics import Topics
from sharequeue.names import listed, shown
from sharequeue.reporting.page import page
from sharequeue.service.admin import OPERATIONS, Admin, Operation
from sharequeue.service.admin_bodies import parsed
from sharequeue.service.answers import HeldAnswer, ReadyAnswer
from sharequeue.service.bodies import group_description, heartbeat_request, heartbeat_response
from sharequeue.service.callers import ANONYMOUS, principal, unauthenticated
from sharequeue.service.coordinator import Coordinator
from sharequeue.service.hosts import AllowedHosts
from sharequeue.service.metrics import Metrics
from sharequeue.service.openapi import document
from sharequeue.service.watched_topics import record_topics, unknown_names
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.state.group_report import read_report

_log = logging.getLogger(__name__)

POOL_SIZE = 10
"""Connections to the database, and calls to it at once."""

_MAX_BODY_BYTES = 1 << 20
_BROKER_TIMEOUT_S = 5.0
_PROBE_TIMEOUT_S = 0.8
"""How long `/ready` waits for the broker: a probe of Kubernetes gives up after 1 s."""
_DATABASE_TIMEOUT_S = 3.0
"""How long it waits for the database, without which there is nothing to be ready for."""
_TURNS = 2
"""Heartbeats of one group at a time: they wait for each other in the database anyway, each holding a thread."""

_SEND_JSON = "Send the request as `Content-Type: application/json`."

Result = TypeVar("Result")


class _GroupId(PathConvertor):
    """The rest of a path: a group id may have any character, line ends too."""

    regex = "(?s:.+)"


register_url_convertor("group", _GroupId())


class Service:
    """What the routes share: database, broker, coordinator, figures."""

    def __init__(self, settings: Settings, configs: ServiceConfigs | None = None) -> None:
        self.configs = configs or ServiceConfigs.load()
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
        return await self.in_thread(lambda: principal(self.database, named)) if named else ANONYMOUS

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        """Process a heartbeat. Topics that are new are looked up, so that they are initialised at once."""
        try:
            if request.subscribed_topic_names:
                self._look_up(request.subscribed_topic_names)
            response = heartbeat(self.database, request, self.configs)
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


def create_app(
    settings: Settings, configs: ServiceConfigs | None = None, *, coordinate: bool = True
) -> Starlette:
    """The service as an ASGI application; with `coordinate`, its coordinator runs from start-up to shutdown.

    Starts without the database and the broker: `/ready` names what is missing, and the service works once it is
    there. Raises `SettingMissing` without their addresses, `InvalidConfig` for a wrong `group.share.*`.
    """
    service = Service(settings, configs)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        stop = threading.Event()
        runner = threading.Thread(
            target=service.coordinator.run, args=(stop,), name="sharequeue-coordinator", daemon=True
        )
        if coordinate:
            runner.start()
        try:
            yield
        finally:
            stop.set()
            service.coordinator.wake()
            if coordinate:
                # A round that waits for a lost server is cut off: everything it does is a transaction.
                await run_sync(runner.join, 2.0, abandon_on_cancel=True)
            service.close()

    routes = [
        Route("/v1/share-group-heartbeat", _route(service, _heartbeat), methods=["POST"]),
        *(
            Route(operation.path, _route(service, _admin(operation)), methods=["POST"])
            for operation in OPERATIONS
        ),
        Route("/v1/groups", _route(service, _groups)),
        Route("/v1/groups/{group_id:group}", _route(service, _group)),
        Route("/v1/reports/{group_id:group}", _route(service, _report)),
        # Asked by probes and Prometheus, which may say who they are to somebody before us.
        Route("/health", _route(service, _health, of_anybody=True)),
        Route("/ready", _route(service, _ready, of_anybody=True)),
        Route("/metrics", _route(service, _metrics, of_anybody=True)),
        Route("/openapi.json", _route(service, _openapi, of_anybody=True)),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(AllowedHosts, hosts=settings.allowed_hosts)],
        exception_handlers={HTTPException: _not_served},
    )
    app.state.service = service
    return app


def _route(
    service: Service, handler: Callable[[Service, Request], Awaitable[Response]], *, of_anybody: bool = False
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            if not of_anybody:
                await service.principal(request)
            return await handler(service, request)
        except TokenRefused as error:
            return unauthenticated(error)
        except ShareError as error:
            return _error(error, 404 if error.name in ("GROUP_ID_NOT_FOUND", "INVALID_GROUP_ID") else 400)
        except SQLAlchemyError as error:
            _log.warning("%s failed: %s", request.url.path, str(error).splitlines()[0])
            return _error(CoordinatorNotAvailable(), 503)

    return endpoint


def _error(error: ShareError, status: int) -> JSONResponse:
    return JSONResponse({"error_code": error.code, "error_message": error.message}, status)


async def _not_served(request: Request, error: Exception) -> Response:
    """A path or a method that is not ours."""
    assert isinstance(error, HTTPException)  # noqa: S101 - the handler of that alone
    what = f"{request.method} {shown(request.url.path)} is not served: /openapi.json has what is."
    body = {"error_code": InvalidRequest.code, "error_message": what}
    return JSONResponse(body, error.status_code, error.headers)


def _admin(operation: Operation) -> Callable[[Service, Request], Awaitable[Response]]:
    async def answer(service: Service, request: Request) -> Response:
        if not _is_json(request):
            return _error(InvalidRequest(_SEND_JSON), 415)
        asked = parsed(operation.body, await _body(request))
        # Again: a body may come slowly, and its token be revoked meanwhile.
        admin = Admin(service.database, service.topics, await service.principal(request))
        try:
            response = await service.in_thread(lambda: operation.do(admin, asked))
        except ShareError as error:
            response = {"throttle_time_ms": 0, "error_code": error.code, "error_message": error.message}
        return JSONResponse(response)

    return answer


def _is_json(request: Request) -> bool:
    # A page of another site can make a browser send any body, but not under this type without asking first.
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


async def _heartbeat(service: Service, request: Request) -> Response:
    if not _is_json(request):
        return _error(InvalidRequest(_SEND_JSON), 415)
    try:
        body = await _body(request)
        asked = heartbeat_request(body, request.client.host if request.client else "")
        async with service.turn_of(asked.group_id):
            response = await service.in_thread(lambda: service.heartbeat(asked))
    except ShareError as error:
        response = refusal(error)
    except Exception:
        _log.exception("a heartbeat failed")
        response = refusal(UnknownServerError())
    service.metrics.heartbeats.labels(str(response.error_code)).inc()
    return JSONResponse(heartbeat_response(response))


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise InvalidRequest(f"The body is longer than {_MAX_BODY_BYTES} bytes.")
    return body


async def _groups(service: Service, request: Request) -> Response:
    states = {each.strip().capitalize() for each in request.query_params.get("state", "").split(",")} - {""}
    if states - {"Empty", "Stable", "Dead"}:
        raise InvalidRequest("`state` has some of Empty, Stable and Dead, with commas between them.")
    groups = await service.in_thread(lambda: list_groups(service.database))
    rows = [
        {"group_id": g.group_id, "group_state": g.group_state, "members": g.members}
        for g in groups
        if not states or g.group_state in states
    ]
    return JSONResponse({"groups": rows})


async def _group(service: Service, request: Request) -> Response:
    group_id = request.path_params["group_id"]
    group = await service.in_thread(lambda: describe_group(service.database, group_id))
    partitions = await service.in_thread(lambda: State(service.database).figures.describe(group_id))
    waiting = {topic: why for (waits, topic), why in service.coordinator.waiting.items() if waits == group_id}
    return JSONResponse(group_description(group, partitions, waiting))


async def _report(service: Service, request: Request) -> Response:
    group_id = request.path_params["group_id"]

    def made() -> str:
        require_group(service.database, group_id)
        return page(read_report(service.database, group_id))

    return HTMLResponse(await service.in_thread(made))


async def _health(service: Service, request: Request) -> Response:
    return JSONResponse({"status": "alive", "version": __version__})


async def _ready(service: Service, request: Request) -> Response:
    """Whether members may be sent here: while heartbeats succeed. Whatever else is wrong is reported as degraded."""
    found: dict[str, str] = {}

    async def ask(name: str, probe: Callable[[], str], timeout: float) -> None:
        with anyio.move_on_after(timeout):
            found[name] = await run_sync(probe, abandon_on_cancel=True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, "database", lambda: _database_state(service), _DATABASE_TIMEOUT_S)
        tasks.start_soon(ask, "broker", lambda: _broker_state(service), _PROBE_TIMEOUT_S)
    coordinator = service.coordinator
    broker = found.get("broker") or (
        f"Kafka at {service.bootstrap_servers} does not answer within {_PROBE_TIMEOUT_S} s."
    )
    database = found.get("database") or f"the database does not answer within {_DATABASE_TIMEOUT_S:.0f} s."
    ready = database == "ok"
    body: ReadyAnswer = {
        "ready": ready,
        "degraded": broker != "ok"
        or bool(coordinator.faults or coordinator.watcher.faults or coordinator.groups.stuck),
        "broker": broker,
        "database": database,
        "faults": dict(coordinator.faults),
        "topics": dict(coordinator.watcher.faults),
        "stuck_groups": dict(coordinator.groups.stuck),
    }
    if ready:
        # Reported, but no reason to send members elsewhere: any other replica has the same topic to write.
        body["held_dead_letters"] = await service.in_thread(lambda: _held(service))
    return JSONResponse(body, 200 if ready else 503)


def _database_state(service: Service) -> str:
    try:
        missing = pending(service.database)
    except SchemaOutdated as error:
        return str(error)
    except SQLAlchemyError as error:
        return f"the database does not answer: {str(error).splitlines()[0]}"
    return f"the schema is behind by {len(missing)} files: run `sharequeue migrate`" if missing else "ok"


def _held(service: Service) -> list[HeldAnswer]:
    return [
        {
            "share_partition": str(each.share_partition),
            "group": each.share_partition.group_id,
            "records": each.records,
            "reason": each.reason,
            "since": each.since.isoformat(),
        }
        for each in State(service.database).dead_letters.held()
    ]


def _broker_state(service: Service) -> str:
    try:
        service.topics.cluster_id()
    except ShareError as error:
        return error.message
    return "ok"


async def _openapi(service: Service, request: Request) -> Response:
    return JSONResponse(document())


async def _metrics(service: Service, request: Request) -> Response:
    text = await service.in_thread(lambda: generate_latest(service.metrics.registry))
    return Response(text, media_type=CONTENT_TYPE_LATEST)
