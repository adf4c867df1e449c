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
from dataclasses import replace
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
        first = {o for o in known if o in spared and not stops(self.at, o)}
        behind = [o for o, key in known.items() if key and any(known[f] == key and f < o for f in first)]
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
    return {**{offset: letter.key for offset, letter in at.letters.items()}, **known}


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
            record = at.records.get(offset)
            said = record.reported if record and record.state is not ARCHIVING else None
            blocked.setdefault(key, (offset, said.not_before if said else None))
    return blocked


def stops(at: InMemorySharePartition, offset: int) -> bool:
    """Whether what is behind an open record of its key is held until it is finished: it was released, or its dead
    letter is being written, or holds the key. Behind one that was itself held nothing waits: they come together."""
    record = at.records.get(offset)
    if offset in at.letters or record is None or record.reported is None:
        return offset in at.letters
    return record.state is ARCHIVING or record.reported.released


def stopped(at: InMemorySharePartition, offset: int, key: UUID | None) -> bool:
    """Whether an earlier record of its key makes a record wait."""
    return key is not None and any(stops(at, earlier) for earlier in holders_of(at, key, offset))


def hold(at: InMemorySharePartition, offset: int) -> None:
    """Give its delivery back to a record that no handler got: it comes again with the first of its key."""
    record = at.records[offset]
    at.move(record, AVAILABLE)
    record.delivery_count -= 1


def hold_and_free(at: InMemorySharePartition, now: float) -> None:
    """What is available behind a record that stops its key is held, and nothing else: that has its own time again."""
    known = known_open(at)
    for offset, record in at.records.items():
        if record.state is AVAILABLE and stopped(at, offset, known.get(offset)):
            record.not_before = math.inf
        elif record.not_before == math.inf:
            _free(record, now)


@contextmanager
def held_again(at: InMemorySharePartition, now: float) -> Iterator[None]:
    """Records change here of which nobody reports anything."""
    yield
    hold_and_free(at, now)


def report(
    at: InMemorySharePartition, keys: Mapping[UUID | None, OffsetSet], released: Collection[int]
) -> None:
    """A worker has said which keys records have that are open still, and which of them it has released: these stay
    released until they are finished, unless it says that they have another key."""
    named = {offset: key for key, offsets in keys.items() for offset in offsets.iter_offsets()}
    for offset in {*named, *released}:
        record = at.records.get(offset)
        if record is None or offset < at.spso or record.state not in OPEN:
            continue
        before = record.reported or (Reported(named[offset]) if offset in named else None)
        if before is not None:
            key = named.get(offset, before.key_hash)
            once = before.released and before.key_hash == key
            own = record.not_before if record.state is AVAILABLE else None
            record.reported = Reported(key, offset in released or once, own)


def forced(at: InMemorySharePartition, offsets: Collection[int]) -> None:
    """An operator has released records: they have no time of their own."""
    for record in (at.records[offset] for offset in offsets):
        if record.reported:
            record.reported = replace(record.reported, not_before=None)


def let_go(at: InMemorySharePartition, letters: Collection[int], now: float) -> tuple[int, int]:
    """Letters hold their keys no longer; return how many keys have no letter now, and how many held records go on."""
    keys = {at.letters[offset].key for offset in letters}
    for offset in letters:
        del at.letters[offset]
    keys -= {letter.key for letter in at.letters.values()}
    known = known_open(at)
    held = [r for o, r in at.records.items() if r.not_before == math.inf and known.get(o) in keys]
    hold_and_free(at, now)
    return len(keys), sum(record.not_before != math.inf for record in held)


def forget_keys(at: InMemorySharePartition, policy: Policy, now: float) -> None:
    """The group is not ordered, or letters do not hold any more: what was kept for that is gone."""
    if policy.order is None or not policy.order.letters_hold:
        at.letters.clear()
    if policy.order is None:
        for record in at.records.values():
            if record.not_before == math.inf:
                _free(record, now)
            record.reported = None
    hold_and_free(at, now)


def _free(record: Record, now: float) -> None:
    own = record.reported.not_before if record.reported else None
    record.not_before = own if own is not None and own > now else None
