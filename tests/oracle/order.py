"""Order by key: a record waits for every earlier record of its key that is open.

Kafka has no such rule. Within a share-partition a record is accepted only when no earlier one of its key is
AVAILABLE, ACQUIRED or ARCHIVING, or a dead letter that holds its key. Workers see to it: they give back what must
wait as *held*. Here is what the state does for them. It keeps the keys that were reported to it, leases one lease at
a time and nothing behind a record whose key nobody has reported, and tells a lease which keys are blocked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

from sharequeue.domain.offsets import OffsetSet
from tests.oracle.acquiring import Acquisition
from tests.oracle.fan_out import FanOutAcquisition
from tests.oracle.records import Policy, Record, RecordState, Reported
from tests.oracle.share_partition import InMemorySharePartition

AVAILABLE, ACQUIRED, ARCHIVING = RecordState.AVAILABLE, RecordState.ACQUIRED, RecordState.ARCHIVING
OPEN = (AVAILABLE, ACQUIRED, ARCHIVING)
RECORDS_FOR_A_KEY = 10
"""How many open records of known keys there may be for each open key that the config allows."""


class OrderedAcquisition(FanOutAcquisition):
    """An acquire from an ordered group: as a batch run's, but nothing behind a record of unknown key."""

    def run(self) -> None:
        """Nothing while anybody holds anything."""
        others = self.at.leases.keys() - {self.lease.lease_id}
        if not others:
            super().run()

    def _left_out(self) -> OffsetSet:
        """With a record that the caller leaves out, what is known to be behind it: both come together."""
        known, spared = known_open(self.at), self.fetch.leave_out
        first = {o for o, r in self.at.records.items() if o in spared and r.deliverable(self.fetch.now)}
        behind = [o for o, key in known.items() if key and any(known.get(f) == key and f < o for f in first)]
        return spared | OffsetSet.from_offsets(sorted(behind))

    def _occupied(self) -> int:
        """Without what is finished: it would count as long as one key keeps SPSO from moving."""
        return super()._occupied() - self.at.delivery_complete_count

    def _choose(self) -> tuple[list[int], bool]:
        again, followed = super()._choose()
        unknown = [offset for offset in unknown_open(self.at) if offset not in again]
        if unknown:
            return [offset for offset in again if offset < min(unknown)], False
        return again, followed and not too_many_open(self.at, self.policy)


def acquisition_of(policy: Policy, redelivery: str) -> type[Acquisition]:
    """By which rules records are chosen."""
    if policy.order:
        return OrderedAcquisition
    return FanOutAcquisition if redelivery == "fan_out" else Acquisition


def unknown_open(at: InMemorySharePartition) -> list[int]:
    """Open records that nobody holds and whose key nobody has reported."""
    return [o for o, r in at.records.items() if r.state in (AVAILABLE, ARCHIVING) and r.reported is None]


def known_open(at: InMemorySharePartition) -> dict[int, UUID | None]:
    """The open records whose key is known, and the dead letters that hold theirs; None for records without a key."""
    known = {o: r.reported.key_hash for o, r in at.records.items() if r.state in OPEN and r.reported}
    return {**at.letters, **known}


def known_keys(at: InMemorySharePartition, offsets: Collection[int]) -> set[UUID | None]:
    """The keys of those of these records that are open, now or earlier reported."""
    known = known_open(at)
    return {known[offset] for offset in offsets if offset in known}


def too_many_open(at: InMemorySharePartition, policy: Policy) -> bool:
    """Whether so many keys are open that fresh records wait."""
    if policy.order is None:
        return False
    known, most = known_open(at), policy.order.max_open_keys
    keys = {key for key in known.values() if key is not None}
    return len(keys) >= most or len(known) >= RECORDS_FOR_A_KEY * most


def holders_of(at: InMemorySharePartition, key: UUID, below: float) -> list[int]:
    """The open records and letters of a key below an offset, the first of them first."""
    return sorted(o for o, hashed in known_open(at).items() if hashed == key and o < below)


def blocked_keys(at: InMemorySharePartition, token: UUID) -> dict[UUID, tuple[int, float | None]]:
    """The keys that a lease finds open outside of it, below its last record: from which offset on, and until when."""
    own = [
        o for o, r in at.records.items() if r.lease_id is not None and at.leases[r.lease_id].token == token
    ]
    blocked: dict[UUID, tuple[int, float | None]] = {}
    for offset, key in sorted(known_open(at).items()):
        if key is not None and offset not in own and offset < max(own, default=0):
            wait = wait_behind(at, offset)
            blocked.setdefault(key, (offset, None if wait == math.inf else wait))
    return blocked


