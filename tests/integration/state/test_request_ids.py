"""A request id names one call of one member on one share-partition; a stored result is for that caller alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.errors import InvalidRecordState
from sharequeue.groups.acls import Acl, Acls, on_behalf_of
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.state import State
from sharequeue.values import AcknowledgeType, Lease, SharePartition

ACCEPT = AcknowledgeType.ACCEPT
AT, BESIDE, ELSEWHERE = (
    SharePartition("g", "t", 0),
    SharePartition("g", "t", 1),
    SharePartition("other", "t", 0),
)
FETCH = (
    "select * from sharequeue.acknowledge_and_acquire('g', 't', :partition, null, :member, null,"
    " cast(:token as uuid), cast(:id as uuid), cast(:firsts as bigint[]), cast(:lasts as bigint[]), '{1}', 10,"
    " 'fan_out')"
)


@pytest.fixture
def state(private_database: Database) -> State:
    """Give a state with three share-partitions of two groups."""
    state = State(private_database)
    for group in ("g", "other"):
        ensure_group(private_database, group)
    for at in (AT, BESIDE, ELSEWHERE):
        state.initialize(at, "id", 0, 1)
        state.observe(at, "id", 0, 1000, 1000)
    return state


def taken(state: State, at: SharePartition, member: str, request_id: UUID) -> Lease:
    lease = state.acquire(at, member, None, 10, request_id=request_id)
    assert lease is not None
    return lease


def fetched(
    state: State, lease: Lease, member: str, request_id: UUID, first: int, at: SharePartition = AT
) -> dict[str, Any]:
    (row,) = state.database.rows(
        sa.text(FETCH),
        partition=at.partition,
        member=member,
        token=str(lease.token),
        id=str(request_id),
        firsts=[first],
        lasts=[first + 9],
    )
    return dict(row)


def test_the_same_id_elsewhere_is_another_call(state: State) -> None:
    """On another share-partition, of the same group or of another, and for another operation; each has its own
    result, also when it is repeated."""
    same = uuid4()
    leases = {at: taken(state, at, "m", same) for at in (AT, BESIDE, ELSEWHERE)}
    assert len({lease.token for lease in leases.values()}) == 3
    for at, lease in leases.items():
        assert (lease.share_partition, taken(state, at, "m", same)) == (at, lease)
        result = state.acknowledge(lease, {ACCEPT: lease.offsets}, request_id=same)
        assert result.accepted == 10
        assert state.acknowledge(lease, {ACCEPT: lease.offsets}, request_id=same) == result
    assert [row.spso for row in state.figures.describe()] == [10, 10, 10]


def test_another_member_that_guesses_an_id_gets_no_token(state: State) -> None:
    """Nor a result: its call is its own."""
    guessed = uuid4()
    mine = taken(state, AT, "m", guessed)
    theirs = taken(state, AT, "guesser", guessed)
    assert theirs.token != mine.token
    assert not theirs.offsets & mine.offsets
    state.acknowledge(mine, {ACCEPT: mine.offsets}, request_id=guessed)
    held = taken(state, AT, "m", uuid4())
    with pytest.raises(InvalidRecordState):
        state.acknowledge(replace(held, member_id="guesser"), {ACCEPT: held.offsets}, request_id=guessed)


@pytest.mark.parametrize("way", ["folded", "side by side", "ended"])
def test_a_repeated_fetch_returns_its_result_to_its_own_member_only(state: State, way: str) -> None:
    """Whether its result is kept on the share-partition's row, with the lease, or among the requests."""
    lease, request_id = taken(state, AT, "m", uuid4()), uuid4()
    if way != "folded":
        taken(state, AT, "beside", uuid4())
    first = fetched(state, lease, "m", request_id, 0)
    assert (first["acknowledge_error_code"], first["error_code"]) == (0, 0)
    if way == "ended":
        state.release("g", "m")
    assert fetched(state, lease, "m", request_id, 0) == first
    for member, at in (("guesser", AT), ("m", BESIDE)):
        other = fetched(state, lease, member, request_id, 0, at)
        assert other["token"] != first["token"], (member, at)
        assert other["lease_id"] != first["lease_id"]
    assert state.figures.verify() == []


def test_a_stored_result_is_not_for_whom_the_acls_refuse(state: State, private_database: Database) -> None:
    """An ACL that comes after the call is asked before its result is looked up."""
    ids = [uuid4() for _ in range(3)]
    lease = taken(state, AT, "m", ids[0])
    state.acknowledge(lease, {ACCEPT: lease.offsets}, request_id=ids[1])
    held = taken(state, AT, "m", uuid4())
    fetch = fetched(state, held, "m", ids[2], 10)
    assert fetch["error_code"] == 0
    Acls(private_database).add(Acl("User:somebody", "READ", "ALLOW", "LITERAL", "g"))
    with on_behalf_of(private_database, "User:nobody") as connection:
        refused = connection.execute(
            sa.text(
                "select error_code, token from sharequeue.acquire('g', 't', 0, null, 'm', null, 10, null,"
                " cast(:id as uuid))"
            ),
            {"id": str(ids[0])},
        ).one()
        assert tuple(refused) == (30, None)
        refused = connection.execute(
            sa.text(
                "select error_code from sharequeue.acknowledge('g', 't', 0, null, 'm', null, cast(:token as uuid),"
                " cast(:id as uuid), '{[0,10)}', '{}',"
                " '{}', '{}')"
            ),
            {"id": str(ids[1]), "token": str(lease.token)},
        ).one()
        assert refused.error_code == 30
        row = connection.execute(
            sa.text(FETCH),
            {
                "partition": 0,
                "member": "m",
                "token": str(held.token),
                "id": str(ids[2]),
                "firsts": [10],
                "lasts": [19],
            },
        ).one()
        assert (row.acknowledge_error_code, row.error_code, row.token) == (30, 30, None)
    assert taken(state, AT, "m", ids[0]) == lease
