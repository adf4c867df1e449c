"""Counts what the recorded scenarios compared, and prints it at the end of the run."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.local.stack import StackInfo
from tests.conformance.postgres_engine import PostgresEngine
from tests.fixtures.stack import allow_short_locks

COUNTS: dict[str, Counter[str]] = {}
HISTORIES: list[str] = []
"""What the runs of random histories came to, seed first."""


@pytest.fixture(scope="session", autouse=True)
def postgres_engine(stack: StackInfo) -> Iterator[None]:
    """A database of the suite's own, which the Postgres engine empties as it likes."""
    name = f"conformance_{uuid.uuid4().hex[:12]}"
    engine = sa.create_engine(stack.database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"create database {name}")
    url = sa.make_url(stack.database_url).set(database=name)
    with Database(url.render_as_string(hide_password=False)) as database:
        migrate(database)
        allow_short_locks(database)  # the recorded broker's operator did
        PostgresEngine.shared = database
        yield
        PostgresEngine.shared = None
    with engine.connect() as connection:
        connection.exec_driver_sql(f"drop database {name} with (force)")
    engine.dispose()


@pytest.fixture(scope="session")
def conformance_counts() -> dict[str, Counter[str]]:
    """The counts of this run, by engine."""
    return COUNTS


@pytest.fixture(scope="session")
def live_counts() -> dict[str, Counter[str]]:
    """The counts of the scenarios that are run on a broker too, by engine."""
    for engine in ("in memory", "postgres"):
        COUNTS.setdefault(f"{engine}, beside a broker", Counter())
    return {engine: COUNTS[f"{engine}, beside a broker"] for engine in ("in memory", "postgres")}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands its counts to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["conformance"] = {name: dict(counts) for name, counts in COUNTS.items()}
        session.config.workeroutput["histories"] = HISTORIES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add up what the workers counted."""
    for name, counts in getattr(node, "workeroutput", {}).get("conformance", {}).items():
        COUNTS.setdefault(name, Counter()).update(counts)
    HISTORIES.extend(getattr(node, "workeroutput", {}).get("histories", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many steps were compared, how many were equal, and how many fell under which line."""
    for engine, counts in COUNTS.items():
        compared = counts["equal"] + counts["listed"] + counts["unexplained"]
        terminalreporter.section(f"conformance, engine {engine}")
        terminalreporter.write_line(
            f"{compared} steps compared: {counts['equal']} equal, {counts['listed']} differ as listed,"
            f" {counts['unexplained']} unexplained"
        )
        lines = sorted((int(key[5:]), n) for key, n in counts.items() if key.startswith("line "))
        told = ", ".join(f"line {line}: {n}" for line, n in lines)
        terminalreporter.write_line(f"by line (a step may fall under several): {told}")
        rooms = sorted((key[5:], n) for key, n in counts.items() if key.startswith("room "))
        terminalreporter.write_line("by whose they are: " + ", ".join(f"{room} {n}" for room, n in rooms))
        others = sorted((key[10:], n) for key, n in counts.items() if key.startswith("elsewhere "))
        terminalreporter.write_line(
            f"compared elsewhere: {', '.join(f'{room} {n}' for room, n in others) or 'none'};"
            f" setting the stage: {counts['stage']}"
        )
    if HISTORIES:
        terminalreporter.section("random histories, both engines")
    for told in HISTORIES:
        terminalreporter.write_line(told)
