"""Bad input: each mistake is an error by name, and nothing has changed. Calls as any SQL client makes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidConfig, InvalidRecordState, InvalidRequest, ShareError, error_for
from sharequeue.domain.offsets import MAX_OFFSET, OffsetSet
from sharequeue.domain.values import AcknowledgementBatch, AcknowledgeType, Lease, SharePartition
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.groups.configs.published import publish_service_configs
from sharequeue.state import State
from tests import single
from tests.fixtures.stack import Copies

ACCEPT, RELEASE, RENEW = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.RENEW
AT = SharePartition("g", "t", 0)
PAST = 2**63 - 1

ACQUIRE = "select * from sharequeue.acquire(:group, 't', 0, null, :member, null, :most, :lock)"
ACKNOWLEDGE = (
    "select * from sharequeue.acknowledge(:group, 't', 0, null, :member, null, null, null,"
    " cast(:accept as int8multirange), cast(:release as int8multirange), '{}', '{}')"
)
BATCHES = (
    "select * from sharequeue.acknowledge_batches(:group, 't', 0, null, :member, null, null, null,"
    " cast(:firsts as bigint[]), cast(:lasts as bigint[]), cast(:types as smallint[]),"
    " cast(:counts as integer[]), false)"
)
FORCE = "select * from sharequeue.force(:group, 't', 0, cast(:offsets as int8multirange), :act, true)"
INITIALIZE = "select sharequeue.initialize(:group, :topic, :partition, :id, :start, :epoch)"
OBSERVE = "select sharequeue.observe('g', 't', 0, :id, :start, :end, :stable)"
ALTER = "select sharequeue.alter_offsets(:group, 't', 0, 'id', :start)"
RESET = (
    "select * from sharequeue.reset_offsets(:group, cast(:topics as text[]), cast(:partitions as integer[]),"
    " '{id}', '{0}', true)"
)
RESET_TWO = (
    "select * from sharequeue.reset_offsets(:group, array['t', 't'], cast(:partitions as integer[]),"
    " array['id', 'id'], array[3, 4], true)"
)
USUAL: Mapping[str, Mapping[str, object]] = {
    ACQUIRE: {"group": "g", "member": "m", "most": 5, "lock": None},
    ACKNOWLEDGE: {"group": "g", "member": "m", "accept": "{[0,3)}", "release": "{}"},
    BATCHES: {"group": "g", "member": "m", "firsts": [0], "lasts": [2], "types": [1], "counts": None},
    FORCE: {"group": "g", "offsets": "{[0,3)}", "act": "release"},
    INITIALIZE: {"group": "g", "topic": "new", "partition": 0, "id": "id", "start": 0, "epoch": 1},
    OBSERVE: {"id": "id", "start": 0, "end": 100, "stable": 100},
    ALTER: {"group": "g", "start": 0},
    RESET: {"group": "g", "topics": ["t"], "partitions": [0]},
    RESET_TWO: {"group": "g", "partitions": [0, 1]},
}
MISTAKES: list[tuple[str, dict[str, object], str]] = [
    (ACQUIRE, {"group": "nobody"}, "GROUP_ID_NOT_FOUND"),
    (ACQUIRE, {"group": None}, "INVALID_REQUEST"),
    (ACQUIRE, {"member": None}, "INVALID_REQUEST"),
    (ACQUIRE, {"member": ""}, "INVALID_REQUEST"),
    (ACQUIRE, {"member": "m" * 37}, "INVALID_REQUEST"),
    (ACQUIRE, {"most": None}, "INVALID_REQUEST"),
    (ACQUIRE, {"most": -1}, "INVALID_REQUEST"),
    (ACQUIRE, {"lock": 10}, "INVALID_REQUEST"),
    (ACKNOWLEDGE, {"group": "nobody"}, "GROUP_ID_NOT_FOUND"),
    (ACKNOWLEDGE, {"member": None}, "INVALID_REQUEST"),
    (ACKNOWLEDGE, {"accept": None}, "INVALID_REQUEST"),
    (ACKNOWLEDGE, {"release": "{[2,4)}"}, "INVALID_REQUEST"),
    (ACKNOWLEDGE, {"accept": "{[0,)}"}, "INVALID_REQUEST"),
    (ACKNOWLEDGE, {"accept": "{(,3)}"}, "INVALID_REQUEST"),
    (ACKNOWLEDGE, {"accept": "{[-5,3)}"}, "INVALID_REQUEST"),
    (ACKNOWLEDGE, {"accept": "{[0,11)}"}, "INVALID_RECORD_STATE"),
    (ACKNOWLEDGE, {"accept": "{[50,60)}"}, "INVALID_RECORD_STATE"),
    (ACKNOWLEDGE, {"member": "somebody else"}, "INVALID_RECORD_STATE"),
    (ACKNOWLEDGE, {"member": "m' or ''='"}, "INVALID_RECORD_STATE"),
    (BATCHES, {"group": "nobody"}, "GROUP_ID_NOT_FOUND"),
    (BATCHES, {"firsts": [5], "lasts": [2]}, "INVALID_REQUEST"),
    (BATCHES, {"firsts": [0, 3], "lasts": [4, 6], "types": [1, 1]}, "INVALID_REQUEST"),
    (BATCHES, {"firsts": [3, 0], "lasts": [4, 1], "types": [1, 1]}, "INVALID_REQUEST"),
    (BATCHES, {"lasts": []}, "INVALID_REQUEST"),
    (BATCHES, {"types": []}, "INVALID_REQUEST"),
    (BATCHES, {"firsts": None}, "INVALID_REQUEST"),
    (BATCHES, {"firsts": [None]}, "INVALID_REQUEST"),
    (BATCHES, {"types": [None]}, "INVALID_REQUEST"),
    (BATCHES, {"types": [5]}, "INVALID_REQUEST"),
    (BATCHES, {"types": [-1]}, "INVALID_REQUEST"),
    (BATCHES, {"types": [4]}, "INVALID_REQUEST"),
    (BATCHES, {"types": [1, 1], "counts": [2]}, "INVALID_REQUEST"),
    (BATCHES, {"types": [1, 1, 1], "counts": [0]}, "INVALID_REQUEST"),
    (BATCHES, {"firsts": [-1]}, "INVALID_REQUEST"),
    (BATCHES, {"lasts": [PAST]}, "INVALID_REQUEST"),
    (BATCHES, {"lasts": [MAX_OFFSET]}, "INVALID_REQUEST"),
    (BATCHES, {"lasts": [10]}, "INVALID_REQUEST"),
    (BATCHES, {"firsts": [50], "lasts": [60]}, "INVALID_REQUEST"),
    (FORCE, {"group": "nobody"}, "GROUP_ID_NOT_FOUND"),
    (FORCE, {"act": "forget"}, "INVALID_REQUEST"),
    (FORCE, {"act": None}, "INVALID_REQUEST"),
    (FORCE, {"offsets": "{}"}, "INVALID_REQUEST"),
    (FORCE, {"offsets": None}, "INVALID_REQUEST"),
    (FORCE, {"offsets": "{[0,)}"}, "INVALID_REQUEST"),
    (INITIALIZE, {"group": "nobody"}, "GROUP_ID_NOT_FOUND"),
    (INITIALIZE, {"group": None}, "GROUP_ID_NOT_FOUND"),
    (INITIALIZE, {"topic": None}, "INVALID_REQUEST"),
    (INITIALIZE, {"partition": -1}, "INVALID_REQUEST"),
    (INITIALIZE, {"start": -1}, "INVALID_REQUEST"),
    (INITIALIZE, {"start": None}, "INVALID_REQUEST"),
    (INITIALIZE, {"start": PAST}, "INVALID_REQUEST"),
    (INITIALIZE, {"epoch": None}, "INVALID_REQUEST"),
    (OBSERVE, {"id": None}, "INVALID_REQUEST"),
    (OBSERVE, {"start": -1}, "INVALID_REQUEST"),
    (OBSERVE, {"end": None}, "INVALID_REQUEST"),
    (OBSERVE, {"start": 200}, "INVALID_REQUEST"),
    (ALTER, {"group": "nobody"}, "GROUP_ID_NOT_FOUND"),
    (ALTER, {"start": -1}, "INVALID_REQUEST"),
    (ALTER, {"start": PAST}, "INVALID_REQUEST"),
    (RESET, {"group": ""}, "INVALID_GROUP_ID"),
    (RESET, {"topics": None}, "INVALID_REQUEST"),
    (RESET, {"partitions": [0, 1]}, "INVALID_REQUEST"),
    (RESET_TWO, {"partitions": [0, 0]}, "INVALID_REQUEST"),
]


@pytest.fixture(scope="module")
def database(copies: Copies) -> Iterator[Database]:
    """Give a database of this module alone: nobody else writes the rows that it compares."""
    with copies.one() as opened:
        yield opened


@pytest.fixture(scope="module")
def held(database: Database) -> Lease:
    """Offsets 0 to 9 of group g, leased by m; one state for all mistakes."""
    alter_group_configs(database, "g", {})
    state = State(database)
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, 100, 100)
    lease = single.acquire(state, AT, "m", None, 10, lock_duration_ms=3_600_000)
    assert lease is not None
    return lease


def everything(database: Database) -> list[object]:
    """All there is of group g."""
    rows = database.rows(
        sa.text(
            "select sp::text, f::text, l::text from sharequeue.share_partitions sp"
            " left join sharequeue.in_flight_batches f using (share_partition_id)"
            " left join sharequeue.leases l using (lease_id) where sp.group_id = 'g' order by 1, 2"
        )
    )
    groups = database.rows(sa.text("select g::text from sharequeue.share_groups g where group_id = 'g'"))
    return [dict(row) for row in (*rows, *groups)]


@pytest.mark.parametrize(
    ("call", "mistake", "name"),
    MISTAKES,
    ids=[f"{call.split('(')[0].split('.')[-1]} {mistake}"[:60] for call, mistake, _ in MISTAKES],
)
def test_a_mistake_is_refused_by_name(
    database: Database, held: Lease, call: str, mistake: dict[str, object], name: str
) -> None:
    """An error row, or raised with Kafka's number, never anything else; the state is what it was."""
    before = everything(database)
    try:
        row = database.rows(sa.text(call), **{**USUAL[call], **mistake})[0]
        refusal: ShareError = error_for(int(row["error_code"]), row["error_message"])
    except ShareError as error:
        refusal = error
    assert refusal.name == name
    assert refusal.message
    assert everything(database) == before


