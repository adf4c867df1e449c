"""Eight workers at one share-partition: every offset is delivered, none to two holders at once, each ends once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRecordState
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import AcknowledgeType, Lease, SharePartition
from sharequeue.state import State
from sharequeue.state.rows import Redelivery
from tests import single
from tests.waiting import PATIENCE_S, wait_for_locks

WORKERS, RECORDS, LIMIT = 8, 3000, 10
ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
REJECT, GAP = AcknowledgeType.REJECT, AcknowledgeType.GAP
AT = SharePartition("g", "t", 0)


@dataclass
class Ledger:
    """What the workers were told, written down as they were told it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    holder: dict[int, str] = field(default_factory=dict)
    deliveries: Counter[tuple[int, int]] = field(default_factory=Counter)
    ended: Counter[tuple[int, str]] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)

    def received(self, lease: Lease) -> None:
        """Nobody else believes to hold any of it."""
        with self.lock:
            for delivery in lease.deliveries:
                for offset in delivery.offsets.iter_offsets():
                    assert offset not in self.holder, f"{offset}: {self.holder[offset]} and {lease.member_id}"
                    self.holder[offset] = lease.member_id
                    self.deliveries[offset, delivery.delivery_count] += 1

    def letting_go(self, offsets: OffsetSet) -> None:
        """Before it is said to the engine: from its commit on another worker may hold them."""
        with self.lock:
            for offset in offsets.iter_offsets():
                del self.holder[offset]

    def acknowledged(self, outcomes: dict[AcknowledgeType, OffsetSet]) -> None:
        """The engine has confirmed them."""
        with self.lock:
            for kind, offsets in outcomes.items():
                if kind is not RELEASE:
                    self.ended.update((offset, kind.name) for offset in offsets.iter_offsets())


def outcomes_of(lease: Lease, roll: random.Random) -> dict[AcknowledgeType, OffsetSet]:
    """Most accepted, some released while they may come again, a few rejected, a few gaps."""
    chosen: dict[AcknowledgeType, list[int]] = {}
    for delivery in lease.deliveries:
        again = delivery.delivery_count < LIMIT - 2
        for offset in delivery.offsets.iter_offsets():
            kinds = (ACCEPT,) * 14 + ((RELEASE,) * 4 if again else ()) + (REJECT, GAP)
            chosen.setdefault(roll.choice(kinds), []).append(offset)
    return {kind: OffsetSet.from_offsets(offsets) for kind, offsets in chosen.items()}


class Worker:
    """One member with connections of its own, until nothing is left."""

    def __init__(self, url: str, number: int, ledger: Ledger, redelivery: Redelivery) -> None:
        self.database = Database(url, pool_size=1)
        self.state = State(self.database)
        self.member, self.ledger, self.redelivery = f"worker-{number}", ledger, redelivery
        self.roll = random.Random(number)  # noqa: S311

    def run(self) -> None:
        """Lease, then one of the things that workers do; gives up only when the log is done."""
        actions: Sequence[Callable[[Lease], None]] = (
            *(self.acknowledge,) * 6,
            self.in_parts,
            self.renewed,
            self.given_back,
        )
        try:
            while self.state.figures.describe(AT.group_id)[0].lag:
                lease = single.acquire(
                    self.state, AT, self.member, None, self.roll.randint(1, 60), redelivery=self.redelivery
                )
                self.state.sweep()
                if lease is not None:
                    self.ledger.received(lease)
                    action = self.roll.choice(actions)
                    self.ledger.operations[action.__name__] += 1
                    action(lease)
        finally:
            self.database.close()

    def acknowledge(self, lease: Lease) -> None:
        """All of it in one call."""
        self._acknowledge(lease, outcomes_of(lease, self.roll))

    def in_parts(self, lease: Lease) -> None:
        """Half now, half in another call; the first half once more is refused and changes nothing."""
        whole = outcomes_of(lease, self.roll)
        middle = (lease.offsets.first + lease.offsets.end) // 2
        halves = [
            {kind: offsets & part for kind, offsets in whole.items()}
            for part in (OffsetSet.of((0, middle)), OffsetSet.of((middle, lease.offsets.end)))
        ]
        for half in halves:
            if any(half.values()):
                self._acknowledge(lease, half)
        again = halves[0].get(RELEASE, EMPTY) | halves[0].get(ACCEPT, EMPTY)
        if not again:
            return
        try:
            single.acknowledge(self.state, lease, {REJECT: again})
        except InvalidRecordState:
            return
        assert (
            self.state.figures.describe(AT.group_id)[0].spso >= again.end
        )  # done with already, for anyone (R-AK-6)

    def renewed(self, lease: Lease) -> None:
        """Kept a while longer, then acknowledged."""
        assert single.renew(self.state, lease) >= lease.expires_at
        self.acknowledge(lease)

    def given_back(self, lease: Lease) -> None:
        """A run that failed: released whole and not acknowledged, while its records have deliveries left."""
        if any(delivery.delivery_count >= LIMIT - 2 for delivery in lease.deliveries):
            self.acknowledge(lease)
            return
        self.ledger.letting_go(lease.offsets)
        assert single.release(self.state, lease) == len(lease.offsets)

    def _acknowledge(self, lease: Lease, outcomes: dict[AcknowledgeType, OffsetSet]) -> None:
        for offsets in outcomes.values():
            self.ledger.letting_go(offsets)
        single.acknowledge(self.state, lease, outcomes)
        self.ledger.acknowledged(outcomes)


