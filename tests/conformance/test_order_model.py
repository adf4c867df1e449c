"""Whatever is done to the in-memory engine, no record is accepted before an earlier one of its key."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from random import Random
from uuid import UUID

import pytest

from sharequeue.domain.errors import InvalidRecordState
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import Lease
from tests.conformance.drawing import T0
from tests.oracle import AcknowledgementBatch, InMemoryShareGroups
from tests.oracle.order import OPEN
from tests.ordered import ACCEPT, GAP, HOLD, key_of, obey, reported

STEPS = 120
MEMBERS = ("m1", "m2", "m3")


class OrderedQueue:
    """One share-partition of an ordered group, with workers who obey, and everybody else who does as he likes."""

    def __init__(self, seed: int) -> None:
        self.random, self.groups, self.end = Random(seed), InMemoryShareGroups(), 25  # noqa: S311
        self.leases: list[tuple[Lease, dict[UUID, int], dict[int, int]]] = []
        self.holds = seed % 2 == 0
        self.groups.configure("g", {
            "share.delivery.count.limit": self.random.choice((2, 3, 5)),
            "errors.deadletterqueue.topic.name": self.random.choice(("", "dlq.q", "dlq.q")),
            "sharequeue.order": "key",
            "sharequeue.order.on.dead.letter": "hold" if self.holds else "continue",
            "sharequeue.order.max.open.keys": self.random.choice((2, 100)),
        })  # fmt: skip
        self.groups.initialize(T0, "id", 0, 1)
        self.groups.observe(T0, "id", 0, self.end)

    def acquire(self, most: int = 12) -> None:
        """A lease, and which keys it must hold; now and then with some offsets left out."""
        spared = OffsetSet.of((self.end // 2, self.end)) if self.random.random() < 0.2 else EMPTY
        got = self.groups.acquire(
            T0, self.random.choice(MEMBERS), self.random.randint(1, most), leave_out=spared
        )
        if got.lease is not None:
            blocked = self.groups.blocked_keys(T0, got.lease) or {}
            self.leases.append((got.lease, {key: first for key, (first, _) in blocked.items()}, {}))

    def acknowledge(self) -> None:
        """Some of a lease, or all of it, by the rule; the keys are reported of all, or of a part."""
        if not self.leases:
            return
        lease, blocked, before = self.random.choice(self.leases[-3:])
        offsets = list(lease.offsets.iter_offsets())
        wanted = {o: self.random.choice((1, 1, 1, 2, 3, GAP)) for o in offsets if self.random.random() < 0.9}
        sent = obey(wanted, offsets, key_of, blocked, before)
        known = {o: kind for o, kind in sent.items() if kind == HOLD or self.random.random() < 0.8}
        runs = [AcknowledgementBatch.of(o, o, kind) for o, kind in sorted(sent.items()) if kind != HOLD]
        early = self.overtaken(sent)
        try:
            self.groups.acknowledge(
                T0, lease.member_id, runs, lease=lease,
                not_before=self.groups.now() + timedelta(seconds=self.random.choice((0, 0, 9))),
                holds=OffsetSet.from_offsets([o for o, kind in sent.items() if kind == HOLD]),
                keys={k: OffsetSet.from_offsets(v) for k, v in reported(known, key_of).items()},
            )  # fmt: skip
        except InvalidRecordState:
            return
        assert not early, f"accepted before earlier ones of their keys: {early}"
        before |= sent

    def overtaken(self, sent: dict[int, int]) -> list[tuple[int, int]]:
        """Accepted offsets, each with an earlier open one of its key."""
        done = {o for o, kind in sent.items() if kind in (ACCEPT, GAP)}
        found = self.groups.share_partition(T0)
        still = {o for o, r in found.records.items() if r.state in OPEN} - done
        still |= found.letters.keys()
        there = [
            o for o in done if sent[o] == ACCEPT and o >= found.spso and o in found.records and key_of(o)
        ]
        return [(o, p) for o in there for p in still if p < o and key_of(p) == key_of(o)]

    def by_hand(self) -> None:
        """A person moves records, or lets the keys of letters go."""
        first = self.random.randint(0, self.end)
        chosen = OffsetSet.of((first, first + self.random.randint(1, 6)))
        if self.random.random() < 0.4:
            self.let_keys_go(chosen)
        elif self.random.random() < 0.5:
            self.groups.force_release(T0, chosen, execute=True)
        else:
            self.groups.force_dead_letter(T0, chosen, execute=True)

    def let_keys_go(self, chosen: OffsetSet) -> None:
        """The letters of these records hold their keys no longer."""
        letters = self.groups.share_partition(T0).letters
        self.groups.let_keys_go(T0, {letter.sequence: chosen for letter in letters.values()})

    def dead_letters(self) -> None:
        """Letters are written; the writer has read them, or not."""
        if batch := self.groups.open_dead_letters(T0, self.random.randint(1, 5)):
            read = dict.fromkeys(batch.offsets.iter_offsets(), 3)
            keys = {k: OffsetSet.from_offsets(v) for k, v in reported(read, key_of).items()}
            self.groups.close_dead_letters(T0, batch.sequence, keys=keys)

    def happen(self) -> None:
        """What else there is: time passes, members go, the log grows and loses its beginning."""
        what = self.random.randrange(5)
        if what == 0:
            self.groups.advance(self.random.choice((1, 10, 31)))
        elif what == 1:
            self.groups.release_member("g", self.random.choice(MEMBERS), cancelled=self.random.random() < 0.5)
        elif what == 2:
            self.end += self.random.randint(0, 9)
            self.groups.observe(T0, "id", 0, self.end)
        elif what == 3 and self.random.random() < 0.3:
            self.groups.advance_log_start(T0, self.random.randint(0, self.end // 2))
        elif what == 4 and self.leases:
            lease = self.random.choice(self.leases)[0]
            half = [AcknowledgementBatch.of(o, o, 4) for o in lease.offsets.iter_offsets() if o % 2]
            with suppress(InvalidRecordState):
                self.groups.acknowledge(T0, lease.member_id, half, lease=lease)

    def drain(self) -> None:
        """Everything comes to an end in a bounded number of steps."""
        for _ in range(400):
            self.groups.advance(31)
            self.let_keys_go(OffsetSet.of((0, self.end)))
            while batch := self.groups.open_dead_letters(T0):
                self.groups.close_dead_letters(T0, batch.sequence)
            self.acquire(40)
            if not self.leases:
                continue
            lease, blocked, before = self.leases.pop()
            offsets = list(lease.offsets.iter_offsets())
            sent = obey(dict.fromkeys(offsets, ACCEPT), offsets, key_of, blocked, before)
            runs = [AcknowledgementBatch.of(o, o, kind) for o, kind in sorted(sent.items()) if kind != HOLD]
            try:
                self.groups.acknowledge(
                    T0, lease.member_id, runs, lease=lease,
                    holds=OffsetSet.from_offsets([o for o, kind in sent.items() if kind == HOLD]),
                    keys={k: OffsetSet.from_offsets(v) for k, v in reported(sent, key_of).items()},
                )  # fmt: skip
            except InvalidRecordState:
                continue


@pytest.mark.parametrize("seed", range(30))
def test_no_record_overtakes_another_of_its_key(seed: int) -> None:
    """Workers who obey, with lapses, renewals of parts, cancelled runs, records moved by hand, dead letters that hold
    their key or not: each accepted record is the first open one of its key, and all comes to an end."""
    queue = OrderedQueue(seed)
    for _ in range(STEPS):
        what = queue.random.choices(
            (queue.acquire, queue.acknowledge, queue.by_hand, queue.dead_letters, queue.happen),
            (30, 35, 5, 10, 20),
        )[0]
        what()
        assert queue.groups.verify() == []
    queue.drain()
    assert queue.groups.describe(T0).spso >= queue.end
