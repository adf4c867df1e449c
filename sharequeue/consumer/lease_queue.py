"""Leases that wait to be read, or to be polled.

Its methods do not lock: the caller holds the lock of the ``handover``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from confluent_kafka import Message

from sharequeue.consumer.held_leases import HeldLease
from sharequeue.consumer.key_order import offset_of
from sharequeue.domain.offsets import OffsetSet

_log = logging.getLogger(__name__)


class LeaseQueue:
    """Leases that are not completely handed out. A partly read lease may wait in both queues."""

    def __init__(self) -> None:
        self.to_read: deque[HeldLease] = deque()
        self._to_poll: deque[HeldLease] = deque()

    @property
    def records(self) -> int:
        """Records that a poll may return now."""
        return sum(each.waiting for each in self._to_poll)

    @property
    def buffered(self) -> int:
        """Records that wait for a poll, also those that wait behind another one of their key."""
        return sum(each.buffered for each in self._to_poll)

    def leases(self) -> list[HeldLease]:
        """Return all leases, each once."""
        return list(dict.fromkeys((*self._to_poll, *self.to_read)))

    def add(self, holding: HeldLease, messages: list[Message], passed: OffsetSet) -> None:
        """Add the messages that were read of a lease."""
        holding.add(messages, passed)
        if holding.buffered and holding not in self._to_poll:
            self._to_poll.append(holding)
        if not holding.unread:
            self.to_read.remove(holding)

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values of the records that wait for a poll."""
        return sum(each.waiting_bytes for each in self._to_poll)

    def at_least(self, size: int) -> bool:
        """Return whether these records have at least `size` bytes."""
        return self.records > 0 if size <= 1 else self.bytes >= size

    def put_first(self, holding: HeldLease) -> None:
        """Put a holding first, before everything else: its records are polled again."""
        self._to_poll.appendleft(holding)

    def pick(self, most: int, *, explicit: bool) -> tuple[list[Message], list[HeldLease]]:
        """Return the next records, at most `most`, and their leases; none whose lock may have lapsed. The offsets of
        a partition ascend, also where several of its leases have waited.
        """
        messages: list[Message] = []
        holdings: list[HeldLease] = []
        for holding in list(self._to_poll):
            if len(messages) >= most:
                break
            if holding.lapsed:
                self._warn_of_lapse(holding)
                self.forget([holding])
            elif holding.waiting:
                messages += holding.hand_out(most - len(messages), explicit=explicit)
                holdings.append(holding)
            if not holding.buffered and holding in self._to_poll:
                self._to_poll.remove(holding)
        places = {each.key: place for place, each in enumerate(holdings)}
        if len(places) < len(holdings):
            messages.sort(
                key=lambda each: (places[str(each.topic()), int(each.partition() or 0)], offset_of(each))
            )
        return messages, holdings

    @staticmethod
    def _warn_of_lapse(holding: HeldLease) -> None:
        if holding.buffered:
            topic, partition = holding.key
            _log.warning(
                "the lock of %d records of %s-%d lapsed before a poll", holding.buffered, topic, partition
            )

    def forget(self, holdings: Iterable[HeldLease]) -> None:
        """Forget these holdings: none of their records is handed out any more."""
        for holding in holdings:
            for queue in (self._to_poll, self.to_read):
                if holding in queue:
                    queue.remove(holding)
            holding.forget()
