"""Many share-partitions in one call: what one call of each operation does, refuses, writes and repeats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from uuid import uuid4

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRecordState, InvalidRequest, UnknownTopicOrPartition
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import (
    Acknowledged,
    AcknowledgeType,
    Lease,
    LeaseOutput,
    LogSeen,
    SharePartition,
)
from sharequeue.spark.leasing.budget import Budget
from sharequeue.spark.leasing.renewal import LeaseKeeper
from sharequeue.state import State, locks
from sharequeue.state import state as state_module
from sharequeue.state.calls import LeaseAcknowledgement
from sharequeue.state.locks import lock_clock
from tests import single
from tests.fixtures.pipelines import Holder
from tests.waiting import set_clock, wait_until

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
PARTITIONS = 1_000


def started(state: State, group: str, partitions: int) -> list[SharePartition]:
    """A group with a window of any length, and so many share-partitions."""
    with state.transaction() as (connection, _):
        connection.execute(
            sa.text("insert into sharequeue.share_groups (group_id) values (:group) on conflict do nothing"),
            {"group": group},
        )
        connection.execute(
            sa.text(
                "insert into sharequeue.group_configs values"
                " (:group, 'share.partition.max.record.locks', '2147483647') on conflict do nothing"
            ),
            {"group": group},
        )
        connection.execute(
            sa.text(
                "select sharequeue.initialize(:group, 't', n, 'id', 0, 1) from generate_series(0, :last) as n"
            ),
            {"group": group, "last": partitions - 1},
        )
    return [SharePartition(group, "t", number) for number in range(partitions)]


def logs(at: list[SharePartition], log_end: int = 100, topic_id: str = "id") -> list[LogSeen]:
    return [LogSeen(each, topic_id, 0, log_end, log_end) for each in at]


@contextmanager
def statements(database: Database, function: str) -> Iterator[list[str]]:
    """The statements sent meanwhile that call a function."""
    sent: list[str] = []

    def note(_: object, __: object, statement: str, *rest: object) -> None:
        sent.extend([statement] if f"sharequeue.{function}(" in statement else [])

    sa.event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        sa.event.remove(database.engine, "before_cursor_execute", note)


def test_a_thousand_share_partitions_take_a_few_round_trips(
    state: State, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Observe: one statement; acquire, a turn of renewals, acknowledge and release: five each, of 200 leases."""
    at = started(state, group, PARTITIONS)
    with statements(state.database, "observe_many") as observed:
        assert set(state.observe(logs(at)).values()) == {"active"}
    assert len(observed) == 1
    with LeaseKeeper(state, Holder(at)) as keeper:
        with statements(state.database, "acquire_many") as acquired:
            leases = keeper.acquire_within(Budget(10 * PARTITIONS * 10), at)
        assert len(leases) == PARTITIONS
        assert len(acquired) == 5
        with statements(state.database, "renew_many") as renewed:
            # Half of each lock has passed: all of them are due.
            monkeypatch.setattr(locks, "lock_clock", lambda: lock_clock() + 15)
            wait_until(lambda: len(renewed) >= 5)
        assert len(renewed) == 5
        keeper.check()
        acknowledgements = [LeaseAcknowledgement(lease, {ACCEPT: lease.offsets}) for lease in leases[:200]]
        with statements(state.database, "acknowledge_many") as acknowledged:
            assert all(isinstance(each, Acknowledged) for each in state.acknowledge(acknowledgements))
        assert len(acknowledged) == 1
    assert state.figures.leases(group) == []
    assert sum(status.available for status in state.figures.describe(group)) == (PARTITIONS - 200) * 100
    with state.database.transaction() as connection:
        # As autovacuum would a little later: without statistics the check's joins are planned for a few rows.
        connection.exec_driver_sql(
            "analyze sharequeue.share_partitions, sharequeue.in_flight_batches, sharequeue.leases"
        )
    assert state.figures.verify(group) == []


