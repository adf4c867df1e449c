"""A share-partition with lag goes on: SPSO never waits for an acknowledgement that cannot come."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.record_bytes import key_hash
from sharequeue.domain.values import AcknowledgeType, Lease, LogSeen, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.reports.waiting_work import work_of
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement
from sharequeue.state.rows import Redelivery
from tests import single
from tests.conformance.reasons import NOT_LIVE_FUNCTION
from tests.integration.state.state_calls import journal_differs, take
from tests.waiting import pass_time

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
HEAD, REST = 50, 5000
BATCHES = [(0, 399), (400, 799)]


@pytest.fixture
def at_configs() -> dict[str, str | int]:
    return {"share.partition.max.record.locks": 100}


@pytest.fixture
def state(private_database: Database, at: SharePartition) -> State:
    state = State(private_database)
    single.observe(state, at, "id", 0, REST, REST)
    return state


def all_but_the_head(state: State, lease: Lease) -> None:
    """Accept a lease's records from offset 50 on, and release those before it."""
    head = OffsetSet.of((0, HEAD))
    single.acknowledge(state, lease, {ACCEPT: lease.offsets - head, RELEASE: head})


def waiting_records(state: State, at: SharePartition) -> None:
    """Records that wait do not count in the window, which grows to 600; then their time has come."""
    for _ in range(6):
        lease = take(state, at, 100)
        single.acknowledge(
            state, lease, {RELEASE: lease.offsets}, not_before=state.now() + timedelta(hours=1)
        )
    pass_time(state.database, 3601)
    all_but_the_head(state, take(state, at, 600))


def a_lower_bound(state: State, at: SharePartition) -> None:
    """The bound is lowered below what is in flight."""
    alter_group_configs(state.database, "g", {"share.partition.max.record.locks": 300})
    lease = take(state, at, 300)
    alter_group_configs(state.database, "g", {"share.partition.max.record.locks": 100})
    all_but_the_head(state, lease)


def a_long_log_batch(state: State, at: SharePartition) -> None:
    """A batch of the log comes whole, however small the bound is."""
    lease = single.acquire_of_log(state, at, "m", 500, log_batches=BATCHES)
    assert lease is not None
    assert lease.offsets == OffsetSet.of((0, 400))
    all_but_the_head(state, lease)


WAYS = [waiting_records, a_lower_bound, a_long_log_batch]


@pytest.mark.parametrize("many", [False, True], ids=["observe", "observe_many"])
@pytest.mark.parametrize("way", WAYS)
def test_records_go_on_after_retention_has_taken_the_head(
    state: State, at: SharePartition, way: Callable[[State, SharePartition], None], many: bool
) -> None:
    """A log start in a window that is longer than the bound: SPSO passes what is finished behind it at once."""
    way(state, at)
    past = state.figures.describe("g")[0].speo
    if many:
        state.observe([LogSeen(at, "id", HEAD, REST, REST)])
    else:
        single.observe(state, at, "id", HEAD, REST, REST)
    status = state.figures.describe("g")[0]
    assert (status.spso, status.speo, status.delivery_complete_count) == (past, past, 0)
    assert status.lag == REST - past
    assert take(state, at, 100).offsets == OffsetSet.of((past, past + 100))
    assert state.figures.verify() == journal_differs(state) == []


@pytest.mark.parametrize("aborted", [100, 150], ids=["a full window", "more than it"])
def test_records_go_on_after_an_aborted_transaction(state: State, at: SharePartition, aborted: int) -> None:
    """Aborted records fill the window and nothing is leased: SPSO passes them in the same call."""
    alter_group_configs(state.database, "g", {"share.isolation.level": "read_committed"})
    gone = OffsetSet.of((0, aborted))
    batches = [(0, 149), (150, 299)] if aborted == 150 else None

    def fetch() -> Lease | None:
        return single.acquire_of_log(state, at, "m", 500, aborted=gone, log_batches=batches)

    assert fetch() is None
    assert state.figures.describe("g")[0].spso == aborted
    lease = fetch()
    assert lease is not None
    assert lease.offsets.first == aborted
    assert state.figures.verify() == journal_differs(state) == []


@pytest.fixture
def stuck(state: State, at: SharePartition) -> State:
    """A window of finished records that SPSO has not passed, as earlier releases left it behind."""
    take(state, at, 100)
    with state.database.transaction() as connection:
        for statement in (
            "update sharequeue.in_flight_batches set state = 4, cause = 'gap', lease_id = null",
            "delete from sharequeue.leases",
            "update sharequeue.share_partitions set delivery_complete_count = 100, advance_due = true,"
            " next_expiry = null, redeliverable = redeliverable",
        ):
            connection.execute(sa.text(statement))
    return state


