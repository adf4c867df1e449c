"""The metrics of one process, for Prometheus.

Most are read from the database at each scrape (`figures`, `families`), so that they survive restarts and
every replica shows the same. The process itself counts heartbeats by error, and the durations of requests and
statements. A scrape waits for the database for four seconds at most, and concurrent scrapes share one read.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Any

import sqlalchemy as sa
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from sharequeue.database import Database
from sharequeue.service.coordinator import Coordinator
from sharequeue.service.health.faults import Faults, recorded_faults
from sharequeue.service.health.single_flight import SingleFlight
from sharequeue.service.metrics.families import Read, of_database, of_process, unavailable
from sharequeue.service.metrics.figures import Reader
from sharequeue.words import traces
from sharequeue.words.errors import ShareError, first_line

__all__ = ["Metrics", "RequestDurations"]

_log = logging.getLogger(__name__)

SCRAPE_SECONDS = 4.0
"""How long a scrape waits for the database; the default timeout of Prometheus is 10 s."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_FUNCTION = re.compile(r"sharequeue\.(\w+)\(")


class Metrics:
    """The metrics of one replica."""

    def __init__(self, database: Database, coordinator: Coordinator, faults: Faults) -> None:
        self._coordinator = coordinator
        self._faults = faults
        self._reader = Reader(database)
        self._scrape = SingleFlight(self._read, "sharequeue-scrape")
        self.own = Own()
        self.own.count_statements(database.engine)

    async def text(self) -> str:
        """Return a scrape. It always has this process's own metrics, and the others if the database responds in
        time."""
        try:
            read, figures = await self._scrape.get(SCRAPE_SECONDS)
        except (SQLAlchemyError, ShareError, TimeoutError) as error:
            reason = first_line(error) if str(error) else f"none within {SCRAPE_SECONDS:.0f} s"
            _log.warning("no figures for /metrics: %s", reason)
            read, figures = None, unavailable()
        self._faults.look()
        faults = self._faults.of_this_replica()
        if read is not None:
            faults += recorded_faults(read.replicas, read.held)
        process = of_process(faults, self._coordinator.work.ages(), self._coordinator.failed_letters)
        return figures + process + self.own.text()

    def _read(self) -> tuple[Read, str]:
        read = self._reader.read()
        return read, of_database(read)


class Own:
    """The metrics that a process counts from its start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.heartbeats = Counter(
            "sharequeue_heartbeats",
            "Responses to heartbeats, by error code (0 is none).",
            ["error_code"],
            registry=self.registry,
        )
        self.requests = Histogram(
            "sharequeue_request_duration_seconds",
            "How long requests take, by operation: the last part of the path.",
            ["operation"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.statements = Histogram(
            "sharequeue_statement_duration_seconds",
            "How long statements of the service take in the database, by SQL function; other: those that call none.",
            ["function"],
            buckets=_SECONDS,
            registry=self.registry,
        )

    def text(self) -> str:
        """Return the metrics for Prometheus, without the creation time of each series."""
        lines = generate_latest(self.registry).decode().splitlines(keepends=True)
        return "".join(line for line in lines if "_created" not in line)

    def count_statements(self, engine: sa.Engine) -> None:
        """Measure the duration of each successful statement of an engine."""

        def before(connection: sa.Connection, *_: Any) -> None:
            connection.info["began"] = time.monotonic()

        def after(connection: sa.Connection, cursor: Any, statement: str, *_: Any) -> None:
            seconds = time.monotonic() - connection.info["began"]
            function = _FUNCTION.search(statement)
            self.statements.labels(function.group(1) if function else "other").observe(seconds)

        sa.event.listen(engine, "before_cursor_execute", before)
        sa.event.listen(engine, "after_cursor_execute", after)


class RequestDurations:
    """ASGI middleware that records the duration and the trace of every request, by operation."""

    def __init__(self, app: ASGIApp, durations: Histogram) -> None:
        self._app = app
        self._durations = durations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request and record its duration."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        try:
            with traces.of_request(Headers(scope=scope).get(traces.HEADER)):
                await self._app(scope, receive, send)
        finally:
            self._durations.labels(operation_of(scope)).observe(time.monotonic() - began)


def operation_of(scope: Scope) -> str:
    """Return the operation of a request. The number of operations is limited: an unknown path is `other`."""
    if "endpoint" not in scope:
        return "other"
    first, _, rest = str(scope["path"]).removeprefix("/v1").removeprefix("/").partition("/")
    return f"{first}/{{group_id}}" if rest else first
