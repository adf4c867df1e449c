"""`verify` names every invariant that does not hold: each is broken by hand here, and seen."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.state import State
from tests import single
from tests.waiting import pass_time

BREAKS = [
    # The batches: 0-9 exploded (0 available, 1-4 accepted, 5-9 leased), 10-19 leased whole, 20-29 accepted whole.
    (
        "update sharequeue.in_flight_batches set offsets = '{[0,2)}' where state = 0",
        "an offset is in two states at once",
    ),
    (
        "insert into sharequeue.in_flight_batches (share_partition_id, first_offset, last_offset, part, state,"
        " delivery_count, lease_id) select share_partition_id, 12, 14, 0, 1, 1, lease_id"
        " from sharequeue.in_flight_batches where first_offset = 10",
        "an offset is in two states at once",
    ),
    (
        "insert into sharequeue.in_flight_batches (share_partition_id, first_offset, last_offset, part, state,"
        " delivery_count, offsets) select share_partition_id, 0, 9, 9, 2, 1, '{[9,10)}'"
        " from sharequeue.in_flight_batches where first_offset = 20",
        "a batch has two rows of one state",
    ),
    (
        "delete from sharequeue.in_flight_batches where first_offset = 0 and state = 0",
        "the states of a batch do not fill it",
    ),
    (
        "update sharequeue.in_flight_batches set offsets = '{[5,12)}' where first_offset = 0 and state = 1",
        "the states of a batch do not fill it",
    ),
    ("update sharequeue.share_partitions set speo = 25", "a batch lies at or past SPEO"),
    ("update sharequeue.share_partitions set spso = 3", "an offset below SPSO is still available"),
    ("update sharequeue.in_flight_batches set state = 2 where state = 0", "the record at SPSO is terminal"),
    ("delete from sharequeue.in_flight_batches", "no batch is in flight between SPSO and SPEO"),
    (
        "update sharequeue.share_partitions set delivery_complete_count = 7",
        "the delivery-complete count does not match",
    ),
    (
        "update sharequeue.in_flight_batches set delivery_count = 0 where state = 1",
        "a leased record has delivery count 0",
    ),
    (
        "update sharequeue.in_flight_batches set state = 7 where first_offset = 20",
        "a row of a batch has impossible values",
    ),
    (
        "update sharequeue.in_flight_batches set not_before = now() where state = 1",
        "a row of a batch has impossible values",
    ),
    (
        "update sharequeue.in_flight_batches set cause = 'whim' where state = 2",
        "a row of a batch has impossible values",
    ),
    ("update sharequeue.share_partitions set status = 'odd'", "a share-partition has impossible values"),
    ("update sharequeue.share_partitions set spso = 31", "a share-partition has impossible values"),
    (
        "update sharequeue.share_partitions set redeliverable = false",
        "a record is redeliverable, but the share-partition is not marked so",
    ),
    (
        "insert into sharequeue.leases (share_partition_id, member_id, member_epoch, lock_duration_ms, acquired_at,"
        " locked_at, expires_at) select share_partition_id, 'x', 0, 1, now(), now(), now() + interval '1 day'"
        " from sharequeue.share_partitions",
        "a lease holds no record",
    ),
    (
        "update sharequeue.leases set expires_at = expires_at - interval '1 hour'",
        "a lock lapses before the next expiry of its share-partition",
    ),
    (
        "update sharequeue.share_partitions set next_expiry = null",
        "a lock lapses before the next expiry of its share-partition",
    ),
    ("delete from sharequeue.leases", "under a lease of another share-partition, or one that does not exist"),
    (
        "update sharequeue.in_flight_batches set lease_id = 987654321 where first_offset = 10",
        "under a lease of another share-partition, or one that does not exist",
    ),
    (
        "insert into sharequeue.circuit_breakers (share_partition_id, state)"
        " select share_partition_id, 'probing' from sharequeue.share_partitions",
        "a circuit breaker has impossible values",
    ),
]


@pytest.fixture
def state(private_database: Database) -> State:
    """The state of one share-partition with an available, accepted and leased batch, as BREAKS describes it."""
    state, at = State(private_database), SharePartition("g", "t", 0)
    alter_group_configs(private_database, "g", {})
    state.initialize(at, "id", 0, 1)
    single.observe(state, at, "id", 0, 100, 100)
    leases = [single.acquire(state, at, "m", None, 10) for _ in range(3)]
    assert leases[0] is not None
    assert leases[2] is not None
    single.acknowledge(
        state,
        leases[0],
        {AcknowledgeType.RELEASE: OffsetSet.of((0, 1)), AcknowledgeType.ACCEPT: OffsetSet.of((1, 5))},
    )
    single.acknowledge(state, leases[2], {AcknowledgeType.ACCEPT: leases[2].offsets})
    assert state.figures.verify() == []
    return state


@pytest.mark.parametrize(
    ("broken", "violation"), BREAKS, ids=[f"{broken[-30:]} {violation[:30]}" for broken, violation in BREAKS]
)
def test_a_broken_invariant_is_named(
    state: State, private_database: Database, broken: str, violation: str
) -> None:
    """What no operation may do, done by hand, is found, with group and share-partition."""
    with private_database.transaction() as connection:
        connection.execute(sa.text(broken))
    found = state.figures.verify("g")
    assert any(violation in each and each.startswith("g t-0: ") for each in found), found
    assert state.figures.verify("another group") == []


def test_a_truncated_log_is_a_named_fault(state: State) -> None:
    """A log that ends below what was delivered: lag is 0 and describe says why (KIP-1226, design invariant 5)."""
    single.observe(state, SharePartition("g", "t", 0), "id", 0, 5, 5)
    status = state.figures.describe("g")[0]
    assert status.lag == 0
    assert status.fault == "the log ends at 5, below delivered records: it was truncated"


def test_a_truncated_log_stays_a_fault_when_it_has_grown_again(
    state: State, private_database: Database
) -> None:
    """What was delivered there are other records now, which nobody gets until the offsets are reset."""
    at = SharePartition("g", "t", 0)
    single.observe(state, at, "id", 0, 5, 5)
    single.observe(state, at, "id", 0, 4, 4)
    pass_time(private_database, 11)
    single.observe(state, at, "id", 0, 1000, 1000)
    status = state.figures.describe("g")[0]
    assert status.truncated_to == 4
    assert str(status.fault).startswith("the log was truncated to 4 at ")
    assert f"offsets 4 to {status.speo - 1} are other records" in str(status.fault)
    condition = "select condition from sharequeue.monitored_share_partitions"
    assert private_database.rows(sa.text(condition))[0]["condition"] == "log_truncated"
    single.alter_offsets(state, at, "id", 4)
    status = state.figures.describe("g")[0]
    assert (status.truncated_to, status.fault) == (None, None)


def test_an_older_answer_of_the_broker_is_no_truncated_log(state: State) -> None:
    """The next look, seconds later, corrects it."""
    at = SharePartition("g", "t", 0)
    single.observe(state, at, "id", 0, 5, 5)
    single.observe(state, at, "id", 0, 1000, 1000)
    status = state.figures.describe("g")[0]
    assert (status.truncated_to, status.fault) == (None, None)