def test_the_usual_call_is_not_refused(state: State) -> None:
    """The calls that the mistakes are made of are right as they stand, but for a wrong member id's sake: quotes
    are text like any other."""
    member = 'm\'; drop table "x" --'
    lease = single.acquire(state, AT, member, None, 2)
    assert lease is not None
    assert single.acknowledge(state, lease, {ACCEPT: lease.offsets}).accepted == 2


def test_malformed_sets_never_reach_the_database(database: Database, held: Lease) -> None:
    """Reversed and unbounded ranges are no sets of offsets: in Python a ValueError, in SQL Postgres's own error."""
    for wrong in ((5, 5), (5, 4), (-1, 3), (0, MAX_OFFSET + 2)):
        with pytest.raises(ValueError, match="is not a range of offsets"):
            OffsetSet.of(wrong)
    with pytest.raises(sa.exc.DataError, match="lower bound must be less than or equal"):
        database.rows(sa.text(ACKNOWLEDGE), **{**USUAL[ACKNOWLEDGE], "accept": "{[5,2)}"})


def test_a_million_runs_and_too_many(private_database: Database) -> None:
    """A million batches in one call are taken; above this bound the call is refused."""
    state = State(private_database)
    alter_group_configs(private_database, "g", {"share.partition.max.record.locks": 2**31 - 1})
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, 2_000_000, 2_000_000)
    lease = single.acquire(state, AT, "m", None, 2_000_000)
    assert lease is not None
    sql = sa.text(
        "select error_code, error_message, accepted, spso from sharequeue.acknowledge_batches('g', 't', 0, null, 'm',"
        " null, null, null, (select array_agg(g * :step order by g) from generate_series(0, :runs - 1) as g),"
        " (select array_agg(g * :step order by g) from generate_series(0, :runs - 1) as g),"
        " (select array_agg(1::smallint) from generate_series(1, :runs)))"
    )
    refused = private_database.rows(sql, step=1, runs=1_000_001)[0]
    assert (refused["error_code"], "at most 1000000. Send" in refused["error_message"]) == (42, True)
    done = private_database.rows(sql, step=2, runs=1_000_000)[0]
    assert (done["error_code"], done["accepted"], done["spso"]) == (0, 1_000_000, 1)


