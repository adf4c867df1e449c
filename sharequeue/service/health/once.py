"""How is something asked for by many worked out once at a time, and waited for no longer than it is worth?

A probe and a scrape come again every few seconds, whether or not the last one was answered. While a server stands
still, each would hold a thread and a connection. So there is at most one thread at work for all who ask.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

__all__ = ["Once"]

Result = TypeVar("Result")


class Once(Generic[Result]):
    """Work that is done for all who ask while it is under way. Whoever asks after that has it done anew."""

    def __init__(self, work: Callable[[], Result], name: str) -> None:
        self._work = work
        self._name = name
        self._lock = threading.Lock()
        self._under_way: Future[Result] | None = None

    async def get(self, seconds: float) -> Result:
        """Return the result. Raises what the work raises, and TimeoutError after so many seconds; it goes on then."""
        waiting = asyncio.wrap_future(self._begun())
        # Shielded: it is not ours to cancel.
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
