"""Work that is done once for all concurrent callers, with a limited wait.

Probes and scrapes are repeated every few seconds, even if the last one has no response yet. While a server does not
respond, each would hold a thread and a connection. So at most one thread works for all callers, and work that needs
much CPU time rests before it is repeated: it leaves the processor to heartbeats, however often it is asked for.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

__all__ = ["SingleFlight"]

Result = TypeVar("Result")

_LONGEST_REST_S = 2.0


class SingleFlight(Generic[Result]):
    """Work whose result all callers share that come before it ends. A later caller starts it again; it begins after
    `rests` times the duration of the last one, or after _LONGEST_REST_S."""

    def __init__(self, work: Callable[[], Result], name: str, rests: float = 0.0) -> None:
        self._work = work
        self._rests = rests
        self._name = name
        self._lock = threading.Lock()
        self._under_way: Future[Result] | None = None
        self._not_before = 0.0

    async def get(self, seconds: float) -> Result:
        """Return the result. Raises the error of the work, and TimeoutError after `seconds`; the work then goes
        on."""
        waiting = asyncio.wrap_future(self._begun())
        # Shielded, because other callers wait for the same task.
        return await asyncio.wait_for(asyncio.shield(waiting), seconds)

    def _begun(self) -> Future[Result]:
        with self._lock:
            if self._under_way is None:
                self._under_way = Future()
                threading.Thread(
                    target=self._do, args=(self._under_way,), name=self._name, daemon=True
                ).start()
            return self._under_way

    def _do(self, promised: Future[Result]) -> None:
        time.sleep(max(0.0, self._not_before - time.monotonic()))
        began = time.monotonic()
        try:
            result = self._work()
        except BaseException as error:
            self._end(began)
            promised.set_exception(error)
        else:
            self._end(began)
            promised.set_result(result)

    def _end(self, began: float) -> None:
        now = time.monotonic()
        with self._lock:
            self._under_way = None
            self._not_before = now + min(self._rests * (now - began), _LONGEST_REST_S)