# The calls that acknowledge in batches, through State ------------------------------------------------------------


@pytest.fixture
def state(private_database: Database) -> State:
    """A group with a share-partition of 100 records."""
    state = State(private_database)
    alter_group_configs(private_database, "g", {})
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, 100, 100)
    return state


def test_batches_through_state(state: State) -> None:
    """Types for a batch or per offset, renewals, not-before, and Kafka's refusals as exceptions."""
    lease = single.acquire(state, AT, "m", None, 10)
    assert lease is not None
    batches = [AcknowledgementBatch.of(0, 4, ACCEPT), AcknowledgementBatch.of(5, 6, ACCEPT, RELEASE)]
    later = datetime.now(UTC) + timedelta(hours=1)
    done = state.fetches.acknowledge_batches(AT, "m", batches, not_before=later)
    assert (done.accepted, done.released, done.spso) == (6, 1, 6)
    (status,) = state.figures.describe("g")
    assert status.waiting == 1
    assert status.waiting_until is not None
    assert timedelta(0) <= status.waiting_until - later < timedelta(seconds=2)
    renewal = [AcknowledgementBatch.of(7, 9, RENEW)]
    state.fetches.acknowledge_batches(AT, "m", renewal, token=lease.token, state_epoch=1)
    with pytest.raises(InvalidRequest, match="IsRenewAck"):
        state.fetches.acknowledge_batches(AT, "m", renewal, renewing=False)
    with pytest.raises(InvalidRecordState):
        state.fetches.acknowledge_batches(AT, "m", [AcknowledgementBatch.of(7, 9, ACCEPT)], token=uuid4())


