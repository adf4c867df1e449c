"""What does an operator ask of any service: is it alive, is it ready, what are its figures?

Probes ask, so `/health` and `/ready` are open to anybody. Who has to say who it is, and does not, is told no more
than whether heartbeats succeed.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.to_thread import run_sync
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sharequeue import __version__
from sharequeue.database.migrations import pending
from sharequeue.database.schema_files import SchemaOutdated
from sharequeue.errors import ShareError
from sharequeue.groups.tokens import TokenRefused
from sharequeue.service.answers import HeldAnswer, ReadyAnswer
from sharequeue.service.context import Service
from sharequeue.service.openapi import rendered
from sharequeue.state import State

__all__ = ["health", "metrics", "openapi", "ready"]

_PROBE_TIMEOUT_S = 0.8
"""How long `/ready` waits for the broker: a probe of Kubernetes gives up after 1 s."""
_DATABASE_TIMEOUT_S = 3.0
"""How long it waits for the database, without which there is nothing to be ready for."""


async def health(service: Service, request: Request) -> Response:
    """Say that the process runs."""
    return JSONResponse({"status": "alive", "version": __version__})


async def ready(service: Service, request: Request) -> Response:
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
    is_ready = database == "ok"
    degraded = broker != "ok" or bool(
        coordinator.faults or coordinator.watcher.faults or coordinator.groups.stuck
    )
    status = 200 if is_ready else 503
    if service.require_token and not await _known(service, request):
        return JSONResponse({"ready": is_ready, "degraded": degraded}, status)
    body: ReadyAnswer = {
        "ready": is_ready,
        "degraded": degraded,
        "broker": broker,
        "database": database,
        "faults": dict(coordinator.faults),
        "topics": dict(coordinator.watcher.faults),
        "stuck_groups": dict(coordinator.groups.stuck),
    }
    if is_ready:
        # Reported, but no reason to send members elsewhere: any other replica has the same topic to write.
        body["held_dead_letters"] = await service.in_thread(lambda: _held(service))
    return JSONResponse(body, status)


async def _known(service: Service, request: Request) -> bool:
    try:
        await service.principal(request)
    except (TokenRefused, SQLAlchemyError):
        return False
    return True


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


async def openapi(service: Service, request: Request) -> Response:
    """Give the OpenAPI document."""
    return Response(rendered(), media_type="application/json")


async def metrics(service: Service, request: Request) -> Response:
    """Give the metrics, for Prometheus. They name groups: raises TokenRefused where a token is required."""
    await service.principal(request)
    text = await service.in_thread(lambda: generate_latest(service.metrics.registry))
    return Response(text, media_type=CONTENT_TYPE_LATEST)
