"""Counts what the recorded scenarios compared, and prints it at the end of the run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

COUNTS: dict[str, Counter[str]] = {}


@pytest.fixture(scope="session")
def conformance_counts() -> dict[str, Counter[str]]:
    """The counts of this run, by engine."""
    return COUNTS


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands its counts to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["conformance"] = {name: dict(counts) for name, counts in COUNTS.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add up what the workers counted."""
    for name, counts in getattr(node, "workeroutput", {}).get("conformance", {}).items():
        COUNTS.setdefault(name, Counter()).update(counts)


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
        others = ", ".join(f"{room} {n}" for room, n in rooms if room not in ("engine", "stage"))
        terminalreporter.write_line(
            f"waiting for their rooms: {others}; setting the stage: {counts['room stage']}"
        )