def test_acknowledgement_and_next_lease_in_one_transaction(state: State) -> None:
    """A consumer may acknowledge a lease and take the next in one commit; repeated, the calls return the same."""
    lease, request = single.acquire(state, AT, "m", None, 10), uuid4()
    assert lease is not None
    results = []
    for _ in range(2):
        with state.transaction() as (_, both):
            done = single.acknowledge(both, lease, {ACCEPT: lease.offsets}, request_id=request)
            results.append((done, single.acquire(both, AT, "m", None, 10, request_id=request)))
    assert results[0] == results[1]
    done, following = results[0]
    assert (done.spso, done.lag) == (10, 90)
    assert following is not None
    assert following.offsets == OffsetSet.of((10, 20))
    assert state.figures.verify() == []


# What the service is configured to --------------------------------------------------------------------------


def test_the_services_configs_reach_the_functions(private_database: Database, state: State) -> None:
    """A group without a value of its own follows the service's; its own wins, within the service's bounds."""
    service = ServiceConfigs.of(
        {
            "group.share.delivery.count.limit": "3",
            "group.share.record.lock.duration.ms": "20000",
            "group.share.max.record.lock.duration.ms": "40000",
        }
    )
    alter_group_configs(private_database, "own", {"share.record.lock.duration.ms": 59_000})
    assert publish_service_configs(private_database, service)
    assert not publish_service_configs(private_database, service)

    def settings(group: str) -> tuple[int, int, int]:
        row = private_database.rows(
            sa.text(
                "select delivery_count_limit, lock_duration_ms, max_lock_duration_ms from sharequeue.group_settings"
                " where group_id = :group"
            ),
            group=group,
        )[0]
        return row["delivery_count_limit"], row["lock_duration_ms"], row["max_lock_duration_ms"]

    assert settings("g") == (3, 20_000, 40_000)
    assert settings("own") == (3, 40_000, 40_000)
    lease = single.acquire(state, AT, "m", None, 1)
    assert lease is not None
    assert lease.lock_duration_ms == 20_000
    with pytest.raises(InvalidRequest, match="outside the service's bounds"):
        single.acquire(state, AT, "m", None, 1, lock_duration_ms=50_000)
    assert publish_service_configs(private_database, ServiceConfigs())
    assert settings("g") == (5, 30_000, 60_000)
    assert settings("own") == (5, 59_000, 60_000)


def test_kafkas_bounds_of_locks_bind_where_nobody_has_set_any(
    private_database: Database, state: State
) -> None:
    """15 and 60 s: an acquire outside is refused and leases nothing, a group's own value from before is clamped; a
    group has no bounds of its own."""
    single.observe(state, AT, "id", 0, 100, 100)
    insert = sa.text("insert into sharequeue.group_configs values ('g', :name, :value) returning 1")
    private_database.call(insert, name="share.record.lock.duration.ms", value="1000")
    with pytest.raises(InvalidConfig, match=r"there is no group config group\.share\.max"):
        private_database.call(insert, name="group.share.max.record.lock.duration.ms", value="3600000")
    lease = single.acquire(state, AT, "m", None, 1)
    assert lease is not None
    assert lease.lock_duration_ms == 1000
    publish_service_configs(private_database, ServiceConfigs())
    for outside in (1, 14_999, 60_001, 3_600_000):
        with pytest.raises(
            InvalidRequest, match=f"{outside} ms is outside .* 15000 to 60000 ms: .*group.share.min"
        ):
            single.acquire(state, AT, "m", None, 1, lock_duration_ms=outside)
    for inside in (15_000, 60_000):
        lease = single.acquire(state, AT, "m", None, 1, lock_duration_ms=inside)
        assert lease is not None
        assert lease.lock_duration_ms == inside
    lease = single.acquire(state, AT, "m", None, 1)
    assert lease is not None
    assert lease.lock_duration_ms == 15_000
    assert state.figures.describe("g")[0].acquired == 4


def test_a_config_of_an_unknown_name_is_refused_by_the_table(private_database: Database) -> None:
    """Also where a login writes the rows itself."""
    insert = sa.text("insert into sharequeue.group_configs values ('g', :name, '1') returning 1")
    for name in ("share.nonsense", "group.share.max.groups", ""):
        with pytest.raises(InvalidConfig, match="there is no group config"):
            private_database.rows(insert, name=name)
    private_database.rows(insert, name="share.delivery.count.limit")
    with pytest.raises(InvalidConfig):
        private_database.rows(
            sa.text("update sharequeue.group_configs set name = 'nonsense' where group_id = 'g' returning 1")
        )
