"""What does an operator ask of any service: is it alive, is it ready, what is wrong, what are its figures?

Probes ask, so `/health` and `/ready` are open to anybody. Who has to say who it is, and does not, is told no more
than whether heartbeats succeed. However often they ask, the database and the broker are asked once at a time.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import anyio
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sharequeue import __version__
from sharequeue.errors import CoordinatorNotAvailable, ShareError
from sharequeue.groups.replicas import WORK
from sharequeue.groups.tokens import TokenRefused
from sharequeue.service.answers import FaultAnswer, ReadyAnswer, WorkAnswer
from sharequeue.service.context import Service
from sharequeue.service.health.faults import Fault, Faults
from sharequeue.service.health.state_of_servers import Told
from sharequeue.service.openapi import rendered

__all__ = ["health", "metrics", "openapi", "ready"]

_PROBE_TIMEOUT_S = 0.8
"""How long `/ready` waits for the broker: a probe of Kubernetes gives up after 1 s."""
_DATABASE_TIMEOUT_S = 3.0
"""How long it waits for the database, without which there is nothing to be ready for."""
MOST_FAULTS = 200
"""How many faults `/ready` has, the oldest first: a subscription may name thousands of topics that are refused."""


async def health(service: Service, request: Request) -> Response:
    """Say that the process runs."""
    return JSONResponse({"status": "alive", "version": __version__})


async def ready(service: Service, request: Request) -> Response:
    """Whether members may be sent here: while heartbeats succeed. Whatever else is wrong is reported as degraded."""
    asked: dict[str, Any] = {}

    async def broker() -> None:
        try:
            asked["broker"] = await service.broker_told.get(_PROBE_TIMEOUT_S)
        except TimeoutError:
            asked["broker"] = (
                f"Kafka at {service.bootstrap_servers} does not answer within {_PROBE_TIMEOUT_S} s."
            )

    async def database() -> None:
        try:
            asked["database"] = await service.database_told.get(_DATABASE_TIMEOUT_S)
        except TimeoutError:
            asked["database"] = Told(f"the database does not answer within {_DATABASE_TIMEOUT_S:.0f} s.")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(broker)
        tasks.start_soon(database)
    told: Told = asked["database"]
    is_ready = told.usable
    service.faults.note("database", None if told.state == "ok" else told.state)
    service.faults.note("broker", None if asked["broker"] == "ok" else asked["broker"])
    service.faults.look()
    faults = service.faults.of_this_replica()
    if told.replicas is not None:
        faults += Faults.late(told.replicas.ages, drains=told.replicas.drains)
    faults += Faults.held(told.held)
    status = 200 if is_ready else 503
    if service.require_token and not await _known(service, request):
        return JSONResponse({"ready": is_ready, "degraded": bool(faults)}, status)
    faults.sort(key=attrgetter("age_seconds"), reverse=True)
    body: ReadyAnswer = {
        "ready": is_ready,
        "degraded": bool(faults),
        "broker": asked["broker"],
        "database": told.state,
        "faults": [_fault(each) for each in faults[:MOST_FAULTS]],
        "more_faults": max(0, len(faults) - MOST_FAULTS),
        "work": _work(service, told),
    }
    return JSONResponse(body, status)


def _fault(fault: Fault) -> FaultAnswer:
    return {
        "kind": fault.kind,
        "group": fault.group,
        "topic": fault.topic,
        "partition": fault.partition,
        "reason": fault.reason,
        "age_seconds": round(fault.age_seconds, 3),
    }


def _work(service: Service, told: Told) -> dict[str, WorkAnswer]:
    here = service.coordinator.work.ages()
    anywhere = told.replicas.ages if told.replicas is not None else {}
    return {
        work: {
            "this_replica_seconds": _rounded(here[work]),
            "any_replica_seconds": _rounded(anywhere.get(work)),
        }
        for work in WORK
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(max(0.0, seconds), 3)


async def _known(service: Service, request: Request) -> bool:
    with anyio.move_on_after(_DATABASE_TIMEOUT_S):
        try:
            await service.principal(request)
        except (TokenRefused, SQLAlchemyError, ShareError):
            return False
        return True
    return False


async def openapi(service: Service, request: Request) -> Response:
    """Give the OpenAPI document."""
    return Response(rendered(), media_type="application/json")


async def metrics(service: Service, request: Request) -> Response:
    """Give the metrics, for Prometheus. They name groups: raises TokenRefused where a token is required."""
    try:
        with anyio.fail_after(_DATABASE_TIMEOUT_S):
            await service.principal(request)
    except TimeoutError:
        raise CoordinatorNotAvailable from None
    return Response(await service.metrics.text(), media_type=CONTENT_TYPE_LATEST)
