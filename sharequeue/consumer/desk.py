"""What do the program's thread and the fetcher's hand each other?

Acknowledgements one way, records and results the other. The program's thread waits here; the fetcher's is told here
what is wanted. One lock for all of it, which nobody holds while the database or the broker is asked.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from confluent_kafka import Message

from sharequeue.consumer.configs import ConsumerConfig
from sharequeue.consumer.errors import WakeupException
from sharequeue.consumer.holdings import Holding
from sharequeue.consumer.sending import Result, Sending
from sharequeue.consumer.shelf import Shelf

FIGURES = (
    "acknowledgements-error-total",
    "acknowledgements-send-total",
    "bytes-consumed-total",
    "fetch-total",
    "records-consumed-total",
)
"""What is counted, by the names of Kafka's client."""


CEASED_POLL_S = 0.1
"""How long a poll waits at most when nothing more is leased."""


class Desk:
    """The program's side of a fetcher."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self.changed = threading.Condition()
        self.outbox: deque[Sending] = deque()
        self._finished: deque[Sending] = deque()
        self._shelf = Shelf()
        self._polling = False
        self._wanted_until = 0.0
        self._asked = False
        """Whether a poll went without, also one that did not wait, and no round of fetching has begun since."""
        self._ceased = False
        self._ahead_records = 0
        self._sent = 0
        """How often acknowledgements had their results."""
        self._idle_ahead = False
        """Whether nothing could be leased ahead: the next poll looks again."""
        self._wake = threading.Event()
        self._woken = False
        self._failure: Exception | None = None
        self._figures = dict.fromkeys(FIGURES, 0.0)

    def send(self, sending: Sending) -> None:
        """Have acknowledgements sent. Returns at once."""
        with self.changed:
            self.outbox.append(sending)
            self.changed.notify_all()

    def sent(
        self, parts: Sequence[Sending], results: Sequence[list[Result]], renewed: Sequence[Holding]
    ) -> None:
        """The first of the outbox have their results; what was renewed is polled again."""
        with self.changed:
            self._idle_ahead = False  # what is acknowledged makes room
            self._sent += 1
            for part, of_part in zip(parts, results, strict=True):
                part.results = of_part
                self.outbox.popleft()
                self._finished.append(part)
                self._figures["acknowledgements-send-total"] += len(of_part)
                self._figures["acknowledgements-error-total"] += sum(each is not None for each in of_part)
            for holding in renewed:
                self._shelf.put_first(holding)
            self.changed.notify_all()

    def finished(self) -> list[Sending]:
        """Acknowledgements that have their results since the last call."""
        with self.changed:
            finished = list(self._finished)
            self._finished.clear()
        return finished

    def outcomes_of(self, holdings: list[Holding], *, implicit: bool) -> Sending | None:
        """What is to be acknowledged of these leases now, taken out of them; None when there is nothing."""
        with self.changed:
            taken = [(each, some) for each in holdings if (some := each.take(implicit=implicit)) is not None]
        return Sending(taken) if taken else None

    def take(self, most: int, wait: float) -> tuple[list[Message], list[Holding]]:
        """Up to so many records whose locks have not lapsed, and the leases they are of; wait so long for the first.

        Raises what made fetching impossible, where waiting will not help.
        """
        deadline = time.monotonic() + wait
        with self.changed:
            self._check_woken()
            messages: list[Message] = []
            holdings: list[Holding] = []
            self._polling = True
            self.changed.notify_all()
            try:
                while self._failure is None and not self._woken:
                    if self._ceased:
                        # A program that goes on polling is not to be busy with it.
                        deadline = min(deadline, time.monotonic() + CEASED_POLL_S)
                    elif self._shelf.records:
                        # There is something: for more of it a poll waits fetch.max.wait.ms.
                        deadline = min(deadline, time.monotonic() + self._config.fetch_max_wait_ms / 1000)
                    left = deadline - time.monotonic()
                    if self._ceased or self._enough(most) or left <= 0:
                        messages, holdings = self._shelf.pick(
                            most, explicit=self._config.explicit, only_renewed=self._ceased
                        )
                        if messages or left <= 0:
                            break
                    self.changed.wait(left)
            finally:
                self._polling = False
            self._asked = not messages
            if not messages:
                # For a program whose polls do not wait: what this one asked for is there for the next.
                self._wanted_until = time.monotonic() + self._config.fetch_max_wait_ms / 1000
                self._check_woken()
            failure = None if messages else self._failure
            if failure is not None:
                self._failure = None
                raise failure
        return messages, holdings

    @property
    def _demand(self) -> bool:
        """Whether a poll waits, or has just gone without."""
        return self._polling or time.monotonic() < self._wanted_until

    def _enough(self, most: int) -> bool:
        """Whether a poll need not wait for more (fetch.min.bytes)."""
        records = self._shelf.records
        config = self._config
        least = min(config.fetch_min_bytes, config.fetch_max_bytes)
        return records >= most or (records > 0 and self._shelf.at_least(least))

    def wait_for(self, sending: Sending, wait: float) -> None:
        """Wait for the results of acknowledgements, so long at most."""
        with self.changed:
            self.changed.wait_for(lambda: sending.results is not None or self._woken, wait)
            self._check_woken()

    def interrupt(self) -> None:
        """End the wait of the program's thread, or its next, with WakeupException."""
        with self.changed:
            self._woken = True
            self.changed.notify_all()

    def forget_interrupt(self) -> None:
        """Nothing waited: the next wait is not to end."""
        with self.changed:
            self._woken = False

    def fail(self, error: Exception) -> None:
        """End the wait of a poll, or the next one, with an error for which waiting does not help."""
        with self.changed:
            self._failure = error
            self.changed.notify_all()

    def forget_failure(self) -> None:
        """What an earlier subscription made impossible is no matter of this one's."""
        with self.changed:
            self._failure = None

    def cease(self) -> None:
        """Lease no more, and have what waits here given back: polls return from now on what was renewed."""
        self._ceased = True
        with self.changed:
            self.changed.notify_all()

    def _check_woken(self) -> None:
        if self._woken:
            self._woken = False
            raise WakeupException

    def lease_ahead(self, records: int) -> None:
        """How many records may wait here for the next polls."""
        self._ahead_records = min(records, self._config.prefetch_max_records)

    def wake(self) -> None:
        """There may be something to lease, or the assignment has changed."""
        self._wake.set()
        with self.changed:
            self.changed.notify_all()

    def metrics(self) -> dict[str, float]:
        """What was done, by the names of Kafka's client."""
        with self.changed:
            return {
                **self._figures,
                "records-waiting": self._shelf.records,
                "acknowledgements-waiting": len(self.outbox),
            }