def test_what_did_not_change_is_not_written(private_database: Database, group: str) -> None:
    """129 idle share-partitions, looked at again: their rows stay as they are, one row says when; and what people
    see of them is as of now."""
    state = State(private_database)
    at = started(state, group, 129)
    state.observe(logs(at))

    def versions() -> list[str]:
        rows = private_database.rows(
            sa.text("select ctid::text as at from sharequeue.share_partitions order by share_partition_id")
        )
        return [row["at"] for row in rows]

    before = versions()
    set_clock(private_database, timedelta(hours=1))
    state.observe(logs(at))
    assert versions() == before
    assert {status.observed_at for status in state.figures.describe(group)} == {observed(private_database)}
    assert state.now() - observed(private_database) < timedelta(minutes=1)
    state.observe([*logs(at[:1], 101), *logs(at[1:])])
    assert [one != other for one, other in zip(versions(), before, strict=True)] == [True] + [False] * 128
    assert [status.log_end for status in state.figures.describe(group)] == [101] + [100] * 128


def test_log_ends_of_some_partitions_do_not_make_the_others_current(
    private_database: Database, group: str
) -> None:
    """A worker looks at what it is assigned: only that is as of now."""
    state = State(private_database)
    at = started(state, group, 4)
    state.observe(logs(at))
    then = state.figures.describe(group)[0].observed_at
    set_clock(private_database, timedelta(hours=1))
    state.observe(logs(at[:2]))
    seen = [status.observed_at for status in state.figures.describe(group)]
    assert [when == then for when in seen] == [False, False, True, True]
    started(state, group, 5)
    assert state.figures.describe(group)[4].observed_at is None


def test_a_look_moves_log_starts_and_tells_of_topics_made_anew(state: State, group: str) -> None:
    """As the look at one share-partition does: what lies below the log start is lost, another id stops leasing."""
    at = started(state, group, 3)
    state.observe(logs(at))
    other = SharePartition(group, "nowhere", 0)
    statuses = state.observe(
        [LogSeen(at[0], "id", 40, 100, 100), LogSeen(at[1], "other", 0, 5, 5), *logs([at[2], other])]
    )
    assert statuses == {at[0]: "active", at[1]: "topic_recreated", at[2]: "active", other: None}
    assert [(s.spso, s.lost_records, s.status) for s in state.figures.describe(group)] == [
        (40, 40, "active"),
        (0, 0, "topic_recreated"),
        (0, 0, "active"),
    ]
    with pytest.raises(InvalidRequest):
        state.observe([LogSeen(at[2], "id", 7, 5, 5)])


def test_the_budget_is_shared_in_the_order_given(state: State, group: str) -> None:
    """Records and bytes go to the first share-partitions; the first lease has one record at least (R-AQ-18)."""
    at = started(state, group, 4)
    state.observe(logs(at))
    turned = [at[2], at[3], at[0], at[1]]
    acquired = state.acquire(turned, "m", None, 250)
    assert [(lease.share_partition, lease.offsets.count) for lease in acquired.leases] == [
        (at[2], 100),
        (at[3], 100),
        (at[0], 50),
    ]
    state.release(acquired.leases, cancelled=True)
    bounded = state.acquire(turned, "m", None, 250, max_bytes=1_050, mean_bytes={"t": 10.0})
    assert [lease.offsets.count for lease in bounded.leases] == [100, 5]
    state.release(bounded.leases, cancelled=True)
    large = state.acquire(turned, "m", None, 250, max_bytes=5, mean_bytes={"t": 10.0})
    assert [lease.offsets.count for lease in large.leases] == [1]


