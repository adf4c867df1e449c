"""What a deep run came to, printed at its end as it goes into `docs/evidence/proof.md`."""

from __future__ import annotations

import pytest

TOLD: list[str] = []


@pytest.fixture
def told() -> list[str]:
    """Lines for the end of the run."""
    return TOLD


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print them."""
    if TOLD:
        terminalreporter.section("deep run")
    for line in TOLD:
        terminalreporter.write_line(line)
