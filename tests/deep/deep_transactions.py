"""Transactions of many calls, ended in every way, prepared too: the results that count agree with each other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.local.stack import down, up
from tests.deep.servers import Pair
from tests.fixtures.stack import allow_short_locks, say
from tests.transactions.run import attack


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_transactions_that_are_prepared_too(stack_home: Path, told: list[str]) -> None:
    """Eight clients at once, some of whose transactions are prepared and ended later. The clock is moved by minutes
    to and fro between two phases."""
    info = up(stack_home, say, service=False)
    Pair(info, 0).sql("alter system set max_prepared_transactions = 50")
    down(stack_home, say)
    info = up(stack_home, say, service=False)
    seed = random.SystemRandom().randrange(10**6)
    with Database(info.database_url) as database:
        migrate(database)
        allow_short_locks(database)
        attacked = attack(database, seed=seed, clients=8, phases=10, transactions=100, two_phases=True)
    assert attacked.faults == [], f"seed {seed}"
    assert attacked.tally["prepared"] > 0
    told.append(f"transactions of many calls, seed {seed}: {dict(attacked.tally)}, no fault")