def test_a_refusal_undoes_nothing_of_the_others(state: State, group: str) -> None:
    """Of three leases one was given back: the other two are renewed and acknowledged, with their outputs."""
    at = [*started(state, group, 3), SharePartition(group, "nowhere", 0)]
    state.observe(logs(at[:3]))
    acquired = state.acquire(at, "m", None, 400)
    assert len(acquired.leases) == 3
    assert [type(error) for error in acquired.refusals.values()] == [UnknownTopicOrPartition]
    assert state.release(acquired.leases[1:2]) == 100
    renewed = state.renew(acquired.leases)
    assert [isinstance(result, datetime) for result in renewed] == [True, False, True]
    results = state.acknowledge(
        [
            LeaseAcknowledgement(
                lease, {ACCEPT: lease.offsets}, [LeaseOutput("sink", f"f{lease.lease_id}", 100)]
            )
            for lease in acquired.leases
        ]
    )
    assert [type(result) for result in results] == [Acknowledged, InvalidRecordState, Acknowledged]
    counted = {row.lease_id for row in state.outputs.counted(group, "sink")}
    assert counted == {acquired.leases[0].lease_id, acquired.leases[2].lease_id}
    assert state.figures.verify(group) == []


def test_a_repeated_call_returns_the_same_result(state: State, group: str) -> None:
    """A lost reply: the same leases again, and nothing is acknowledged twice."""
    at = started(state, group, 3)
    state.observe(logs(at))
    request = uuid4()
    leases = state.acquire(at, "m", None, 250, request_id=request).leases
    assert state.acquire(at, "m", None, 250, request_id=request).leases == leases
    request = uuid4()
    acknowledgements = [LeaseAcknowledgement(lease, {RELEASE: lease.offsets}) for lease in leases]
    first = state.acknowledge(acknowledgements, request_id=request)
    assert state.acknowledge(acknowledgements, request_id=request) == first
    assert len(state.figures.leases(group)) == 0


def test_parts_of_suspects_come_side_by_side(state: State, group: str) -> None:
    """10,000 suspects come in ten parts at once; where one of them dies, it alone comes again in ten."""
    [at] = started(state, group, 1)
    state.observe(logs([at], 10_000))
    state.acquire([at], "m", None, 100_000)
    state.release_member(group, "m")
    parts = state.acquire([at], "m", None, 100_000, parts=20).leases
    assert [(part.offsets.count, part.suspects, part.last_attempt) for part in parts] == [
        (1_000, True, False)
    ] * 10
    acknowledgements = [LeaseAcknowledgement(part, {ACCEPT: part.offsets}) for part in parts[1:]]
    assert all(isinstance(result, Acknowledged) for result in state.acknowledge(acknowledgements))
    state.release(parts[:1])
    again = state.acquire([at], "m", None, 100_000, parts=20).leases
    assert [part.offsets.count for part in again] == [100] * 10
    assert OffsetSet.union(part.offsets for part in again) == parts[0].offsets
    assert state.acquire([at], "m", None, 50, parts=20).leases == ()


@pytest.mark.parametrize("cancelled", [True, False])
def test_suspects_stay_suspects_when_a_run_is_cancelled_or_gives_deliveries_back(
    state: State, group: str, cancelled: bool
) -> None:
    """They come again in the same parts; what was no suspect is none afterwards. A refund takes the delivery back."""
    (at,) = started(state, group, 1)
    state.observe(logs([at], 40))
    state.release(state.acquire([at], "m", None, 40).leases)
    (status,) = state.figures.describe(group)
    assert (status.suspects, status.available) == (40, 40)
    parts = state.acquire([at], "m", None, 1_000, parts=10).leases
    state.observe(logs([at], 50))
    fresh = state.acquire([at], "m", None, 1_000, parts=10).leases
    assert [lease.suspects for lease in (*parts, *fresh)] == [True] * 3 + [False]
    state.release([*fresh, *parts], cancelled=cancelled, refund=not cancelled)
    *again, rest = state.acquire([at], "m", None, 1_000, parts=10).leases
    assert [part.offsets for part in again] == [part.offsets for part in parts]
    count = 3 if cancelled else 2
    assert [(part.suspects, part.deliveries[0].delivery_count) for part in again] == [(True, count)] * 3
    assert (rest.suspects, rest.offsets) == (False, fresh[0].offsets)
    assert state.figures.verify(group) == []


