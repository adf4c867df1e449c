"""What users of key order expect of a queue: keys that are missing, hot, stuck or far apart, and a key that is held
when another member takes over.

The worker is the shortest that obeys: it leases, asks which keys are blocked, works in the order of the offsets, and
stops a key at its first failure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from sharequeue.database import Database
from sharequeue.domain.errors import ShareError
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.record_bytes import key_hash
from sharequeue.domain.values import AcknowledgeType, Lease, LeaseOutput, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement
from tests import single
from tests.ordered_journal import history_of
from tests.waiting import pass_time

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
BACKOFF_S = 10
Outcome = Callable[[int, int], AcknowledgeType]
"""What becomes of an offset at its delivery count."""


@pytest.fixture
def at_configs() -> Mapping[str, str | int]:
    """Order by key."""
    return {
        "sharequeue.order": "key",
        "share.partition.max.record.locks": 2_000_000,
        "share.delivery.count.limit": 3,
    }


class Worker:
    """Works on one share-partition, and notes what it accepted, in order."""

    def __init__(self, database: Database, at: SharePartition, key_of: Callable[[int], bytes | None]) -> None:
        self.database, self.state, self.at, self.key_of = database, State(database), at, key_of
        self.accepted: list[int] = []
        self.failed: set[int] = set()
        self.records = 0

    def produce(self, records: int) -> None:
        """Have the log end there."""
        self.records = records
        single.observe(self.state, self.at, "id", 0, records, records)

    def work(self, outcome: Outcome, member_id: str = "m1", most: int = 1_000) -> list[int]:
        """Lease, work and acknowledge once; return what was accepted."""
        lease = single.acquire(self.state, self.at, member_id, None, most)
        if lease is None:
            return []
        blocked = self.state.blocked_keys(self.at.group_id, [lease.token])[lease.token]
        first = dict(zip(blocked.hashes, blocked.first_offsets, strict=True))
        counts = {
            offset: each.delivery_count for each in lease.deliveries for offset in each.offsets.iter_offsets()
        }
        sets: dict[AcknowledgeType | None, list[int]] = defaultdict(list)
        keys: dict[UUID | None, list[int]] = defaultdict(list)
        for offset in sorted(counts):
            key = self.key_of(offset)
            hashed = None if key is None else key_hash(key)
            is_held = hashed is not None and first.get(hashed, offset) < offset
            kind = None if is_held else outcome(offset, counts[offset])
            sets[kind].append(offset)
            if kind != ACCEPT:
                keys[hashed].append(offset)
                if hashed is not None:
                    first.setdefault(hashed, offset)
                if kind is not None:
                    self.failed.add(offset)
        (done,) = self.state.acknowledge(
            [
                LeaseAcknowledgement(
                    lease,
                    {kind: OffsetSet.from_offsets(some) for kind, some in sets.items() if kind is not None},
                    outputs=self.outputs(lease, sets[ACCEPT]),
                    not_before=self.state.now() + timedelta(seconds=BACKOFF_S) if sets[RELEASE] else None,
                    holds=OffsetSet.from_offsets(sets[None]) if sets[None] else EMPTY,
                    keys={key: OffsetSet.from_offsets(some) for key, some in keys.items()},
                )
            ]
        )
        assert not isinstance(done, ShareError), done
        assert self.state.figures.verify() == []
        self.accepted += sets[ACCEPT]
        return sets[ACCEPT]

    def outputs(self, lease: Lease, accepted: Sequence[int]) -> Sequence[LeaseOutput]:
        """Return the outputs that count with an acknowledgement; here none."""
        return ()

    def check(self) -> None:
        """Hold the journal to the rule."""
        keys = {offset: self.key_of(offset) for offset in range(self.records)}
        failed = frozenset(self.failed)
        history = history_of(self.database, self.at.group_id, self.at.topic, self.at.partition, keys, failed)
        assert history.overtaken(keys) == []
        assert history.waits == []
        assert set(self.accepted) == set(history.accepted)


def fails(*offsets: int, times: int = 1_000) -> Outcome:
    """These offsets fail so often; all others succeed."""
    return lambda offset, count: RELEASE if offset in offsets and count <= times else ACCEPT


def test_records_without_a_key_neither_wait_nor_block(private_database: Database, at: SharePartition) -> None:
    """Beside a key that fails, those without a key are all accepted, before and behind it; a failed record without a
    key holds nothing, and an empty key is a key."""
    keys = {0: None, 1: b"a", 2: None, 3: b"a", 4: b"", 5: None, 6: b""}
    worker = Worker(private_database, at, keys.get)
    worker.produce(7)
    assert worker.work(fails(0, 1, 4, times=1)) == [2, 5]
    assert worker.work(fails()) == []
    pass_time(private_database, BACKOFF_S + 1)
    assert worker.work(fails()) == [0, 1, 4]
    assert worker.work(fails()) == [3, 6]
    worker.check()


def test_one_hot_key_goes_on_from_failure_to_failure(private_database: Database, at: SharePartition) -> None:
    """All records have one key and every third fails once: each failure costs one back-off, no held record costs a
    delivery, and the order is that of the log."""
    worker = Worker(private_database, at, lambda offset: b"hot")
    worker.produce(30)
    waits = 0
    outcome = fails(*range(0, 30, 3), times=1)
    while len(worker.accepted) < 30:
        if not worker.work(outcome):
            pass_time(private_database, BACKOFF_S + 1)
            waits += 1
        assert waits <= 10
    assert worker.accepted == list(range(30))
    worker.check()


def test_a_key_that_never_succeeds_stops_only_itself(private_database: Database, at: SharePartition) -> None:
    """Each of its records is exhausted in turn; all other keys are through in the first round."""
    worker = Worker(private_database, at, lambda offset: b"%d" % (offset % 10))
    worker.produce(50)
    stuck = fails(*range(3, 50, 10))
    assert worker.work(stuck) == [offset for offset in range(50) if offset % 10 != 3]
    tried = 1
    while worker.state.figures.describe("g")[0].lag:
        pass_time(private_database, BACKOFF_S + 1)
        assert worker.work(stuck) == []
        batch = worker.state.dead_letters.open(at, 10)
        if batch is not None:
            assert sum(each.offsets.count for each in batch.letters) == 1
            worker.state.dead_letters.close(batch)
        tried += 1
        assert tried <= 16
    worker.check()


def test_offsets_of_a_key_far_apart(private_database: Database, at: SharePartition) -> None:
    """The first and the last of a million records have one key: the last one waits for the first, alone."""
    worker = Worker(private_database, at, lambda offset: b"far" if offset in (0, 999_999) else b"%d" % offset)
    worker.produce(1)
    assert worker.work(fails(0, times=1)) == []
    single.observe(worker.state, at, "id", 0, 1_000_000, 1_000_000)
    lease = single.acquire(worker.state, at, "m1", None, 999_998)
    assert lease is not None
    single.acknowledge(worker.state, lease, {ACCEPT: lease.offsets})
    assert worker.work(fails()) == []
    pass_time(private_database, BACKOFF_S + 1)
    assert [worker.work(fails()) for _ in range(2)] == [[0], [999_999]]
    assert worker.state.figures.describe("g")[0].lag == 0


def test_a_key_stays_held_when_another_member_takes_over(
    private_database: Database, at: SharePartition
) -> None:
    """The member that saw the failure is gone: the next one learns from the state which keys wait, and when its own
    lease lapses, nothing is leased past what it held."""
    worker = Worker(private_database, at, lambda offset: b"a" if offset in (0, 5, 8) else b"b")
    worker.produce(6)
    assert worker.work(fails(0, times=1)) == [1, 2, 3, 4]
    worker.produce(9)
    assert worker.work(fails(), "m2") == [6, 7]
    worker.produce(11)
    lost = single.acquire(worker.state, at, "m2", None, 100)
    assert lost is not None
    assert lost.offsets == OffsetSet.of((9, 11))
    assert worker.work(fails(), "m3") == [], "one lease a share-partition"
    pass_time(private_database, 60)
    # Nobody has reported the keys of 9 and 10: they come again before anything behind them.
    worker.produce(20)
    while len(worker.accepted) < 20:
        assert worker.work(fails(), "m3")
    assert [each for each in worker.accepted if each in (0, 5, 8)] == [0, 5, 8]
    worker.check()


def test_other_keys_go_on_past_the_window(private_database: Database, at: SharePartition) -> None:
    """A record that waits for an hour at the start of a window of 100 stops its own key; a thousand records of others
    are accepted behind it."""
    alter_group_configs(private_database, at.group_id, {"share.partition.max.record.locks": 100})
    worker = Worker(private_database, at, lambda offset: b"%d" % (offset % 10))
    worker.produce(1_000)
    while worker.work(fails(*range(0, 1_000, 10))):
        pass
    assert len(worker.accepted) == 900
    worker.check()
