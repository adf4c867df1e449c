"""Send acknowledgements to the database while records are leased and read.

This is done in a thread of its own, so that no lock lapses because a broker is slow. Acknowledgements that wait are
sent together. While the database is unavailable they are sent again, until the locks have lapsed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from math import inf

from sqlalchemy.exc import SQLAlchemyError

from sharequeue.consumer.acknowledgements import Acknowledgements, Result, lose
from sharequeue.consumer.failures import PATIENCE_S, Failures
from sharequeue.consumer.handover import Handover
from sharequeue.consumer.held_leases import HeldLease
from sharequeue.consumer.member import ConsumerMember
from sharequeue.domain.errors import CoordinatorNotAvailable, ShareError, UnknownServerError, first_line
from sharequeue.state import State
from sharequeue.state.locks import lock_clock

_log = logging.getLogger(__name__)

_RETRY_S = 0.2


class AcknowledgementSender:
    """Sends the acknowledgements that the program's thread puts into the handover."""

    def __init__(self, handover: Handover, state: State, member: ConsumerMember, failures: Failures) -> None:
        self._handover = handover
        self._state = state
        self._member = member
        self._failures = failures
        self._give_up_at = inf
        self._stop = False
        self._thread = threading.Thread(target=self._run, name=f"share-send-{member.member_id}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Stop once everything is sent; repeat what fails for up to `timeout` seconds. Returns at once."""
        with self._handover.changed:
            self._give_up_at = time.monotonic() + timeout
            self._stop = True
            self._handover.changed.notify_all()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end."""
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._handover.changed:
                self._handover.changed.wait_for(lambda: self._stop or self._handover.outbox)
                if not self._handover.outbox:
                    break
                parts = list(self._handover.outbox)
            self.send(parts)
        self._failures.finish(PATIENCE_S)

    def send(self, parts: Sequence[Acknowledgements]) -> None:
        """Send the first acknowledgements of the outbox together; repeat until they have their results."""
        sending, repeated = Acknowledgements.of_all(parts), False
        while (reply := self._answer(sending, repeated)) is None:
            repeated = True
            time.sleep(_RETRY_S)
        if repeated:
            _log.warning("acknowledgements of %s are no longer repeated", self._member.member_id)
        results, renewed = reply
        self._handover.sent(parts, [sending.results_of(part, results) for part in parts], renewed)
        if sending.releases:
            self._handover.wake()

    def _answer(
        self, sending: Acknowledgements, repeated: bool
    ) -> tuple[list[Result], list[HeldLease]] | None:
        """Send once; return the results and the leases of the renewed records, or None if it must be sent again.

        Only the first failure is logged: an outage has five in a second.
        """
        try:
            lock_duration_ms, failures = inf, None
            if sending.renews or sending.has_errors:
                configs = self._member.load_configs()
                lock_duration_ms = configs.record_lock_duration_ms
                failures = self._failures if configs.dead_letter_topic else None
            results, renewed = sending.carry_out(self._state, failures, lock_duration_ms)
            lost = self._member.lost_topics
            holdings = [holding for holding, _ in sending.taken]
            return [each or lost.get(at.key[0]) for at, each in zip(holdings, results, strict=True)], renewed
        except SQLAlchemyError as error:
            if lock_clock() < sending.deadline and time.monotonic() < self._give_up_at:
                if not repeated:
                    _log.warning(
                        "acknowledgements of %s are repeated until they succeed: %s",
                        self._member.member_id,
                        first_line(error),
                    )
                return None
            failure: ShareError = CoordinatorNotAvailable(first_line(error))
        except ShareError as error:
            failure = error
        except Exception as error:
            # An unexpected error is reported and not repeated: else nothing behind it would ever be sent.
            _log.exception("acknowledgements of %s failed", self._member.member_id)
            failure = UnknownServerError(first_line(error))
        lose(holding for holding, _ in sending.taken)
        return [failure] * len(sending.taken), []