def test_a_last_attempt_is_leased_alone(state: State, group: str) -> None:
    """With it nothing else is leased, of no share-partition; who does not want it gets everything else, also what is
    behind it in its share-partition."""
    ours, other = started(state, group, 2)
    state.observe([*logs([ours], 3), *logs([other], 100)])
    for _ in range(4):
        held: list[Lease] = []
        while leases := state.acquire([ours], "m", None, 3, parts=3).leases:
            held += leases
        assert sum(lease.offsets.count for lease in held) == 3
        state.release(held)
    alone = state.acquire([other, ours], "m", None, 1_000, parts=10).leases
    assert [(lease.share_partition, lease.offsets.count, lease.last_attempt) for lease in alone] == [
        (ours, 1, True)
    ]
    assert alone[0].deliveries[0].delivery_count == 5
    state.observe(logs([ours], 10))
    rest = state.acquire([ours, other], "m", None, 1_000, parts=10, last_attempt=False).leases
    assert [(lease.share_partition, lease.offsets, lease.last_attempt) for lease in rest] == [
        (ours, OffsetSet.of((3, 10)), False),
        (other, OffsetSet.of((0, 100)), False),
    ]


def test_a_last_attempt_stays_alone_beside_one_that_is_paused(state: State, group: str) -> None:
    """The first one is in a paused share-partition, so that another is leased from: no last attempt comes with it."""
    paused, ours, other = started(state, group, 3)
    state.observe(logs([paused, ours], 3))
    for _ in range(4):
        held: list[Lease] = []
        while leases := state.acquire([paused, ours], "m", None, 6, parts=3).leases:
            held += leases
        state.release(held)
    state.observe(logs([other], 100))
    state.administration.pause(group, "tests", "t", 0)
    leased = state.acquire([paused, other, ours], "m", None, 1_000, parts=10).leases
    assert [(lease.share_partition, lease.last_attempt) for lease in leased] == [(other, False)]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("renew_many('g', '{t}', '{0,1}', '{1}', 'm', null, array[gen_random_uuid()])", "differ in length"),
        ("renew_many('g', '{null}', '{0}', '{1}', 'm', null, array[gen_random_uuid()])", "is null"),
        ("acquire_many('g', '{t}', '{0}', 'm', null, null)", "number of records"),
        ("acquire_many('g', '{t}', '{0}', 'm', null, 1, p_parts => 0)", "parts"),
        ("acquire_many('g', '{t}', '{0}', 'm', null, 1, p_max_bytes => 1, p_mean_bytes => '{0}')", "bytes"),
        ("acquire_many('g', null, null, 'm', null, 1)", "differ in length"),
        ("observe_many('g', '{t}', '{0}', '{id}', '{0}', '{1}', '{}')", "differ in length"),
        ("release_many('g', '{t}', '{0}', 'm', array[null]::uuid[])", "token"),
        (
            "renew_many('g', array_fill('t'::text, '{1001}'), array_fill(0, '{1001}'), array_fill(1, '{1001}'), 'm',"
            " null, array_fill(gen_random_uuid(), '{1001}'))",
            "at most 1000",
        ),
        (
            "acknowledge_many('g', '{t}', '{0}', '{1}', 'm', null, array[gen_random_uuid()], null, '{}', '{}', '{}',"
            " '{}', '{}', '{null}')",
            "array",
        ),
    ],
)
def test_a_malformed_call_is_refused(database: Database, query: str, says: str) -> None:
    """Nothing changed; the message says what a call needs."""
    with pytest.raises(InvalidRequest, match=says):
        database.rows(sa.text(f"select * from sharequeue.{query}".replace(":", "\\:")))  # noqa: S608


def observed(database: Database) -> datetime:
    when: datetime = database.rows(sa.text("select observed_at from sharequeue.observations"))[0][
        "observed_at"
    ]
    return when


