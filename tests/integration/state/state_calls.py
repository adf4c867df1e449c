"""What the tests of the state's operations do again and again."""

from __future__ import annotations

import sqlalchemy as sa

from sharequeue.domain.values import Lease, SharePartition
from sharequeue.state import State
from sharequeue.state.rows import Redelivery
from tests import single


def take(state: State, at: SharePartition, most: int = 10, redelivery: Redelivery = "fan_out") -> Lease:
    lease = single.acquire(state, at, "m", None, most, redelivery=redelivery)
    assert lease is not None
    return lease


def in_flight(state: State) -> list[tuple[int, int, str]]:
    """State, delivery count and offsets of everything in flight, by offset."""
    rows = state.database.rows(
        sa.text(
            "select state, delivery_count, offsets from sharequeue.in_flight_offsets order by lower(offsets)"
        )
    )
    return [(row["state"], row["delivery_count"], row["offsets"]) for row in rows]


def audited(state: State) -> list[str]:
    rows = state.database.rows(
        sa.text(
            "select act from sharequeue.audit_log"
            " where act not in ('alter_group_config', 'set_service_configs') order by audit_id"
        )
    )
    return [str(row["act"]) for row in rows]


def journal_differs(state: State) -> list[str]:
    """Where replaying the journal does not give the present state."""
    rows = state.database.rows(sa.text("select differs from sharequeue.verify_journal()"))
    return [str(row["differs"]) for row in rows]
