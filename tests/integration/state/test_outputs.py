"""An output counts once: with the acknowledgement of the one who holds the records, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import psycopg2
import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRecordState, InvalidRequest
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import AcknowledgeType, Lease, LeaseOutput, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.spark.outcomes import acknowledging
from sharequeue.spark.outcomes.acknowledging import to_send
from sharequeue.spark.outcomes.outcomes import Acknowledgement
from sharequeue.state import State
from tests import single
from tests.waiting import PATIENCE_S, pass_time, wait_for_locks

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
AT = SharePartition("g", "t", 0)


@pytest.fixture
def state(private_database: Database) -> State:
    """Give a state with a thousand records for group `g`, which has a dead-letter topic."""
    state = State(private_database)
    ensure_group(private_database, "g")
    alter_group_configs(private_database, "g", {"errors.deadletterqueue.topic.name": "dlq.g"})
    private_database.rows(
        sa.text("select sharequeue.set_clock_offset(cast(:none as interval))"), none=timedelta(0)
    )
    start(state, AT)
    return state


def start(state: State, at: SharePartition) -> None:
    state.initialize(at, "id", 0, 1)
    single.observe(state, at, "id", 0, 1000, 1000)


def held(state: State, member: str, at: SharePartition = AT) -> Lease:
    lease = single.acquire(state, at, member, None, 10)
    assert lease is not None
    return lease


def output(lease: Lease, sink: str = "files") -> list[LeaseOutput]:
    return [LeaseOutput(sink, f"lease={lease.lease_id} of {lease.member_id}", lease.offsets.count)]


def counted(state: State, group: str = "g") -> list[tuple[int, str, int]]:
    return [(row.lease_id, row.location, row.records) for row in state.outputs.counted(group, "files")]


def lapse(state: State, lease: Lease) -> None:
    """The lock lapses, and another worker accepts the records with an output of its own."""
    pass_time(state.database, 31)
    accept_elsewhere(state)


def accept_elsewhere(state: State) -> None:
    while (lease := single.acquire(state, AT, "second", None, 10)) is not None and lease.offsets.first < 10:
        single.acknowledge(state, lease, {ACCEPT: lease.offsets}, outputs=output(lease))
    state.release_member("g", "second")


def release_by_force(state: State, lease: Lease) -> None:
    state.administration.force_release(AT, lease.offsets, execute=True)
    accept_elsewhere(state)


def bury(state: State, lease: Lease) -> None:
    """The records become dead letters, which are written."""
    state.administration.force_dead_letter(AT, lease.offsets, execute=True)
    letters = state.dead_letters.open(AT, 100)
    assert letters is not None
    state.dead_letters.close(letters)


@pytest.mark.parametrize("lose", [lapse, release_by_force, bury])
def test_the_output_of_a_late_holder_does_not_count(
    state: State, lose: Callable[[State, Lease], None]
) -> None:
    """Its lock is lost and SPSO has passed its records: an acknowledgement with an output is refused and changes
    nothing. One without an output succeeds and does nothing, as on a broker (R-AK-6)."""
    late = held(state, "late")
    lose(state, late)
    before = state.figures.describe("g")[0]
    assert before.spso == 10
    manifest = counted(state)
    for outcomes in ({ACCEPT: late.offsets}, {RELEASE: late.offsets}, {}):
        with pytest.raises(InvalidRecordState, match="output"):
            single.acknowledge(state, late, outcomes, outputs=output(late))
    assert counted(state) == manifest
    assert sum(records for _, _, records in manifest) <= 10
    assert state.figures.describe("g")[0] == before
    assert single.acknowledge(state, late, {ACCEPT: late.offsets}).accepted == 0
    assert counted(state) == manifest
    assert state.figures.verify("g") == []


def test_a_driver_that_is_stopped_in_its_acknowledgement_holds_up_nobody(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres ends the transaction of one that stands idle with the share-partition in its hand. Woken, it does
    the whole again, once."""
    monkeypatch.setattr(acknowledging, "STOPPED_MS", 2000)
    lease = held(state, "m")
    turns: list[State] = []

    @contextmanager
    def transaction(of: State) -> Iterator[State]:
        with acknowledging.acknowledging_transaction(of) as (_, joined):
            yield joined
            turns.append(joined)
            if len(turns) == 1:  # stopped here: another one wants the share-partition, and gets it
                assert single.renew(state, held(state, "other")) > state.now()
                monkeypatch.setattr(acknowledging, "STOPPED_MS", 60_000)

    given = to_send(lease, Acknowledgement({ACCEPT: lease.offsets}, 0, EMPTY), output(lease))
    assert acknowledging.acknowledge(state, given, transaction).accepted == 10
    assert len(turns) == 2
    assert [lease_id for lease_id, _, _ in counted(state)] == [lease.lease_id]
    assert state.figures.verify("g") == []


