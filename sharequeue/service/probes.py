"""The endpoints for operators: health, readiness, faults, metrics.

Probes and Prometheus call them, and a proxy in front of the service may authenticate these; so `/health` and `/ready`
need no token. If a token is required and missing, `/ready` returns only whether heartbeats succeed. Concurrent probes
share one request to the database and one to the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from operator import attrgetter
from typing import Any, cast

import anyio
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import JSONResponse, Response, StreamingResponse
from typing_extensions import TypedDict

from sharequeue import __version__
from sharequeue.domain.errors import ClusterAuthorizationFailed, CoordinatorNotAvailable, ShareError
from sharequeue.groups.tokens import TokenRefused
from sharequeue.service.call import Call
from sharequeue.service.context import Service
from sharequeue.service.health.faults import Fault, Kind, recorded_faults
from sharequeue.service.health.servers import DatabaseState
from sharequeue.state.replicas import WORK

__all__ = ["HealthAnswer", "ReadyAnswer", "health", "metrics", "ready"]

_PROBE_TIMEOUT_S = 0.8
"""How long `/ready` waits for the broker: a probe of Kubernetes times out after 1 s."""
_DATABASE_TIMEOUT_S = 3.0
"""How long `/ready` waits for the database, without which the service is not ready."""
_PIECE_BYTES = 128 << 10
MOST_FAULTS = 200
"""The maximum number of faults in `/ready`, the oldest first: a subscription may name thousands of refused topics."""


class HealthAnswer(TypedDict):
    """The process runs."""

    status: str
    version: str


async def health(call: Call) -> Response:
    """Report that the process runs."""
    return JSONResponse({"status": "alive", "version": __version__})


class FaultAnswer(TypedDict):
    """A fault: its kind, its group, topic or partition, its reason, and its age."""

    kind: Kind
    group: str | None
    topic: str | None
    partition: int | None
    reason: str
    age_seconds: float


class WorkAnswer(TypedDict):
    """Seconds since this replica, and since any replica, last did each kind of background work; null if never."""

    this_replica_seconds: float | None
    any_replica_seconds: float | None


class _Ready(TypedDict):
    ready: bool
    degraded: bool


class ReadyAnswer(_Ready, total=False):
    """Whether the service is ready for members; and the faults, the oldest first, for callers that may see them."""

    broker: str
    database: str
    faults: list[FaultAnswer]
    more_faults: int
    work: dict[str, WorkAnswer]


async def ready(call: Call) -> Response:
    """Return whether the service is ready for members: 200 while heartbeats succeed, else 503.

    Any other fault is reported as degraded.
    """
    service = call.service
    asked: dict[str, Any] = {}

    async def broker() -> None:
        try:
            asked["broker"] = await service.broker_state.get(_PROBE_TIMEOUT_S)
        except TimeoutError:
            asked["broker"] = (
                f"Kafka at {service.bootstrap_servers} does not answer within {_PROBE_TIMEOUT_S} s."
            )

    async def database() -> None:
        try:
            asked["database"] = await service.database_state.get(_DATABASE_TIMEOUT_S)
        except TimeoutError:
            asked["database"] = DatabaseState(
                f"the database does not answer within {_DATABASE_TIMEOUT_S:.0f} s."
            )

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(broker)
        tasks.start_soon(database)
    checked: DatabaseState = asked["database"]
    is_ready = checked.usable
    service.faults.note("database", None if checked.state == "ok" else checked.state)
    service.faults.note("broker", None if asked["broker"] == "ok" else asked["broker"])
    service.faults.look()
    faults = service.faults.of_this_replica()
    if checked.replicas is not None:
        faults += recorded_faults(checked.replicas, checked.held)
    status = 200 if is_ready else 503
    if service.admission.require_token and not await _is_known(call):
        return JSONResponse({"ready": is_ready, "degraded": bool(faults)}, status)
    faults.sort(key=attrgetter("age_seconds"), reverse=True)
    body: ReadyAnswer = {
        "ready": is_ready,
        "degraded": bool(faults),
        "broker": asked["broker"],
        "database": checked.state,
        "faults": [_fault(each) for each in faults[:MOST_FAULTS]],
        "more_faults": max(0, len(faults) - MOST_FAULTS),
        "work": _work(service, checked),
    }
    return JSONResponse(body, status)


def _fault(fault: Fault) -> FaultAnswer:
    return cast("FaultAnswer", {**asdict(fault), "age_seconds": round(fault.age_seconds, 3)})


def _work(service: Service, checked: DatabaseState) -> dict[str, WorkAnswer]:
    here = service.coordinator.work.ages()
    anywhere = checked.replicas.ages if checked.replicas is not None else {}
    return {
        work: {
            "this_replica_seconds": _rounded(here[work]),
            "any_replica_seconds": _rounded(anywhere.get(work)),
        }
        for work in WORK
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(max(0.0, seconds), 3)


async def _is_known(call: Call) -> bool:
    with anyio.move_on_after(_DATABASE_TIMEOUT_S):
        try:
            await call.principal()
        except (TokenRefused, SQLAlchemyError, ShareError):
            return False
        return True
    return False


async def metrics(call: Call) -> Response:
    """Return the metrics for Prometheus.

    They name groups, so TokenRefused is raised if a required token is missing. While the database does not answer, a
    token is accepted with which this replica was scraped before.
    """
    scrapers = call.service.metrics.scrapers
    try:
        with anyio.fail_after(_DATABASE_TIMEOUT_S):
            await call.principal()
        scrapers.accept(call.request)
    except (TokenRefused, ClusterAuthorizationFailed):
        scrapers.refuse(call.request)
        raise
    except SQLAlchemyError:
        if not scrapers.knows(call.request):
            raise
    except TimeoutError:
        if not scrapers.knows(call.request):
            raise CoordinatorNotAvailable from None
    text = await call.service.metrics.text()
    # With its length, so that it is not sent in chunks of HTTP.
    length = {"content-length": str(len(text))}
    return StreamingResponse(_pieces(text), media_type=CONTENT_TYPE_LATEST, headers=length)


async def _pieces(text: bytes) -> AsyncIterator[bytes]:
    """Yield a long text in pieces: the event loop copies one to the connection at a time, not megabytes for each of
    many scrapers whose text is ready at the same moment."""
    for at in range(0, len(text), _PIECE_BYTES):
        yield text[at : at + _PIECE_BYTES]
        await asyncio.sleep(0)  # others have their turn, also while the connection takes all
