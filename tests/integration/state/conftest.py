"""The state of a database of the test's own, for tests of the state's operations."""

from __future__ import annotations

import pytest

from sharequeue.database import Database
from sharequeue.state import State


@pytest.fixture
def state(private_database: Database) -> State:
    """Give the state of a database of this test alone; a module that begins with more has its own by this name."""
    return State(private_database)