def test_what_retention_takes_from_a_lease_with_times_not_before_is_accepted_all_the_same(
    state: State,
) -> None:
    """It takes several calls, and the first lets go of what the log start has passed: it is the one that accepts."""
    lease = held(state, "m")
    single.observe(state, AT, "id", 4, 1000, 1000)
    outcomes = {ACCEPT: OffsetSet.of((0, 6)), RELEASE: OffsetSet.of((6, 10))}
    later = int(state.now().timestamp()) + 60
    delayed = Acknowledgement(
        outcomes, 0, EMPTY, {later: OffsetSet.of((6, 8)), later + 60: OffsetSet.of((8, 10))}
    )
    acknowledged = acknowledging.acknowledge(state, to_send(lease, delayed, output(lease)))
    assert (acknowledged.accepted, acknowledged.released, acknowledged.spso) == (6, 4, 6)
    assert [lease_id for lease_id, _, _ in counted(state)] == [lease.lease_id]
    (status,) = state.figures.describe("g")
    assert (status.accepted, status.lost_records, status.waiting) == (6, 0, 4)
    assert state.figures.verify("g") == []


def test_every_offset_that_comes_with_an_output_is_held_under_its_lease(state: State) -> None:
    """Another lease of the same member, or what was acknowledged before, is not enough; nor is it below SPSO."""
    first, second = held(state, "m"), held(state, "m")
    single.acknowledge(state, first, {ACCEPT: OffsetSet.of((0, 5))})
    for offsets in (OffsetSet.of((0, 10)), OffsetSet.of((4, 5)), second.offsets):
        with pytest.raises(InvalidRecordState, match="output"):
            single.acknowledge(state, first, {ACCEPT: offsets}, outputs=output(first))
    without_token = (
        "select error_code from sharequeue.acknowledge('g', 't', 0, null, 'm', null, null, null, '{[5,10)}', '{}',"
        ' \'{}\', \'{}\', \'[{"sink": "files", "location": "x", "records": 5}]\')'
    )
    assert state.database.rows(sa.text(without_token))[0]["error_code"] == 121
    assert counted(state) == []
    single.acknowledge(state, first, {ACCEPT: OffsetSet.of((5, 10))}, outputs=output(first))
    assert [lease_id for lease_id, _, _ in counted(state)] == [first.lease_id]


def test_a_repeated_call_returns_its_first_result_and_the_output_counts_once(state: State) -> None:
    """Also after the lease is gone and its lock would have lapsed."""
    lease, request_id = held(state, "m"), uuid4()
    first = single.acknowledge(
        state, lease, {ACCEPT: lease.offsets}, outputs=output(lease), request_id=request_id
    )
    pass_time(state.database, 60)
    again = single.acknowledge(
        state, lease, {ACCEPT: lease.offsets}, outputs=output(lease), request_id=request_id
    )
    assert again == first
    assert len(counted(state)) == 1


def test_a_sink_has_one_output_of_a_lease(state: State) -> None:
    """A second one, in the same call or a later one, is refused by name and changes nothing; other sinks, and
    acknowledgements without outputs before and after, are free."""
    lease = held(state, "m")
    single.acknowledge(state, lease, {RELEASE: OffsetSet.of((0, 1))})
    with pytest.raises(InvalidRequest, match="sink files is named twice"):
        single.acknowledge(state, lease, {ACCEPT: OffsetSet.of((1, 5))}, outputs=output(lease) * 2)
    single.acknowledge(state, lease, {ACCEPT: OffsetSet.of((1, 5))}, outputs=output(lease))
    before = state.figures.describe("g")[0]
    with pytest.raises(InvalidRequest, match=rf"sink files .* lease {lease.lease_id}"):
        single.acknowledge(state, lease, {ACCEPT: OffsetSet.of((5, 10))}, outputs=output(lease))
    assert state.figures.describe("g")[0] == before
    single.acknowledge(state, lease, {ACCEPT: OffsetSet.of((5, 9))}, outputs=output(lease, "others"))
    assert single.acknowledge(state, lease, {ACCEPT: OffsetSet.of((9, 10))}).accepted == 1
    assert len(counted(state)) == 1


def test_what_the_log_start_has_overtaken_still_counts_in_its_holders_output(state: State) -> None:
    """It is held until it is acknowledged: no other delivery of it can have an output."""
    lease = held(state, "m")
    single.observe(state, AT, "id", 5, 1000, 1000)
    assert state.figures.describe("g")[0].spso == 5
    single.acknowledge(state, lease, {ACCEPT: lease.offsets}, outputs=output(lease))
    assert [records for _, _, records in counted(state)] == [10]
    assert state.figures.verify("g") == []


def test_nobody_claims_the_outputs_of_another_group_in_advance(state: State) -> None:
    """The lease of an output is the token's: what a worker of another group says of lease ids changes nothing."""
    ensure_group(state.database, "other")
    elsewhere = SharePartition("other", "t", 0)
    start(state, elsewhere)
    mine, theirs = held(state, "m"), held(state, "m", elsewhere)
    claimed = replace(theirs, lease_id=mine.lease_id)
    single.acknowledge(state, claimed, {ACCEPT: theirs.offsets}, outputs=output(theirs))
    assert [lease_id for lease_id, _, _ in counted(state, "other")] == [theirs.lease_id]
    single.acknowledge(state, mine, {ACCEPT: mine.offsets}, outputs=output(mine))
    assert [lease_id for lease_id, _, _ in counted(state)] == [mine.lease_id]


