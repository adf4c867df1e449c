"""How do acknowledgements get to the database while records are leased and read?

In a thread of their own: no lock lapses because a broker is slow. What has come together is sent together, and while
the database is away again and again, until the locks have lapsed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from math import inf

from sqlalchemy.exc import SQLAlchemyError

from sharequeue.consumer.desk import Desk
from sharequeue.consumer.failures import Failures
from sharequeue.consumer.holdings import Holding, lock_clock
from sharequeue.consumer.member import Member
from sharequeue.consumer.sending import Result, Sending
from sharequeue.errors import CoordinatorNotAvailable, ShareError, UnknownServerError, first_line
from sharequeue.state import State

_log = logging.getLogger(__name__)

_RETRY_S = 0.2


class Sender:
    """Sends what a program's thread leaves on its desk."""

    def __init__(self, desk: Desk, state: State, member: Member, failures: Failures) -> None:
        self._desk = desk
        self._state = state
        self._member = member
        self._failures = failures
        self._give_up_at = inf
        self._stop = False
        self._thread = threading.Thread(target=self._run, name=f"share-send-{member.member_id}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End when all of it is sent; try again for so long at most what fails. Returns at once."""
        with self._desk.changed:
            self._give_up_at = time.monotonic() + timeout
            self._stop = True
            self._desk.changed.notify_all()

    def join(self, timeout: float) -> None:
        """Wait for the end."""
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._desk.changed:
                self._desk.changed.wait_for(lambda: self._stop or self._desk.outbox)
                if not self._desk.outbox:
                    return
                parts = list(self._desk.outbox)
            self.send(parts)

    def send(self, parts: Sequence[Sending]) -> None:
        """Send the first of the outbox, together, until they have their results."""
        sending = Sending.of_all(parts)
        while (answer := self._answer(sending)) is None:
            time.sleep(_RETRY_S)
        results, renewed = answer
        self._desk.sent(parts, [sending.results_of(part, results) for part in parts], renewed)
        if sending.releases:
            self._desk.wake()

    def _answer(self, sending: Sending) -> tuple[list[Result], list[Holding]] | None:
        """The results, and the leases of what was renewed; None where it is to be sent again."""
        try:
            failures = self._failures if self._member.has_dead_letters else None
            results, renewed = sending.carry_out(self._state, failures, self._member.lock_duration_ms)
            lost = self._member.lost_topics
            holdings = [holding for holding, _ in sending.taken]
            return [each or lost.get(at.key[0]) for at, each in zip(holdings, results, strict=True)], renewed
        except SQLAlchemyError as error:
            if lock_clock() < sending.deadline and time.monotonic() < self._give_up_at:
                _log.warning(
                    "acknowledgements of %s are sent again: %s", self._member.member_id, first_line(error)
                )
                return None
            failure: ShareError = CoordinatorNotAvailable(first_line(error))
        except ShareError as error:
            failure = error
        except Exception as error:
            # What nobody thought of is reported and not repeated: nothing behind it would ever be sent.
            _log.exception("acknowledgements of %s failed", self._member.member_id)
            failure = UnknownServerError(first_line(error))
        return [failure] * len(sending.taken), []
