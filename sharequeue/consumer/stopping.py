"""What happens when a program is told to stop (SIGTERM)?

A contract: nothing more is leased, the program finishes what it has in hand, and what it has not finished in time is
given back. What was leased ahead is given back at once, with its delivery.
"""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from sharequeue.consumer.calls import OneCaller
from sharequeue.consumer.fetcher import Fetcher
from sharequeue.consumer.member import Member
from sharequeue.errors import ShareError

_log = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 30.0


class Stopping(OneCaller):
    """The part of a consumer that stops."""

    _fetcher: Fetcher
    _member: Member

    def __init__(self) -> None:
        super().__init__()
        self._ended = threading.Event()
        self._handlers: dict[int, tuple[Any, Any]] = {}
        """Of each signal our handler, and the one before."""
        self.stopping = False
        """Whether ``stop`` was called, or a signal of ``stop_on_signal`` has come."""

    def stop_on_signal(self, *signals: int, timeout: float = 25.0) -> None:
        """On SIGTERM (or these signals) lease no more: polls return only what was renewed, and ``stopping`` is true.

        The program finishes what it has in hand, commits and closes. What it still holds after ``timeout`` seconds is
        given back: another consumer gets it, and a late acknowledgement is refused. ``close`` restores what the
        signals did before. Call both in the main thread. Raises IllegalStateException on a closed consumer.
        """
        self._check_open()

        def handler(*_: object) -> None:
            self.stop(timeout)

        for number in signals or (signal.SIGTERM,):
            before = signal.signal(number, handler)
            self._handlers[number] = handler, self._handlers.get(number, (None, before))[1]

    def _restore_signals(self) -> None:
        """Have the signals do what they did before, unless something else has been said since.

        Only the main thread may: from another nothing changes.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        while self._handlers:
            number, (mine, before) = self._handlers.popitem()
            if signal.getsignal(number) is mine:
                signal.signal(number, signal.SIG_DFL if before is None else before)

    def stop(self, timeout: float = 25.0) -> None:
        """What the signal of ``stop_on_signal`` does, from any thread. Returns at once."""
        if not self.stopping:
            self.stopping = True
            threading.Thread(target=self._stop_within, args=(timeout,), daemon=True).start()

    def _stop_within(self, timeout: float) -> None:
        self._fetcher.cease()
        if not self._ended.wait(timeout):
            _log.warning("the program is not done after %.0f s: what it holds is given back", timeout)
            try:
                self._fetcher.release_all([])
            except (SQLAlchemyError, ShareError) as error:
                _log.warning(
                    "what %s holds comes back when its locks lapse: %s", self._member.member_id, error
                )
            self._member.close(LEAVE_TIMEOUT_S)