SINGLES = 5_000
"""More ranges than go to Postgres as text."""


def test_scattered_offsets_come_and_go(private_database: Database) -> None:
    """Sets of many ranges, by calls of one share-partition and of many: acknowledged, leased again, left out, and the
    same once more where a call is repeated."""
    state = State(private_database)
    first, other = started(state, "scattered", 2)
    state.observe(logs([first, other], 4 * SINGLES))
    whole, small = state.acquire([first, other], "m", None, 4 * SINGLES + 10).leases
    again = OffsetSet.from_offsets(range(1, 4 * SINGLES, 4))
    outcomes = {ACCEPT: whole.offsets - again, RELEASE: again}
    done = state.acknowledge(
        [LeaseAcknowledgement(whole, outcomes), LeaseAcknowledgement(small, {RELEASE: small.offsets})]
    )
    assert [(each.accepted, each.released) for each in done if isinstance(each, Acknowledged)] == [
        (3 * SINGLES, SINGLES),
        (0, 10),
    ]
    request, leave_out = uuid4(), OffsetSet.from_offsets(range(1, 4 * SINGLES, 8))
    taken = [
        state.acquire(
            [first, other],
            "m",
            None,
            2 * SINGLES,
            request_id=request,
            leave_outs=[leave_out, OffsetSet.of((0, 5))],
        )
        for _ in range(2)
    ]
    assert taken[0] == taken[1]
    assert taken[0].leases[0].offsets == again - leave_out
    assert taken[0].leases[1].deliveries[-1].offsets == OffsetSet.of((5, 10))
    kept = single.acknowledge(state, taken[0].leases[0], {ACCEPT: again - leave_out})
    assert kept.accepted == SINGLES // 2
    rest = single.acquire(state, first, "m", None, 4 * SINGLES, request_id=request)
    assert rest is not None
    assert rest == single.acquire(state, first, "m", None, 4 * SINGLES, request_id=request)
    assert rest.offsets == leave_out
    with pytest.raises(InvalidRecordState, match="offset 5 "):
        single.acknowledge(state, rest, {ACCEPT: again})
    assert single.acknowledge(state, rest, {ACCEPT: leave_out}).spso == 4 * SINGLES


def test_an_acknowledgement_of_many_ranges_takes_several_statements(
    state: State, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease whose records ended by turns is acknowledged in parts: as a whole or not at all, and only once."""
    monkeypatch.setattr(state_module, "RANGES", 7)
    (at,) = started(state, group, 1)
    state.observe(logs([at]))
    lease = single.acquire(state, at, "m", None, 100)
    assert lease is not None
    even = OffsetSet.from_offsets(range(0, 100, 2))
    outcomes = {ACCEPT: even, RELEASE: lease.offsets - even}
    wrong = {**outcomes, RELEASE: lease.offsets - even | OffsetSet.of((100, 101))}
    output = LeaseOutput("files", f"file:/{group}", 50)
    (refused,) = state.acknowledge([LeaseAcknowledgement(lease, wrong, [output])])
    assert isinstance(refused, InvalidRecordState)
    assert state.figures.describe(group)[0].acquired == 100
    request_id = uuid4()
    asked = LeaseAcknowledgement(
        lease, outcomes, [output], delays={state.now() + timedelta(hours=1): outcomes[RELEASE]}
    )
    with statements(state.database, "acknowledge_many") as sent:
        (done,) = state.acknowledge([asked], request_id=request_id)
    assert len(sent) == 15
    assert isinstance(done, Acknowledged)
    assert (done.accepted, done.released, done.spso) == (50, 50, 1)
    assert state.acknowledge([asked], request_id=request_id) == [done]
    status = state.figures.describe(group)[0]
    assert (status.available, status.waiting, status.acquired) == (50, 50, 0)
    assert [row.records for row in state.outputs.counted(group, "files")] == [50]
