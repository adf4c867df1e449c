"""Work that is done once for all concurrent callers, with a limited wait.

Probes and scrapes are repeated every few seconds, even if the last one has no response yet. While a server does not
respond, each would hold a thread and a connection. So at most one thread works for all callers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

__all__ = ["SingleFlight"]

Result = TypeVar("Result")


class SingleFlight(Generic[Result]):
    """Work whose result all callers share that come while it runs. A later caller starts it again."""

    def __init__(self, work: Callable[[], Result], name: str) -> None:
        self._work = work
        self._name = name
        self._lock = threading.Lock()
        self._under_way: Future[Result] | None = None

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
        try:
            result = self._work()
        except BaseException as error:
            self._end()
            promised.set_exception(error)
        else:
            self._end()
            promised.set_result(result)

    def _end(self) -> None:
        with self._lock:
            self._under_way = None
