"""Order by key in the state: one open lease, what an acknowledgement reports of keys, and what is leased after it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from hashlib import md5
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from sharequeue.domain.errors import InvalidRequest, ShareError
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import Acknowledged, AcknowledgeType, Lease, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement
from sharequeue.state.dead_letters import FreedKeys
from tests import single
from tests.integration.state.state_calls import in_flight, journal_differs
from tests.waiting import pass_time

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
BACKOFF = timedelta(seconds=30)


@pytest.fixture
def at_configs() -> dict[str, str]:
    return {
        "sharequeue.order": "key",
        "errors.deadletterqueue.topic.name": "dlq.letters",
        "share.partition.max.record.locks": "100000",
    }


def key(name: str) -> UUID:
    return UUID(md5(name.encode(), usedforsecurity=False).hexdigest())


K, L = key("k"), key("l")


def some(*offsets: int) -> OffsetSet:
    return OffsetSet.of(*((offset, offset + 1) for offset in offsets))


def take(state: State, at: SharePartition, most: int = 10) -> Lease | None:
    return single.acquire(state, at, "m", None, most)


def acknowledge(
    state: State,
    lease: Lease,
    *,
    accept: OffsetSet = EMPTY,
    release: OffsetSet = EMPTY,
    reject: OffsetSet = EMPTY,
    hold: OffsetSet = EMPTY,
    keys: Mapping[UUID | None, OffsetSet] | None = None,
    wait: timedelta | None = BACKOFF,
) -> Acknowledged | ShareError:
    (result,) = state.acknowledge(
        [
            LeaseAcknowledgement(
                lease,
                {ACCEPT: accept, RELEASE: release, REJECT: reject},
                not_before=None if wait is None else state.now() + wait,
                holds=hold,
                keys=keys or {},
            )
        ]
    )
    return result


def sound(state: State) -> None:
    """The invariants hold, and a replay of the journal gives the present state."""
    assert state.database.rows(sa.text("select violation from sharequeue.verify()")) == []
    assert journal_differs(state) == []


def test_one_lease_is_open_at_a_time(state: State, at: SharePartition) -> None:
    """Nothing is leased from a share-partition of an ordered group that has a lease, whoever asks."""
    lease = take(state, at)
    assert lease is not None
    assert take(state, at) is None
    acknowledge(state, lease, accept=lease.offsets)
    second = take(state, at)
    assert second is not None
    assert second.offsets == OffsetSet.of((10, 20))


def test_held_records_come_back_when_the_first_of_their_key_is_done(state: State, at: SharePartition) -> None:
    """A hold gives the delivery back; the record that failed is tried alone of its key, and then all come back
    together. Other keys go on."""
    lease = take(state, at)
    assert lease is not None
    result = acknowledge(
        state,
        lease,
        accept=OffsetSet.of((0, 5), (6, 8), (9, 10)),
        release=some(5),
        hold=some(8),
        keys={K: some(5, 8)},
    )
    assert isinstance(result, Acknowledged)
    assert [part for part in in_flight(state) if part[0] == 0] == [(0, 1, "{[5,6)}"), (0, 0, "{[8,9)}")]
    fresh = take(state, at)
    assert fresh is not None
    assert fresh.offsets == OffsetSet.of((10, 20))
    assert fresh.ordered
    assert state.blocked_keys(at.group_id, [fresh.token], [L])[fresh.token].hashes == []
    blocked = state.blocked_keys(at.group_id, [fresh.token])[fresh.token]
    assert state.blocked_keys(at.group_id, [fresh.token], [L, K, K])[fresh.token] == blocked
    assert (list(blocked.hashes), list(blocked.first_offsets)) == ([K], [5])
    assert blocked.untils[0] is not None
    acknowledge(state, fresh, accept=OffsetSet.of((11, 20)), hold=some(10), keys={K: some(10)})
    pass_time(state.database, BACKOFF.total_seconds() + 1)
    again = take(state, at, 100)
    assert again is not None
    assert again.offsets == OffsetSet.of((5, 6), (20, 119))
    behind = state.blocked_keys(at.group_id, [again.token])[again.token]
    assert (list(behind.hashes), list(behind.first_offsets)) == ([K], [8])
    acknowledge(state, again, accept=again.offsets)
    sound(state)
    together = take(state, at, 3)
    assert together is not None
    assert together.offsets == some(8, 10, 119)
    assert list(state.blocked_keys(at.group_id, [together.token])[together.token].hashes) == []
    acknowledge(state, together, accept=together.offsets)
    assert state.database.rows(sa.text("select * from sharequeue.open_key_records")) == []
    sound(state)


def rows(state: State) -> list[tuple[int, bool, bool]]:
    """Offset, archiving and whether a letter holds, of every open record whose key is known."""
    found = state.database.rows(
        sa.text(
            'select "offset", archiving, letter is not null as letter from sharequeue.open_key_records order by 1'
        )
    )
    return [(row["offset"], row["archiving"], row["letter"]) for row in found]


def blocked(state: State) -> tuple[str | None, int | None]:
    (row,) = state.database.rows(
        sa.text("select blocked_by, blocked_offset from sharequeue.share_partition_status")
    )
    return row["blocked_by"], row["blocked_offset"]


def configure(state: State, **configs: str) -> None:
    names = {"order": "sharequeue.order", "letters": "sharequeue.order.on.dead.letter"}
    names |= {"keys": "sharequeue.order.max.open.keys", "locks": "share.partition.max.record.locks"}
    alter_group_configs(state.database, "g", {names[name]: value for name, value in configs.items()})


def close_letters(
    state: State, at: SharePartition, keys: Mapping[UUID | None, OffsetSet] | None = None
) -> None:
    """Write the waiting dead letters."""
    batch = state.dead_letters.open(at, 1000)
    assert batch is not None
    assert state.dead_letters.close(batch, keys=keys) == batch.offsets.count


def test_a_rejected_record_holds_its_key_until_its_dead_letter_is_written(
    state: State, at: SharePartition
) -> None:
    """Held records wait without a time while it is archiving, and are available as soon as its batch is closed."""
    lease = take(state, at, 3)
    assert lease is not None
    acknowledge(state, lease, accept=some(1), reject=some(0), hold=some(2), keys={K: some(0, 2)})
    assert rows(state) == [(0, True, False), (2, False, False)]
    pass_time(state.database, 86_400)
    fresh = take(state, at, 3)
    assert fresh is not None
    assert fresh.offsets == OffsetSet.of((3, 6))
    assert list(state.blocked_keys("g", [fresh.token])[fresh.token].untils) == [None]
    acknowledge(state, fresh, accept=fresh.offsets)
    sound(state)
    close_letters(state, at)
    assert rows(state) == [(2, False, False)]
    again = take(state, at, 1)
    assert again is not None
    assert again.offsets == some(2)
    sound(state)


def test_a_dead_letter_holds_its_key_until_it_is_discarded(state: State, at: SharePartition) -> None:
    """With hold: also below SPSO, and whether a worker or the writer of letters has reported its key; the dry run
    says what will be freed; a letter without a known key holds nothing."""
    configure(state, letters="hold")
    lease = take(state, at, 4)
    assert lease is not None
    acknowledge(state, lease, accept=some(1), reject=some(0), hold=some(2, 3), keys={K: some(0, 2, 3)})
    close_letters(state, at)
    assert rows(state) == [(0, False, True), (2, False, False), (3, False, False)]
    sound(state)
    fresh = take(state, at, 3)
    assert fresh is not None
    held = state.blocked_keys("g", [fresh.token])[fresh.token]
    assert (list(held.hashes), list(held.first_offsets)) == ([K], [0])
    acknowledge(state, fresh, reject=fresh.offsets)
    close_letters(state, at, {L: some(4), None: some(5)})
    assert rows(state) == [(0, False, True), (2, False, False), (3, False, False), (4, False, True)]
    letters = state.dead_letters
    both = letters.holding()
    assert [(each.sequence, each.offsets) for each in both] == [(1, some(0)), (2, some(4))]
    assert letters.close_letters(both, execute=False) == FreedKeys(2, 2)
    assert letters.close_letters(both[1:], execute=False) == FreedKeys(1, 0)
    assert letters.close_letters(both) == FreedKeys(2, 2)
    assert letters.close_letters(both) == FreedKeys(0, 0)
    again = take(state, at, 2)
    assert again is not None
    assert again.offsets == some(2, 3)
    sound(state)


@pytest.mark.parametrize("topic", ["the same topic", "a topic made again"])
def test_a_letter_of_the_same_place_frees_nothing_of_a_later_one(
    state: State, at: SharePartition, topic: str
) -> None:
    """After a reset the record at the offset is rejected again, or another one in a topic made again: what the older
    letter held is forgotten, and only the newer one holds its key."""
    configure(state, letters="hold")
    letters = state.dead_letters
    held = []
    for key in (K, L):
        lease = take(state, at, 2)
        assert lease is not None
        acknowledge(state, lease, reject=some(0), hold=some(1), keys={key: some(0, 1)})
        close_letters(state, at)
        held.append(letters.holding())
        if key == K:
            topic_id = "another id" if topic == "a topic made again" else "id"
            single.alter_offsets(state, at, topic_id, 0)
            single.observe(state, at, topic_id, 0, 1000, 1000)
    old, new = held
    assert letters.close_letters(old, execute=False) == FreedKeys(0, 0)
    assert letters.close_letters(old) == FreedKeys(0, 0)
    assert [key.state for key in state.figures.open_keys("g", 9)] == ["dead_letter"]
    assert letters.close_letters([*old, *new]) == FreedKeys(1, 1)
    sound(state)


def test_a_letter_of_a_group_made_again_is_another_one(state: State, at: SharePartition) -> None:
    """Its batches are numbered from 1 again."""
    configure(state, letters="hold")
    held = []
    for again in (False, True):
        if again:
            pass_time(state.database, 1)
            state.administration.delete_offsets("g", "t")
            single.alter_offsets(state, at, "id", 0)
            single.observe(state, at, "id", 0, 1000, 1000)
        lease = take(state, at, 2)
        assert lease is not None
        acknowledge(state, lease, reject=some(0), hold=some(1), keys={K: some(0, 1)})
        close_letters(state, at)
        held.append(state.dead_letters.holding())
    assert [batch.sequence for batch in (*held[0], *held[1])] == [1, 1]
    assert held[0][0].identity != held[1][0].identity
    assert state.dead_letters.close_letters(held[0]) == FreedKeys(0, 0)
    assert state.dead_letters.close_letters(held[1]) == FreedKeys(1, 1)


def test_a_record_before_a_dead_letter_is_not_held_by_it(state: State, at: SharePartition) -> None:
    """What is said to be freed waits for the letter; here an earlier record of its key comes first."""
    configure(state, letters="hold")
    lease = take(state, at, 3)
    assert lease is not None
    acknowledge(state, lease, release=some(0), reject=some(1), hold=some(2), keys={K: some(0, 1, 2)})
    close_letters(state, at)
    assert rows(state) == [(0, False, False), (1, False, True), (2, False, False)]
    assert state.dead_letters.close_letters(state.dead_letters.holding()) == FreedKeys(1, 0)
    sound(state)


def test_records_behind_a_dead_letter_wait_for_it_and_for_no_time(state: State, at: SharePartition) -> None:
    """Whether it is not written yet or holds its key, nobody is told of a time when they can be leased."""
    configure(state, letters="hold")
    lease = take(state, at, 2)
    assert lease is not None
    acknowledge(state, lease, reject=some(0), hold=some(1), keys={K: some(0, 1)})
    rest = take(state, at, 1000)
    assert rest is not None
    acknowledge(state, rest, accept=rest.offsets)
    for blocking in (0, 1):
        status = state.figures.describe("g")[0]
        assert (status.blocked_by, status.blocked_offset) == ("dead_letters", blocking)
        assert (status.blocked_until, status.waiting_until) == (None, None)
        if not blocking:
            close_letters(state, at)
    assert state.dead_letters.close_letters(state.dead_letters.holding()) == FreedKeys(1, 1)
    assert blocked(state) == (None, None)


def test_letters_hold_nothing_once_their_keys_continue(state: State, at: SharePartition) -> None:
    """The config counts from the next lease on."""
    configure(state, letters="hold")
    lease = take(state, at, 2)
    assert lease is not None
    acknowledge(state, lease, reject=some(0), hold=some(1), keys={K: some(0, 1)})
    close_letters(state, at)
    configure(state, letters="continue")
    again = take(state, at, 1)
    assert again is not None
    assert again.offsets == some(1)
    sound(state)


def test_nothing_is_leased_behind_a_record_whose_key_nobody_reported(
    state: State, at: SharePartition
) -> None:
    """After a release without keys the fresh records wait for it, with its reason; after a lapse the suspects come
    back first, and alone."""
    lease = take(state, at, 3)
    assert lease is not None
    acknowledge(state, lease, accept=some(0, 2), release=some(1))
    assert take(state, at) is None
    assert blocked(state) == ("ordered", 1)
    pass_time(state.database, 31)
    lapsing = take(state, at, 2)
    assert lapsing is not None
    assert lapsing.offsets == some(1, 3)
    assert blocked(state) == ("ordered", 1)
    pass_time(state.database, 31)
    for _ in range(2):
        again = take(state, at, 5)
        assert again is not None
        assert again.suspects
        acknowledge(state, again, accept=again.offsets)
    fresh = take(state, at, 5)
    assert fresh is not None
    assert fresh.offsets == OffsetSet.of((4, 9))
    sound(state)


def test_suspects_that_are_exhausted_hold_everything_behind_them_until_written(
    state: State, at: SharePartition
) -> None:
    """A crashed-out record whose key nobody knows: nothing overtakes it before its letter is written."""
    for number in range(5):
        lease = take(state, at, 1)
        assert lease is not None
        assert lease.offsets == some(0), number
        pass_time(state.database, 31)
    assert take(state, at) is None
    assert blocked(state) == ("ordered", 0)
    sound(state)
    close_letters(state, at)
    assert take(state, at) is not None
    sound(state)


def test_a_known_record_that_is_exhausted_by_a_lapse_still_holds_its_key(
    state: State, at: SharePartition
) -> None:
    """Its row stays as archiving, and the later records of its key wait for its letter."""
    lease = take(state, at, 2)
    assert lease is not None
    acknowledge(state, lease, release=some(0), hold=some(1), keys={K: some(0, 1)}, wait=None)
    for _ in range(4):
        assert take(state, at, 1) is not None
        pass_time(state.database, 31)
    state.sweep()
    assert rows(state) == [(0, True, False), (1, False, False)]
    sound(state)
    fresh = take(state, at, 1)
    assert fresh is not None
    assert fresh.offsets == some(2)
    acknowledge(state, fresh, accept=fresh.offsets)
    close_letters(state, at)
    again = take(state, at, 1)
    assert again is not None
    assert again.offsets == some(1)
    sound(state)


def test_order_that_is_switched_off_loses_nothing(state: State, at: SharePartition) -> None:
    """The next acquire frees held records and forgets the keys; switched on again, nothing is known of them."""
    lease = take(state, at, 4)
    assert lease is not None
    acknowledge(state, lease, accept=some(1), release=some(0), hold=some(2, 3), keys={K: some(0, 2, 3)})
    configure(state, order="none")
    assert blocked(state) == (None, None)
    assert state.blocked_keys("g", [lease.token]) == {}
    again = take(state, at, 4)
    assert again is not None
    assert again.offsets == OffsetSet.of((2, 6))
    assert rows(state) == []
    acknowledge(state, again, release=again.offsets, wait=None)
    configure(state, order="key")
    released = take(state, at, 1)
    assert released is None
    assert blocked(state) == ("ordered", 0)
    sound(state)


def test_a_held_record_has_its_own_time_again_when_order_is_switched_off(
    state: State, at: SharePartition
) -> None:
    """What it waits for then is that time, and the reason says so before the next acquire and after it."""
    lease = take(state, at, 1000)
    assert lease is not None
    done = lease.offsets - some(0, 1)
    acknowledge(state, lease, accept=done, release=some(0, 1), keys={K: some(0, 1)})
    assert take(state, at) is None
    configure(state, order="none")
    assert blocked(state) == ("waiting", 0)
    assert take(state, at) is None
    assert blocked(state) == ("waiting", 0)
    pass_time(state.database, BACKOFF.total_seconds() + 1)
    assert blocked(state) == (None, None)
    again = take(state, at)
    assert again is not None
    assert again.offsets == some(0, 1)
    sound(state)


def test_no_new_records_are_leased_while_too_many_keys_are_open(state: State, at: SharePartition) -> None:
    """At the limit of open keys redelivery goes on, and the reason is named."""
    configure(state, keys="2")
    lease = take(state, at, 3)
    assert lease is not None
    acknowledge(state, lease, accept=some(2), release=some(0, 1), keys={K: some(0), L: some(1)})
    assert take(state, at) is None
    assert blocked(state) == ("open_keys", 0)
    pass_time(state.database, 31)
    again = take(state, at)
    assert again is not None
    assert again.offsets == some(0, 1)
    acknowledge(state, again, accept=some(0), release=some(1), keys={L: some(1)})
    assert take(state, at) is not None
    sound(state)


def test_a_key_that_waits_does_not_fill_the_window_of_the_others(state: State, at: SharePartition) -> None:
    """Finished records behind it do not count."""
    configure(state, locks="100")
    lease = take(state, at, 100)
    assert lease is not None
    acknowledge(state, lease, accept=OffsetSet.of((1, 100)), release=some(0), keys={K: some(0)})
    fresh = take(state, at, 1000)
    assert fresh is not None
    assert fresh.offsets == OffsetSet.of((100, 200))
    acknowledge(state, fresh, accept=fresh.offsets)
    assert blocked(state) == (None, None)
    sound(state)


def test_records_behind_one_that_the_caller_leaves_out_are_left_out_with_it(
    state: State, at: SharePartition
) -> None:
    """A run that has had the first record of a key does not lease the held ones over and over."""
    lease = take(state, at, 3)
    assert lease is not None
    acknowledge(state, lease, accept=some(1), release=some(0), hold=some(2), keys={K: some(0, 2)}, wait=None)
    fresh = single.acquire(state, at, "m", None, 5, leave_out=some(0))
    assert fresh is not None
    assert fresh.offsets == OffsetSet.of((3, 8))
    sound(state)


def test_an_operator_frees_what_waits(state: State, at: SharePartition) -> None:
    """A forced release of the first record ends its wait, and one of a held record nothing; a forced dead letter
    holds the key until it is written."""
    lease = take(state, at, 3)
    assert lease is not None
    acknowledge(state, lease, accept=some(1), release=some(0), hold=some(2), keys={K: some(0, 2)})
    state.administration.force_release(at, some(2), execute=True)
    state.administration.force_release(at, some(0), execute=True)
    again = take(state, at, 2)
    assert again is not None
    assert again.offsets == some(0, 3)
    acknowledge(state, again, accept=some(3), release=some(0), keys={K: some(0)})
    sound(state)
    state.administration.force_dead_letter(at, some(0), execute=True)
    pass_time(state.database, 31)
    assert rows(state) == [(0, True, False), (2, False, False)]
    sound(state)
    close_letters(state, at)
    last = take(state, at, 1)
    assert last is not None
    assert last.offsets == some(2)
    sound(state)


def test_what_retention_removes_holds_no_key(state: State, at: SharePartition) -> None:
    """A log start past the first record of a key frees the records behind it."""
    lease = take(state, at, 4)
    assert lease is not None
    acknowledge(state, lease, accept=some(1), release=some(0), hold=some(2, 3), keys={K: some(0, 2, 3)})
    single.observe(state, at, "id", 1, 1000, 1000)
    again = take(state, at, 2)
    assert again is not None
    assert again.offsets == some(2, 3)
    sound(state)


def test_a_reset_forgets_all_keys(state: State, at: SharePartition) -> None:
    """Nothing is in flight afterwards."""
    lease = take(state, at, 2)
    assert lease is not None
    acknowledge(state, lease, release=some(0), hold=some(1), keys={K: some(0, 1)})
    state.database.rows(sa.text("select sharequeue.alter_offsets('g', 't', 0, 'id', 7)"))
    assert rows(state) == []
    sound(state)


def test_a_snapshot_has_the_keys(state: State, at: SharePartition) -> None:
    """A replay from it gives them again."""
    lease = take(state, at, 3)
    assert lease is not None
    acknowledge(state, lease, release=some(0, 2), hold=some(1), keys={K: some(0, 1), None: some(2)})
    state.database.rows(
        sa.text("select sharequeue.take_snapshot(share_partition_id) from sharequeue.share_partitions")
    )
    sound(state)


@pytest.mark.parametrize(
    ("hold", "keys", "message"),
    [
        (some(1), {}, "held offset 1 has no key"),
        (some(1), {None: some(1)}, "held offset 1 has no key"),
        (EMPTY, {K: some(0)}, "offset 0 has a key, but is not released, rejected or held"),
        (some(1), {K: some(1, 2), L: some(2)}, "an offset has two keys"),
    ],
)
def test_keys_that_do_not_fit_are_refused(
    state: State, at: SharePartition, hold: OffsetSet, keys: Mapping[UUID | None, OffsetSet], message: str
) -> None:
    """And nothing is acknowledged; under no order too."""
    lease = take(state, at, 3)
    assert lease is not None
    result = acknowledge(state, lease, accept=some(0), release=some(2), hold=hold, keys=keys)
    assert isinstance(result, InvalidRequest)
    assert message in str(result)
    assert take(state, at) is None


def test_without_order_held_records_are_available_at_once(state: State, at: SharePartition) -> None:
    """Their delivery is given back, and no key is kept."""
    configure(state, order="none")
    lease = take(state, at, 2)
    assert lease is not None
    acknowledge(state, lease, accept=some(0), hold=some(1), keys={K: some(1)})
    assert rows(state) == []
    again = take(state, at, 1)
    assert again is not None
    assert (again.offsets, again.deliveries[0].delivery_count) == (some(1), 1)
    sound(state)


def test_a_lost_reply_is_repeated_with_holds(state: State, at: SharePartition) -> None:
    """The same request id gives the same result, and holds once."""
    lease = take(state, at, 2)
    assert lease is not None
    one = LeaseAcknowledgement(lease, {RELEASE: some(0)}, holds=some(1), keys={K: some(0, 1)})
    request = uuid4()
    assert state.acknowledge([one], request_id=request) == state.acknowledge([one], request_id=request)
    assert [(part[0], part[1]) for part in in_flight(state)] == [(0, 1), (0, 0)]


@pytest.mark.parametrize("order", ["key", "none"])
def test_a_record_whose_key_is_known_is_waited_for_without_being_named_again(
    state: State, at: SharePartition, order: str
) -> None:
    """A release without its key, also while the order is switched off, is of that key: what is held behind it stays
    held until it is done."""
    lease = take(state, at, 3)
    assert lease is not None
    acknowledge(state, lease, accept=some(1), release=some(0), hold=some(2), keys={K: some(0, 2)})
    pass_time(state.database, 31)
    again = take(state, at, 1)
    assert again is not None
    configure(state, order=order)
    acknowledge(state, again, release=some(0), wait=timedelta(hours=1))
    configure(state, order="key")
    fresh = take(state, at, 2)
    assert fresh is not None
    assert fresh.offsets == OffsetSet.of((3, 5))
    acknowledge(state, fresh, accept=fresh.offsets)
    sound(state)
    pass_time(state.database, 3_601)
    both = take(state, at, 2)
    assert both is not None
    assert both.offsets == some(0, 5)
    acknowledge(state, both, accept=both.offsets)
    held = take(state, at, 1)
    assert held is not None
    assert held.offsets == some(2)


def test_the_last_reported_key_of_a_record_counts(state: State, at: SharePartition) -> None:
    """A handler that returned a wrong hash is repaired: what was held under it is freed, and the open keys are
    counted right."""
    lease = take(state, at, 3)
    assert lease is not None
    acknowledge(state, lease, release=some(0), hold=some(1, 2), keys={K: some(0, 1, 2)})
    pass_time(state.database, 31)
    again = take(state, at, 1)
    assert again is not None
    acknowledge(state, again, release=some(0), keys={L: some(0)})
    sound(state)
    freed = take(state, at, 2)
    assert freed is not None
    assert freed.offsets == some(1, 2)
    acknowledge(state, freed, release=some(1), hold=some(2), keys={None: some(1), L: some(2)})
    sound(state)
    fresh = take(state, at, 1)
    assert fresh is not None
    assert fresh.offsets == some(3)


def test_what_was_released_stays_so_if_it_is_held_later(state: State, at: SharePartition) -> None:
    """Nothing that waits for it is forgotten."""
    lease = take(state, at, 2)
    assert lease is not None
    acknowledge(state, lease, release=some(0), hold=some(1), keys={K: some(0, 1)})
    pass_time(state.database, 31)
    for accept, hold, key in ((EMPTY, some(0), K), (some(0), EMPTY, None)):
        first = take(state, at, 1)
        assert first is not None
        assert first.offsets == some(0)
        acknowledge(state, first, accept=accept, hold=hold, keys={key: hold} if hold else {})
        sound(state)
    behind = take(state, at, 1)
    assert behind is not None
    assert behind.offsets == some(1)


def test_a_known_record_that_is_exhausted_holds_its_key_without_being_named_again(
    state: State, at: SharePartition
) -> None:
    """The held records wait for its letter."""
    lease = take(state, at, 2)
    assert lease is not None
    acknowledge(state, lease, release=some(0), hold=some(1), keys={K: some(0, 1)}, wait=None)
    for _ in range(4):
        again = take(state, at, 1)
        assert again is not None
        assert again.offsets == some(0)
        acknowledge(state, again, release=some(0), wait=None)
    assert rows(state) == [(0, True, False), (1, False, False)]
    fresh = take(state, at, 1)
    assert fresh is not None
    assert fresh.offsets == some(2)
    sound(state)
