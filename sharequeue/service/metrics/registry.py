"""The metrics of one process, for Prometheus.

Most are read from the database at each scrape (`figures`, `families`), so that they survive restarts and
every replica shows the same. The process itself counts heartbeats by error, and the durations of requests and
statements. A scrape waits for the database for five seconds at most. Concurrent scrapes share one text, which a
thread makes: the event loop, on which heartbeats wait, only sends it.
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
from sharequeue.domain import traces
from sharequeue.domain.errors import (
    CoordinatorNotAvailable,
    NotCoordinator,
    ShareError,
    UnknownServerError,
    first_line,
)
from sharequeue.service.coordinator import Coordinator
from sharequeue.service.health.faults import Fault, Faults, recorded_faults
from sharequeue.service.health.single_flight import SingleFlight
from sharequeue.service.metrics.families import of_database, of_process, unavailable
from sharequeue.service.metrics.figures import Reader
from sharequeue.service.metrics.scrapers import Scrapers

__all__ = ["Metrics", "RequestDurations"]

_log = logging.getLogger(__name__)

SCRAPE_SECONDS = 5.0
"""How long a scrape waits for its turn and for the database; the default timeout of Prometheus is 10 s."""
RESTS = 4
"""The next reading begins after this many times the duration of the last one. So all scrapers together use a fifth of
a core at most; one that asks every few seconds never waits."""
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_FUNCTION = re.compile(r"sharequeue\.(\w+)\(")


class Metrics:
    """The metrics of one replica."""

    def __init__(self, database: Database, coordinator: Coordinator, faults: Faults) -> None:
        self._coordinator = coordinator
        self._faults = faults
        self._reader = Reader(database)
        self._scrape = SingleFlight(self._whole, "sharequeue-scrape", RESTS)
        self._process = SingleFlight(self._without_database, "sharequeue-scrape-process")
        self.scrapers = Scrapers()
        self.own = Own()
        self.own.count_statements(database.engine)

    async def text(self) -> bytes:
        """Return a scrape. It always has this process's own metrics, and the others if the database responds in
        time."""
        try:
            return await self._scrape.get(SCRAPE_SECONDS)
        except TimeoutError:
            _log.warning("no figures for /metrics: none within %.0f s", SCRAPE_SECONDS)
            return await self._process.get(SCRAPE_SECONDS)

    def _whole(self) -> bytes:
        try:
            read = self._reader.read()
        except (SQLAlchemyError, ShareError) as error:
            _log.warning("no figures for /metrics: %s", first_line(error))
            return self._without_database()
        return self._text(of_database(read), recorded_faults(read.replicas, read.held))

    def _without_database(self) -> bytes:
        return self._text(unavailable(), [])

    def _text(self, figures: str, recorded: list[Fault]) -> bytes:
        self._faults.look()
        faults = self._faults.of_this_replica() + recorded
        process = of_process(faults, self._coordinator.work.ages(), self._coordinator.failed_letters)
        return (figures + process + self.own.text()).encode()


class Own:
    """The metrics that a process counts from its start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.heartbeats = Counter(
            "sharequeue_heartbeats",
            "Responses to heartbeats, by error code (0: no error).",
            ["error_code"],
            registry=self.registry,
        )
        # From the start, for the errors of the service itself: a rate needs the value before the first error.
        for error in (UnknownServerError, CoordinatorNotAvailable, NotCoordinator):
            self.heartbeats.labels(str(error.code))
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
