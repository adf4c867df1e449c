"""Which leases wait here, to be read or to be polled?

Its methods do not lock: the ``fetcher``, whose it is, holds its lock around each.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from confluent_kafka import Message

from sharequeue.consumer.holdings import Holding
from sharequeue.offsets import EMPTY, OffsetSet

_log = logging.getLogger(__name__)


class Shelf:
    """Leases that are not handed out whole. A lease may wait in both places, when a part of it has been read."""

    def __init__(self) -> None:
        self.to_read: deque[Holding] = deque()
        self._to_poll: deque[Holding] = deque()

    @property
    def records(self) -> int:
        """Records that wait for a poll."""
        return sum(each.waiting for each in self._to_poll)

    def leases(self) -> list[Holding]:
        """All of them, each once."""
        return list(dict.fromkeys((*self._to_poll, *self.to_read)))

    def add(self, holding: Holding, messages: list[Message], passed: OffsetSet) -> None:
        """Add what was read of a lease."""
        holding.add(messages, passed)
        if holding.waiting and holding not in self._to_poll:
            self._to_poll.append(holding)
        if not holding.unread:
            self.to_read.remove(holding)

    @property
    def bytes(self) -> int:
        """Of the keys and values of these records."""
        return sum(each.waiting_bytes for each in self._to_poll)

    def at_least(self, size: int) -> bool:
        """Whether these records have so many bytes."""
        return self.records > 0 if size <= 1 else self.bytes >= size

    def put_first(self, holding: Holding) -> None:
        """What is polled again, before everything else."""
        self._to_poll.appendleft(holding)

    def pick(
        self, most: int, *, explicit: bool, only_renewed: bool = False
    ) -> tuple[list[Message], list[Holding]]:
        """The next records, up to so many, and their leases; none whose lock may have lapsed."""
        messages: list[Message] = []
        holdings: list[Holding] = []
        while self._to_poll and len(messages) < most:
            holding = self._to_poll[0]
            if only_renewed and not holding.renewed:
                break  # what is renewed comes first
            if holding.lapsed:
                topic, partition = holding.key
                _log.warning(
                    "the lock of %d records of %s-%d lapsed before a poll", holding.waiting, topic, partition
                )
                self.forget([holding])
                continue
            messages += holding.hand_out(most - len(messages), explicit=explicit)
            holdings.append(holding)
            if not holding.waiting:
                self._to_poll.popleft()
        return messages, holdings

    def forget(self, holdings: Iterable[Holding]) -> None:
        """These are handed out no further."""
        for holding in holdings:
            for queue in (self._to_poll, self.to_read):
                if holding in queue:
                    queue.remove(holding)
            holding.ready, holding.next, holding.unread = [], 0, EMPTY