def begin(database: Database, records: int, configs: dict[str, int]) -> None:
    """A group on a share-partition with so many records."""
    with database.transaction() as connection:
        connection.execute(sa.text("insert into sharequeue.share_groups (group_id) values ('g')"))
        for name, value in {"share.delivery.count.limit": LIMIT, **configs}.items():
            connection.execute(
                sa.text("insert into sharequeue.group_configs values ('g', :name, :value)"),
                {"name": name, "value": str(value)},
            )
    state = State(database)
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, records, records)


@pytest.mark.rule("R-NF-7", "R-ST-9", "R-EP-7", "R-EP-8")
@pytest.mark.parametrize("redelivery", ["kafka", "fan_out"])
def test_eight_workers_share_one_share_partition(private_database: Database, redelivery: Redelivery) -> None:
    """Every offset is delivered, each delivery once and counted, never to two at once; each ends exactly once; and
    the engine's own counts say what the workers were told."""
    state, ledger = State(private_database), Ledger()
    begin(private_database, RECORDS, {"share.partition.max.record.locks": 1000})
    url = private_database.engine.url.render_as_string(hide_password=False)
    with ThreadPoolExecutor(WORKERS) as pool:
        for done in [pool.submit(Worker(url, n, ledger, redelivery).run) for n in range(WORKERS)]:
            done.result()

    assert state.figures.verify() == []
    (status,) = state.figures.describe("g")
    assert (status.spso, status.speo, status.lag, status.leases) == (RECORDS, RECORDS, 0, 0)
    assert ledger.holder == {}
    counts: dict[int, list[int]] = {}
    for (offset, count), times in ledger.deliveries.items():
        assert times == 1, f"delivery {count} of offset {offset} happened {times} times"
        counts.setdefault(offset, []).append(count)
    assert sorted(counts) == list(range(RECORDS))
    assert all(sorted(given) == list(range(1, len(given) + 1)) for given in counts.values())
    assert Counter(offset for offset, _ in ledger.ended.elements()) == Counter(range(RECORDS))
    told = Counter(kind for _, kind in ledger.ended.elements())
    kept: Counter[str] = Counter()
    for row in state.figures.delivery_counts("g"):
        kept[{"accepted": "ACCEPT", "rejected": "REJECT", "gap": "GAP"}[row.outcome]] += row.records
    assert kept == told
    assert all(ledger.operations[name] for name in ("acknowledge", "in_parts", "renewed", "given_back"))


def test_a_crashed_workers_records_come_again_to_the_others(private_database: Database) -> None:
    """Workers that take a lease and vanish delay their records by one lock, and cost none of them: seven live ones
    finish the log while locks lapse under their hands."""
    state, ledger = State(private_database), Ledger()
    begin(private_database, 2000, {"share.record.lock.duration.ms": 3_600_000})
    url = private_database.engine.url.render_as_string(hide_password=False)
    lost: Counter[int] = Counter()

    def vanish() -> None:
        """Its lock lasts a second; the clock, which only the owner moves, passes it at once."""
        for turn in range(5):
            lease = single.acquire(
                state, AT, f"gone-{turn}", None, 25, lock_duration_ms=1000, redelivery="kafka"
            )
            if lease is not None:
                lost.update(lease.offsets.iter_offsets())
            with private_database.transaction() as connection:
                connection.execute(
                    sa.text("select sharequeue.set_clock_offset(:amount)"),
                    {"amount": timedelta(seconds=2 * (turn + 1))},
                )

    with ThreadPoolExecutor(WORKERS) as pool:
        vanishing = pool.submit(vanish)
        workers = [pool.submit(Worker(url, n, ledger, "fan_out").run) for n in range(WORKERS - 1)]
        for done in [vanishing, *workers]:
            done.result()
    assert state.figures.verify() == []
    assert lost
    assert state.figures.describe("g")[0].spso == 2000
    assert Counter(offset for offset, _ in ledger.ended.elements()) == Counter(range(2000))
    told = Counter(offset for offset, _ in ledger.deliveries)
    highest = {offset: max(count for o, count in ledger.deliveries if o == offset) for offset in lost}
    assert highest == {offset: told[offset] + times for offset, times in lost.items()}


def test_release_finds_a_lease_whose_share_partition_changes_under_its_eyes(
    private_database: Database,
) -> None:
    """Whoever gives back all it holds waits for a call in progress, and then finds its lease."""
    begin(private_database, 1000, {})
    state = State(private_database)
    assert single.acquire(state, AT, "mine", None, 10, redelivery="kafka") is not None
    with ThreadPoolExecutor(1) as pool, private_database.engine.connect() as changing:
        changing.execute(sa.text("select sharequeue.acquire('g', 't', 0, 1, 'other', null, 10)"))
        released = pool.submit(state.release_member, "g", "mine")
        try:
            wait_for_locks(private_database)
        finally:
            changing.commit()
        assert released.result(timeout=PATIENCE_S) == 10
    assert {each.member_id for each in state.figures.leases("g")} == {"other"}
    assert state.figures.verify() == []