def test_a_folder_belongs_to_the_first_group_that_counts_in_it(state: State) -> None:
    """Two groups of one sink count at the same moment, again and again: one is accepted, and the other, which waits
    for the end of its transaction, is refused by name with nothing acknowledged. Where that was rolled back, the
    other has the folder."""
    groups = [SharePartition(name, "t", 0) for name in ("mine", "theirs")]
    for at in groups:
        ensure_group(state.database, at.group_id)
        start(state, at)
    for turn in range(10):
        first, second = (held(state, "m", at) for at in groups)
        folder, rolled_back = f"s3a://out/orders-{turn}", turn % 3 == 2
        made = [
            [
                LeaseOutput(
                    "orders", f"{folder}/leases=x-{lease.lease_id}/sharequeue_lease={lease.lease_id}", 10
                )
            ]
            for lease in (first, second)
        ]
        with ThreadPoolExecutor(1) as pool:
            with suppress(_RolledBack), state.transaction() as (_, joined):
                single.acknowledge(joined, first, {ACCEPT: first.offsets}, outputs=made[0])
                late = pool.submit(
                    single.acknowledge, state, second, {ACCEPT: second.offsets}, outputs=made[1]
                )
                wait_for_locks(state.database)
                if rolled_back:
                    raise _RolledBack
            if rolled_back:
                assert late.result(PATIENCE_S).accepted == 10
                state.release_member("mine", "m", refund=True)
            else:
                with pytest.raises(
                    InvalidRequest, match=f"{folder} has the output of group mine, not of theirs"
                ):
                    late.result(PATIENCE_S)
                assert state.figures.describe("theirs")[0].acquired == 10
                state.release_member("theirs", "m", refund=True)
        assert state.outputs.owners([folder]) == {folder: "theirs" if rolled_back else "mine"}
    assert state.figures.verify("mine") == state.figures.verify("theirs") == []


class _RolledBack(Exception):
    """Ends a transaction."""


def test_an_output_shares_a_transaction_of_the_users_own(state: State, private_database: Database) -> None:
    """At READ COMMITTED rows and acknowledgement are one act; at another level the acknowledgement is refused by
    name, and nothing of either has happened."""
    lease = held(state, "m")
    call = (
        "select error_code from sharequeue.acknowledge('g', 't', 0, 1, 'm', null, %s, null, '{[0,10)}', '{}', '{}',"
        """ '{}', '[{"sink": "files", "location": "table", "records": 10}]')"""
    )
    token = (str(lease.token),)
    url = private_database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    connection = psycopg2.connect(url)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute("create table mine (n integer)")
        for level in ("REPEATABLE READ", "SERIALIZABLE", "READ COMMITTED"):
            connection.set_session(isolation_level=level)
            with connection.cursor() as cursor:
                cursor.execute("insert into mine values (10)")
                if level == "READ COMMITTED":
                    cursor.execute(call, token)
                    assert cursor.fetchone() == (0,)
                    connection.commit()
                    continue
                with pytest.raises(
                    psycopg2.Error, match=rf"transaction is {level}.*READ COMMITTED"
                ) as refused:
                    cursor.execute(call, token)
                assert refused.value.pgcode == "SQ042"
                connection.rollback()
                assert (counted(state), state.figures.describe("g")[0].acquired) == ([], 10)
        with connection, connection.cursor() as cursor:
            cursor.execute("select count(*) from mine")
            assert cursor.fetchone() == (1,)
    finally:
        connection.close()
    assert len(counted(state)) == 1


def _forget_topic(state: State) -> None:
    state.administration.delete_offsets("g", "t")


def _delete_group(state: State) -> None:
    assert state.administration.delete_group("g")


def _delete_topic(state: State) -> None:
    state.administration.note_topics({"t": None})
    assert state.administration.remove_deleted_topics(timedelta(0), execute=True)


@pytest.mark.parametrize("remove", [_forget_topic, _delete_group, _delete_topic])
def test_what_was_accepted_stays_when_its_state_goes(state: State, remove: Callable[[State], None]) -> None:
    """Whatever becomes of the topic, its state, or the group: the manifest of what was written goes on counting, also
    when it is brought together afterwards."""
    lease = held(state, "m")
    single.acknowledge(state, lease, {ACCEPT: lease.offsets}, outputs=output(lease))
    before = counted(state)
    assert before == [(lease.lease_id, f"lease={lease.lease_id} of m", 10)]
    remove(state)
    assert state.figures.describe("g") == []
    assert counted(state) == before
    ensure_group(state.database, "g")
    compaction = uuid4()
    state.outputs.begin_compaction(compaction, "g", "files", "together")
    assert state.outputs.commit_compaction(compaction, [before[0][1]], 10) == 1
    assert counted(state) == [(lease.lease_id, "together", 10)]
