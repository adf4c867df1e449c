"""Keep the records of one lease in order by key: which of them may be handed out now, and which are held.

At most one record of a key is out: it may be polled, or is in the program's hands. Later ones of the key wait behind
it. When it is accepted, the next one is out. When it is released or rejected, all of them are held: they are given
back in the same acknowledgement, with their delivery. So a program never has two records of a key in hand, and no
acknowledgement of it can break the order.

What waits behind is locked, too. A program may be slow, and polls in time for each record, but not for all records of
a key one after the other. So once half of the lock is over, all that waits is held: it loses no delivery by a lapse,
and comes again with the next lease.

Its methods do not lock: the caller holds the lock of the ``handover``.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from confluent_kafka import Message

from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.record_bytes import key_hash
from sharequeue.kafka.damage import is_damage, is_unreadable
from sharequeue.state.locks import Lock

Keys = dict[UUID | None, list[int]]
"""Offsets by the hash of their key; None is the key of records without a key."""

offset_of: Callable[[Message], int] = Message.offset  # type: ignore[assignment]
"""Every message that a consumer returns has an offset."""


class LeaseOrder:
    """The order by key in one lease. A lease and its renewed records share it."""

    def __init__(self, blocked: Mapping[UUID, int], lock: Lock) -> None:
        self._blocked = blocked
        """The first open offset of keys that is not in this lease: what comes after it is held."""
        self._lock = lock
        self._keys: dict[int, bytes | None] = {}
        """The keys of the records that are out. Deserializing replaces the key of a message."""
        self._out: set[bytes] = set()
        self._behind: dict[bytes, deque[Message]] = {}
        self._freed: list[Message] = []
        self._stopped: set[bytes] = set()
        """Keys of which nothing more is handed out: a record was released or rejected, or it was too late for all."""
        self._is_unknown_out = False
        """Whether a record with a key that this client cannot read is open: it may be any key."""
        self._held: list[int] = []
        self._report: Keys = {}
        self.behind = 0
        """Records that wait behind another one of their key."""
        self.lost = False
        """Whether an acknowledgement was refused: then its records may be open, and nothing else is accepted."""

    @property
    def freed(self) -> int:
        """Records that may be handed out since the records before them were accepted."""
        return len(self._freed)

    def admit(self, messages: Sequence[Message]) -> list[Message]:
        """Return those of the next records, in the order of their offsets, that may be handed out now."""
        return [each for each in messages if self._admits(each)]

    def _admits(self, message: Message) -> bool:
        offset, error = offset_of(message), message.error()
        key: Any = message.key()
        if error is not None and is_unreadable(message) and not is_damage(error):
            self._is_unknown_out = True
            return True
        if key is not None:
            if self._must_hold(key, offset):
                self._hold(offset, key)
                return False
            if key in self._out:
                self._behind.setdefault(key, deque()).append(message)
                self.behind += 1
                return False
            self._out.add(key)
        self._keys[offset] = key
        return True

    def _must_hold(self, key: bytes, offset: int) -> bool:
        if self._is_unknown_out or key in self._stopped:
            return True
        return bool(self._blocked) and self._blocked.get(key_hash(key), offset) < offset

    def _hold(self, offset: int, key: bytes) -> None:
        self._held.append(offset)
        self._report.setdefault(key_hash(key), []).append(offset)

    def add_freed(self, ready: list[Message], first: int) -> None:
        """Move the records that were freed into those that are ready, by offset, from this index on."""
        for message in self._freed:
            insort(ready, message, lo=first, key=offset_of)
        self._freed.clear()

    def accept(self, offsets: OffsetSet) -> None:
        """Let the next record of each of these records' keys out."""
        for offset in offsets.iter_offsets():
            key = self._keys.pop(offset, None)
            if key is None:
                continue
            behind = self._behind.get(key)
            if behind is None:
                self._out.discard(key)
                continue
            message = behind.popleft()
            if not behind:
                del self._behind[key]
            self.behind -= 1
            self._keys[offset_of(message)] = key
            self._freed.append(message)

    def fail(self, offsets: OffsetSet) -> None:
        """Hold what comes after these records, which are released or rejected, and report their keys."""
        for hashed, failed in self.keys_of(offsets.iter_offsets()).items():
            self._report.setdefault(hashed, []).extend(failed)
        self.stop(offsets.iter_offsets())

    def keys_of(self, offsets: Iterable[int]) -> Keys:
        """Return the keys of records that are out, as far as they can be read."""
        found: Keys = {}
        for offset in offsets:
            if offset in self._keys:
                key = self._keys[offset]
                found.setdefault(None if key is None else key_hash(key), []).append(offset)
        return found

    def stop(self, offsets: Iterable[int]) -> None:
        """Hold what comes after these records."""
        for offset in offsets:
            key = self._keys.pop(offset, None)
            if key is None:
                continue
            self._stop_key(key)

    def hold_late(self) -> None:
        """Hold what waits, and what is read later of these keys, if the lock has not long to live."""
        if self._lock.half_over:
            for key in list(self._behind):
                self._stop_key(key)

    def _stop_key(self, key: bytes) -> None:
        self._stopped.add(key)
        for message in self._behind.pop(key, ()):
            self._hold(offset_of(message), key)
            self.behind -= 1

    def take_holds(self) -> tuple[OffsetSet, Keys]:
        """Take out the records to give back now, and the keys to report with the acknowledgement.

        Records whose lock has lapsed are not given back: only the renewed records of the lease are still locked.
        """
        if self._lock.lapsed:
            self.forget()
        held, keys = OffsetSet.from_offsets(self._held), self._report
        self._held, self._report = [], {}
        return held, keys

    def forget(self) -> None:
        """Forget the records that are not handed out: none of them is handed out or given back any more."""
        held = set(self._held)
        self._report = {
            key: left
            for key, offsets in self._report.items()
            if (left := [at for at in offsets if at not in held])
        }
        self._behind, self._freed, self._held, self.behind = {}, [], [], 0