@pytest.mark.parametrize("redelivery", ["fan_out", "kafka"])
def test_an_acquire_that_finds_nothing_advances_spso(
    stuck: State, at: SharePartition, redelivery: Redelivery
) -> None:
    """It passes what is finished, and leases what lies behind it in the same call."""
    assert take(stuck, at, 10, redelivery).offsets == OffsetSet.of((100, 110))
    assert stuck.figures.describe("g")[0].spso == 100
    assert stuck.figures.verify() == journal_differs(stuck) == []


def test_an_acquire_of_many_advances_spso(stuck: State, at: SharePartition) -> None:
    """As the call of the SQL function for one does."""
    acquired = stuck.acquire([at], "m", None, 10)
    assert not acquired.refusals
    assert [lease.offsets for lease in acquired.leases] == [OffsetSet.of((100, 110))]


def test_the_sweep_advances_spso(stuck: State, at: SharePartition) -> None:
    """Nobody asks for records, and nothing lapses: the sweep still passes what is finished."""
    swept = stuck.database.rows(sa.text("select * from sharequeue.sweep(10)"))[0]
    assert (swept["leases"], swept["stuck"]) == (0, {})
    status = stuck.figures.describe("g")[0]
    assert (status.spso, status.delivery_complete_count) == (100, 0)
    assert stuck.figures.verify() == journal_differs(stuck) == []


def why(state: State) -> tuple[str | None, int | None, bool]:
    """Why nothing can be leased: the word, the offset, and whether it has a time. Every reader has the same."""
    status, (work,) = state.figures.describe("g")[0], work_of(state.database, "g").share_partitions
    assert (work.blocked_by, work.blocked_reason) == (status.blocked_by, status.blocked_reason)
    assert (work.blocked_until, work.blocked_offset) == (status.blocked_until, status.blocked_offset)
    assert not status.lag or (work.ready_records == 0) == (work.blocked_by is not None)
    assert state.figures.verify() == []
    return status.blocked_by, status.blocked_offset, status.blocked_until is not None


def test_a_lock_is_the_reason_until_it_ends(state: State, at: SharePartition) -> None:
    """Everything is leased: the first lock to end has the time; then records can be leased again."""
    single.observe(state, at, "id", 0, REST, REST)
    assert why(state) == (None, None, False)
    lease = take(state, at, 100)
    assert why(state) == ("window", 0, True)
    assert state.figures.describe("g")[0].blocked_reason == (
        "the window is full (100 records) behind offset 0: leased by m"
    )
    alter_group_configs(state.database, "g", {"share.partition.max.record.locks": 5000})
    rest = take(state, at, REST)
    assert why(state) == ("leased", 0, True)
    assert state.figures.describe("g")[0].blocked_until == lease.expires_at
    single.acknowledge(state, lease, {ACCEPT: lease.offsets})
    assert why(state) == ("leased", 100, True)
    pass_time(state.database, 3601)
    assert why(state) == (None, None, False)
    assert take(state, at, REST).offsets.count <= rest.offsets.count


def test_a_head_that_waits_is_the_reason_of_a_full_window(state: State, at: SharePartition) -> None:
    """The head waits for its time, all behind it is finished: the window, the head's offset and its time."""
    alter_group_configs(state.database, "g", {"share.partition.max.record.locks": 300})
    lease, head = take(state, at, 300), OffsetSet.of((0, HEAD))
    alter_group_configs(state.database, "g", {"share.partition.max.record.locks": 100})
    soon = state.now() + timedelta(minutes=5)
    single.acknowledge(state, lease, {ACCEPT: lease.offsets - head, RELEASE: head}, not_before=soon)
    assert why(state) == ("window", 0, True)
    status = state.figures.describe("g")[0]
    assert status.obstacle is not None
    assert "full (100 records) behind offset 0: waits for a later time, until " in status.obstacle
    pass_time(state.database, 301)
    assert why(state) == (None, None, False)


