"""The state of a database of the test's own, for tests of the state's operations."""

from __future__ import annotations

import pytest

from sharequeue.database import Database
from sharequeue.state import State


@pytest.fixture(autouse=True)
def _clock(request: pytest.FixtureRequest) -> None:
    """Have only the test move the clock: what it compares does not depend on how long its calls take."""
    if "private_database" in request.fixturenames:
        request.getfixturevalue("standing_clock")


@pytest.fixture
def state(private_database: Database) -> State:
    """Give the state of a database of this test alone; a module that begins with more has its own by this name."""
    return State(private_database)
