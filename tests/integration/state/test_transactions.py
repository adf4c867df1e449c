"""Programs with SQL of their own: many calls in a transaction, parts of it taken back, the clock moved meanwhile."""

from __future__ import annotations

from sharequeue.database import Database
from tests.transactions.run import attack


def test_transactions_of_many_calls(private_database: Database) -> None:
    """A ledger of the answers that count agrees with each later answer, and with the state at the end."""
    attacked = attack(private_database, seed=1, clients=4, phases=2, transactions=40)
    assert attacked.faults == []
    assert min(attacked.tally[kind] for kind in ("acquire", "acknowledge", "renew", "release", "force")) > 0
