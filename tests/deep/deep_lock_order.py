"""All operations at once for some minutes: nobody meets a deadlock."""

from __future__ import annotations

import os
import random

import pytest

from sharequeue.database import Database
from sharequeue.state import State
from tests.operations_at_once import deadlocks, run_at_once

SECONDS = float(os.environ.get("SHAREQUEUE_TEST_SECONDS", "180"))
SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


@pytest.mark.timeout(0)
def test_all_operations_at_once_meet_no_deadlock_for_long(
    private_database: Database, told: list[str]
) -> None:
    """Eight connections draw from every operation on two groups: not one deadlock, and every invariant holds."""
    tally = run_at_once(private_database, SEED, SECONDS)
    told.append(f"all operations at once, seed {SEED}: {tally.steps.total():,} steps in {SECONDS:,.0f} s")
    assert not tally.faults, f"seed {SEED}: {tally.faults[0]}"
    assert deadlocks(private_database) == 0, f"seed {SEED}"
    assert State(private_database).figures.verify() == []
