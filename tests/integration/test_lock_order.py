"""One order of locks: whatever runs at the same time, nobody meets a deadlock."""

from __future__ import annotations

import os
import random

from sharequeue.database import Database
from sharequeue.state import State
from tests.fix_stack import say
from tests.operations_at_once import deadlocks, run_at_once

SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


def test_all_operations_at_once_meet_no_deadlock(private_database: Database) -> None:
    """Eight connections draw from every operation on two groups: not one deadlock, and every invariant holds."""
    say(f"all operations at once: seed {SEED}")
    tally = run_at_once(private_database, SEED, 6)
    assert not tally.faults, f"seed {SEED}: {tally.faults[0]}"
    assert deadlocks(private_database) == 0, f"seed {SEED}"
    assert State(private_database).verify() == []
