"""A request id names one call of one member on one share-partition; a stored result is for that caller alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRecordState, UnknownTopicOrPartition
from sharequeue.domain.values import AcknowledgeType, Lease, SharePartition
from sharequeue.groups.acls import Acl, Acls, on_behalf_of
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.state import State
from tests import single
from tests.waiting import PATIENCE_S, wait_for_locks

ACCEPT = AcknowledgeType.ACCEPT
AT, BESIDE, ELSEWHERE = (
    SharePartition("g", "t", 0),
    SharePartition("g", "t", 1),
    SharePartition("other", "t", 0),
)


@pytest.fixture
def state(private_database: Database) -> State:
    """Give a state with three share-partitions of two groups."""
    state = State(private_database)
    for group in ("g", "other"):
        ensure_group(private_database, group)
    for at in (AT, BESIDE, ELSEWHERE):
        state.initialize(at, "id", 0, 1)
        single.observe(state, at, "id", 0, 1000, 1000)
    return state


def taken(state: State, at: SharePartition, member: str, request_id: UUID) -> Lease:
    lease = single.acquire(state, at, member, None, 10, request_id=request_id)
    assert lease is not None
    return lease


def test_the_same_id_elsewhere_is_another_call(state: State) -> None:
    """On another share-partition, of the same group or of another, and for another operation; each has its own
    result, also when it is repeated."""
    same = uuid4()
    leases = {at: taken(state, at, "m", same) for at in (AT, BESIDE, ELSEWHERE)}
    assert len({lease.token for lease in leases.values()}) == 3
    for at, lease in leases.items():
        assert (lease.share_partition, taken(state, at, "m", same)) == (at, lease)
        result = single.acknowledge(state, lease, {ACCEPT: lease.offsets}, request_id=same)
        assert result.accepted == 10
        assert single.acknowledge(state, lease, {ACCEPT: lease.offsets}, request_id=same) == result
    assert [row.spso for row in state.figures.describe()] == [10, 10, 10]


def test_another_member_that_guesses_an_id_gets_no_token(state: State) -> None:
    """Nor a result: its call is its own."""
    guessed = uuid4()
    mine = taken(state, AT, "m", guessed)
    theirs = taken(state, AT, "guesser", guessed)
    assert theirs.token != mine.token
    assert not theirs.offsets & mine.offsets
    single.acknowledge(state, mine, {ACCEPT: mine.offsets}, request_id=guessed)
    held = taken(state, AT, "m", uuid4())
    with pytest.raises(InvalidRecordState):
        single.acknowledge(
            state, replace(held, member_id="guesser"), {ACCEPT: held.offsets}, request_id=guessed
        )


def test_one_id_twice_at_once_beside_a_deletion(state: State, private_database: Database) -> None:
    """Both calls wait for the deletion of their share-partition, and both say that it is gone."""
    lease, same = taken(state, AT, "m", uuid4()), uuid4()

    def acknowledge() -> object:
        return single.acknowledge(state, lease, {ACCEPT: lease.offsets}, request_id=same)

    with ThreadPoolExecutor(2) as pool:
        with private_database.transaction() as deletion:
            deletion.execute(sa.text("select sharequeue.delete_offsets('g', 't')"))
            calls = [pool.submit(acknowledge) for _ in range(2)]
            wait_for_locks(private_database, 2)
        for call in calls:
            with pytest.raises(UnknownTopicOrPartition):
                call.result(PATIENCE_S)


def test_a_stored_result_is_not_for_whom_the_acls_refuse(state: State, private_database: Database) -> None:
    """An ACL that comes after the call is asked before its result is looked up."""
    ids = [uuid4() for _ in range(2)]
    lease = taken(state, AT, "m", ids[0])
    single.acknowledge(state, lease, {ACCEPT: lease.offsets}, request_id=ids[1])
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
    assert taken(state, AT, "m", ids[0]) == lease