def wait_behind(at: InMemorySharePartition, first: int) -> float | None:
    """How long records wait behind the first open one of their key: as long as it does; for a dead letter, until it
    is written, or no longer holds."""
    record = at.records.get(first)
    return (
        math.inf if first in at.letters or record is None or record.state is ARCHIVING else record.not_before
    )


def hold(at: InMemorySharePartition, offset: int) -> None:
    """Give its delivery back to a record that no handler got: it comes again with the first of its key."""
    record = at.records[offset]
    at.move(record, AVAILABLE)
    record.delivery_count -= 1


def let_wait(at: InMemorySharePartition, keys: Collection[UUID | None], now: float) -> None:
    """What is available of these keys waits as long as the first open record of its key does, or longer by itself."""
    for offset, key in sorted(known_open(at).items()):
        before = holders_of(at, key, offset) if key is not None and key in keys else []
        if before and offset in at.records and at.records[offset].state is AVAILABLE:
            wait = wait_behind(at, before[0])
            if wait is not None and wait > max(now, at.records[offset].not_before or now):
                at.records[offset].not_before = wait


@contextmanager
def letters_wait(at: InMemorySharePartition, now: float) -> Iterator[None]:
    """What waits for records that become dead letters here, waits until these are written."""
    before = {o for o, r in at.records.items() if r.state is ARCHIVING}
    yield
    new = [r for o, r in at.records.items() if r.state is ARCHIVING and o not in before]
    let_wait(at, {r.reported.key_hash for r in new if r.reported}, now)


@contextmanager
def stop_waiting(at: InMemorySharePartition, gone: Collection[int], now: float) -> Iterator[None]:
    """An operator releases records here, or the log start passes them: those that have waited for one of them wait
    only as long as the first open record of their key does then."""
    firsts: dict[tuple[UUID, float], int] = {}
    for offset in sorted(gone):
        record = at.records[offset]
        key = record.reported.key_hash if record.reported else None
        if key is not None and record.state is AVAILABLE and not record.deliverable(now):
            firsts.setdefault((key, record.not_before or now), offset)
    yield
    for (key, wait), first in firsts.items():
        holders = holders_of(at, key, math.inf)
        until = wait_behind(at, holders[0]) if holders else None
        for offset in holders if holders and holders[0] >= first else ():
            if offset > first and offset in at.records and at.records[offset].not_before == wait:
                at.records[offset].not_before = None if until == wait != math.inf else until


def report(at: InMemorySharePartition, keys: Mapping[UUID | None, OffsetSet]) -> None:
    """A worker has said which keys records have that are open still."""
    for key, offsets in keys.items():
        for offset in offsets.iter_offsets():
            if offset >= at.spso and offset in at.records and at.records[offset].state in OPEN:
                at.records[offset].reported = Reported(key)


def free(at: InMemorySharePartition) -> None:
    """What waits for a dead letter of its key goes on if there is none any more."""
    for offset, record in _waiting_for_letters(at):
        key = record.reported.key_hash if record.reported else None
        before = holders_of(at, key, offset) if key is not None else []
        if not before or wait_behind(at, before[0]) != math.inf:
            record.not_before = None


def let_go(at: InMemorySharePartition, letters: Collection[int]) -> tuple[int, int]:
    """Letters hold their keys no longer; return how many keys have no letter now, and how many records waited."""
    keys = {at.letters[offset] for offset in letters}
    for offset in letters:
        del at.letters[offset]
    keys -= set(at.letters.values())
    waited = sum(
        r.not_before == math.inf and r.reported is not None and r.reported.key_hash in keys
        for r in at.records.values()
    )
    free(at)
    return len(keys), waited


def forget_keys(at: InMemorySharePartition, policy: Policy, now: float) -> None:
    """The group is not ordered, or letters do not hold any more: what was kept for that is gone."""
    if policy.order is None:
        firsts: set[UUID | None] = set()
        for offset, key in sorted(known_open(at).items()):
            record = at.records.get(offset)
            if key in firsts and record is not None and not record.deliverable(now):
                record.not_before = None
            firsts |= {key} - {None}
        for record in at.records.values():
            record.reported = None
    if policy.order is None or not policy.order.letters_hold:
        at.letters.clear()
    free(at)


def _waiting_for_letters(at: InMemorySharePartition) -> Iterator[tuple[int, Record]]:
    return ((o, r) for o, r in sorted(at.records.items()) if r.not_before == math.inf)
