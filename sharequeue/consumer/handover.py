"""Pass acknowledgements from the program's thread to the consumer's threads, and records and results back.

The program's thread waits here, and the fetcher's thread reads here what is wanted. One lock protects all of it. It
is never held during a call to the database or the broker.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from confluent_kafka import Message

from sharequeue.consumer.acknowledgements import Acknowledgements, Result
from sharequeue.consumer.configs import ConsumerConfig
from sharequeue.consumer.errors import WakeupException
from sharequeue.consumer.held_leases import HeldLease, LeaseOutcomes
from sharequeue.consumer.key_order import LeaseOrder, offset_of
from sharequeue.consumer.lease_queue import LeaseQueue

FIGURES = (
    "acknowledgements-error-total",
    "acknowledgements-send-total",
    "bytes-consumed-total",
    "fetch-total",
    "records-consumed-total",
)
"""The counters, by the names of Kafka's client."""


class Handover:
    """The exchange between a program and the threads of its consumer."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self.changed = threading.Condition()
        self.outbox: deque[Acknowledgements] = deque()
        self._finished: deque[Acknowledgements] = deque()
        self.queue = LeaseQueue()
        self._polling = False
        self._wanted_until = 0.0
        self.asked = False
        """Whether a poll returned no records, even without waiting, and no round of fetching has begun since."""
        self.ahead_records = 0
        """Records that may wait here for the next polls."""
        self.answered = 0
        """How many times acknowledgements got their results."""
        self.idle_ahead = False
        """Whether nothing could be leased ahead: the next poll tries again."""
        self.news = threading.Event()
        """Set when there may be something to lease, or the assignment has changed."""
        self._woken = False
        self._failure: Exception | None = None
        self.figures = dict.fromkeys(FIGURES, 0.0)

    def on_its_way(self, holding: HeldLease) -> bool:
        """Return whether acknowledgements of a lease have no results yet. The caller holds the lock."""
        return any(holding in dict(sending.taken) for sending in self.outbox)

    def send(self, sending: Acknowledgements) -> None:
        """Queue acknowledgements to be sent. Returns at once."""
        with self.changed:
            self.outbox.append(sending)
            self.changed.notify_all()

    def sent(
        self, parts: Sequence[Acknowledgements], results: Sequence[list[Result]], renewed: Sequence[HeldLease]
    ) -> None:
        """Record the results of the first sendings of the outbox; polls return renewed records again."""
        with self.changed:
            self.idle_ahead = False  # acknowledged records make room
            self.answered += 1
            for part, of_part in zip(parts, results, strict=True):
                part.results = of_part
                for (holding, some), error in zip(part.taken, of_part, strict=True):
                    if error is not None and holding.order is not None:
                        self._refused(holding, holding.order, some)
                self.outbox.popleft()
                self._finished.append(part)
                self.figures["acknowledgements-send-total"] += len(of_part)
                self.figures["acknowledgements-error-total"] += sum(each is not None for each in of_part)
            for holding in renewed:
                self.queue.put_first(holding)
            self.changed.notify_all()

    def _refused(self, holding: HeldLease, order: LeaseOrder, some: LeaseOutcomes) -> None:
        """Keep the order by key in a lease with a refused acknowledgement, or with records that are not renewed."""
        if order.lost:
            self.queue.forget([each for each in self.queue.leases() if each.order is order])
            return
        order.stop(map(offset_of, some.renewed))
        holds, keys = order.take_holds()
        if holds:
            self.outbox.append(Acknowledgements([(holding, LeaseOutcomes({}, holds=holds, keys=keys))]))

    def finished(self) -> list[Acknowledgements]:
        """Return the acknowledgements that got their results since the last call."""
        with self.changed:
            finished = list(self._finished)
            self._finished.clear()
        return finished

    def outcomes_of(self, holdings: list[HeldLease], *, implicit: bool) -> Acknowledgements | None:
        """Take the outcomes to acknowledge now out of these leases; return None when there are none."""
        with self.changed:
            taken = [(each, some) for each in holdings if (some := each.take(implicit=implicit)) is not None]
        return Acknowledgements(taken) if taken else None

    def take(self, most: int, wait: float) -> tuple[list[Message], list[HeldLease]]:
        """Return the next records, at most `most`, whose locks have not lapsed, and their leases.

        Waits up to `wait` seconds for the first one.

        Raises the error that made fetching impossible, if waiting does not help.
        """
        deadline = time.monotonic() + wait
        with self.changed:
            self._check_woken()
            messages: list[Message] = []
            holdings: list[HeldLease] = []
            self._polling = True
            self.changed.notify_all()
            try:
                while self._failure is None and not self._woken:
                    if self.queue.records:
                        # There are records: the poll waits for more of them for fetch.max.wait.ms.
                        deadline = min(deadline, time.monotonic() + self._config.fetch_max_wait_ms / 1000)
                    left = deadline - time.monotonic()
                    if self.enough(most) or left <= 0:
                        messages, holdings = self.queue.pick(most, explicit=self._config.explicit)
                        if messages or left <= 0:
                            break
                    self.changed.wait(left)
            finally:
                self._polling = False
            self.asked = not messages
            # For a program whose polls do not wait: the next poll gets what an empty one asked for, and no more.
            self._wanted_until = 0.0 if messages else time.monotonic() + self._config.fetch_max_wait_ms / 1000
            if not messages:
                self._check_woken()
            failure = None if messages else self._failure
            if failure is not None:
                self._failure = None
                raise failure
        return messages, holdings

    @property
    def demand(self) -> bool:
        """Whether a poll waits, or has just returned no records."""
        return self._polling or time.monotonic() < self._wanted_until

    def enough(self, most: int) -> bool:
        """Return whether a poll need not wait for more (fetch.min.bytes)."""
        records = self.queue.records
        config = self._config
        least = min(config.fetch_min_bytes, config.fetch_max_bytes)
        return records >= most or (records > 0 and self.queue.at_least(least))

    def wait_for(self, sending: Acknowledgements, wait: float) -> None:
        """Wait for the results of acknowledgements, for up to `wait` seconds."""
        with self.changed:
            self.changed.wait_for(lambda: sending.results is not None or self._woken, wait)
            self._check_woken()

    def interrupt(self) -> None:
        """End the current or next wait of the program's thread with WakeupException."""
        with self.changed:
            self._woken = True
            self.changed.notify_all()

    def fail(self, error: Exception) -> None:
        """End the current or next poll with an error that waiting does not resolve."""
        with self.changed:
            self._failure = error
            self.changed.notify_all()

    def forget_failure(self) -> None:
        """Forget the failure of an earlier subscription: it does not concern this one."""
        with self.changed:
            self._failure = None

    def _check_woken(self) -> None:
        if self._woken:
            self._woken = False
            raise WakeupException

    def lease_ahead(self, records: int) -> None:
        """Set how many records may wait here for the next polls."""
        self.ahead_records = min(records, self._config.prefetch_max_records)

    def wake(self) -> None:
        """Wake the fetcher's thread: there may be something to lease, or the assignment has changed."""
        self.news.set()
        with self.changed:
            self.changed.notify_all()

    def metrics(self) -> dict[str, float]:
        """Return this consumer's figures, by the names of Kafka's client."""
        with self.changed:
            return {
                **self.figures,
                "records-waiting": self.queue.buffered,
                "acknowledgements-waiting": len(self.outbox),
            }