def test_a_key_that_waits_fills_no_window(state: State, at: SharePartition) -> None:
    """Under order by key, finished records behind a key that waits do not count: others are there for a run."""
    alter_group_configs(
        state.database, "g", {"sharequeue.order": "key", "share.partition.max.record.locks": 300}
    )
    lease, head = take(state, at, 300), OffsetSet.of((0, 1))
    alter_group_configs(state.database, "g", {"share.partition.max.record.locks": 100})
    outcomes, soon = {ACCEPT: lease.offsets - head, RELEASE: head}, state.now() + timedelta(minutes=5)
    state.acknowledge([LeaseAcknowledgement(lease, outcomes, not_before=soon, keys={key_hash(b"k"): head})])
    assert why(state) == (None, None, False)
    assert take(state, at, REST).offsets == OffsetSet.of((300, 400))


def test_dead_letters_are_the_reason(state: State, at: SharePartition) -> None:
    """Nobody writes the dead letters at the head; behind it the window is full, then nothing is left."""
    lease = take(state, at, 100)
    single.acknowledge(state, lease, {AcknowledgeType.REJECT: lease.offsets})
    assert why(state) == ("window", 0, False)
    alter_group_configs(state.database, "g", {"share.partition.max.record.locks": 5000})
    rest = take(state, at, REST)
    single.acknowledge(state, rest, {ACCEPT: rest.offsets})
    state.dead_letters.hold(at, "the topic dlq.g does not exist")
    assert why(state) == ("dead_letters", 0, False)
    assert (
        state.figures.describe("g")[0].blocked_reason
        == "dead letters are held: the topic dlq.g does not exist"
    )


def test_an_open_transaction_is_the_reason(state: State, at: SharePartition) -> None:
    """Nothing from the last stable offset on may be read."""
    alter_group_configs(state.database, "g", {"share.isolation.level": "read_committed"})
    single.observe(state, at, "id", 0, REST, 0)
    assert why(state) == ("transaction", 0, False)
    single.observe(state, at, "id", 0, REST, 10)
    assert why(state) == (None, None, False)


def test_waiting_and_pauses_are_reasons(state: State, at: SharePartition) -> None:
    """Time, and the words of a person; a pause comes first."""
    alter_group_configs(state.database, "g", {"share.partition.max.record.locks": 5000})
    lease = take(state, at, REST)
    single.acknowledge(state, lease, {RELEASE: lease.offsets}, not_before=state.now() + timedelta(minutes=5))
    assert why(state) == ("waiting", 0, True)
    state.administration.pause("g", "a look")
    assert why(state) == ("paused", None, False)
    assert state.figures.describe("g")[0].blocked_reason == "paused: a look"


def test_no_lag_needs_no_reason(state: State, at: SharePartition) -> None:
    """Also where it is paused."""
    single.alter_offsets(state, at, "id", REST)
    state.administration.pause("g", "a look")
    assert why(state) == (None, None, False)


def test_a_share_partition_that_stands_still_is_found(stuck: State, at: SharePartition) -> None:
    """`verify` finds lag of which nothing can be leased for no reason: here nobody will let SPSO pass."""
    with stuck.database.transaction() as connection:
        connection.execute(sa.text("update sharequeue.share_partitions set advance_due = false"))
    assert any("nothing can be leased, and the reason is unknown" in each for each in stuck.figures.verify())


def test_a_reason_that_is_not_true_is_found(state: State, at: SharePartition) -> None:
    """What the random histories and the fuzzer ask after each step finds a reason that is missing, or too many."""
    run(state, NOT_LIVE_FUNCTION)

    def found() -> list[str]:
        rows = state.database.rows(sa.text("select not_live from public.not_live('{g}')"))
        return [row["not_live"] for row in rows]

    def replace(true: str, wrong: str) -> None:
        function = "cast('sharequeue_internal.leasing_stopped' as regproc)"
        [row] = state.database.rows(sa.text(f"select pg_get_functiondef({function}) as written"))
        assert true in row["written"]
        run(state, row["written"].replace(true, wrong))

    assert found() == []
    replace("elsif v_paused is not null then", "elsif v_paused is null then")
    [line] = found()
    assert line.startswith("g t-0: blocked by paused ()")
    assert line.endswith("it can be leased from")
    state.administration.pause("g", "a look")
    [line] = found()
    assert line.startswith("g t-0: blocked by nothing ()")
    assert line.endswith("it can not be leased from")
    replace("elsif v_paused is null then", "elsif v_paused is not null then")
    assert found() == []


def run(state: State, statement: str) -> None:
    """Run a statement as it is, percent signs and all."""
    with state.database.transaction() as connection:
        connection.connection.cursor().execute(statement)
