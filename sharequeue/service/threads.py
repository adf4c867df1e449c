"""The threads in which the synchronous calls of requests run.

There are as many at once as a pool has connections, and not all of them are for one caller. Heartbeats have their own
threads, so that they never queue behind other requests: reads never cost a member its session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request

from sharequeue.service.callers import Throttled, client_is_not_late

__all__ = ["CALLER", "POOL_SIZE", "Caller", "Threads"]

POOL_SIZE = 10
"""Connections to the database, and concurrent calls to it; the number applies to heartbeats, and again to all
other requests."""

_TURNS = 2
"""Concurrent heartbeats of one group: they wait for each other in the database anyway, each holding a thread."""
_THREADS_OF_ONE = {True: 8, False: 4}
"""Concurrent calls of one caller, heartbeats and others, of the `POOL_SIZE`: there is always a thread for another
caller. Fewer of the others, because they use much CPU time: beside 24 requests for a list of 4,000 groups a heartbeat
took 782 ms (p99) with eight of them and 412 with three, at a load of 10 to 14 on two cores."""
_LONGEST_LINE = 2_000
"""Waiting calls of one caller. The requests of a disconnected client may still be waiting."""
_SMALL_BODY_BYTES = 64 << 10

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request."""

    name: str = ""
    """Its principal; before that is known, its network."""
    beats: bool = False
    """Whether the request is a heartbeat."""


CALLER: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 - it is frozen
"""The caller of this task's request."""


class Threads:
    """The threads of one replica, and the callers that wait for one."""

    def __init__(self) -> None:
        self._limiters: dict[bool, anyio.CapacityLimiter] = {}
        self._turns: WeakValueDictionary[Hashable, anyio.Semaphore] = WeakValueDictionary()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run a synchronous call without blocking others. Raises Throttled if too many calls of the caller wait."""
        async with self._share():
            return await self.run_at_once(work)

    async def run_in_turn(self, group_id: str, work: Callable[[], Result]) -> Result:
        """Run a heartbeat of a group: heartbeats that wait for a locked group must not occupy all threads. The limit
        of the caller applies first, so that a caller outside the group does not delay its members."""
        own = self._turn((CALLER.get().name, group_id))
        async with own, self._share(), self._turn(group_id):
            return await self.run_at_once(work)

    async def run_at_once(self, work: Callable[[], Result]) -> Result:
        """Run a synchronous call in the next free thread, without the limit of its caller."""
        beats = CALLER.get().beats
        if beats not in self._limiters:
            self._limiters[beats] = anyio.CapacityLimiter(POOL_SIZE)
        return await run_sync(work, limiter=self._limiters[beats], abandon_on_cancel=True)

    @asynccontextmanager
    async def room_for(self, request: Request) -> AsyncIterator[None]:
        """Wait until a request's whole body may be read: two at a time for one caller if large, or of unknown
        size."""
        length = request.headers.get("content-length", "")
        # The first digits are enough, but not leading zeros.
        if length.isdecimal() and int(length.lstrip("0")[:9] or 0) <= _SMALL_BODY_BYTES:
            yield
            return
        turn = self._turn(("large", CALLER.get()))
        with client_is_not_late(request):
            await turn.acquire()
        try:
            yield
        finally:
            turn.release()

    @asynccontextmanager
    async def _share(self) -> AsyncIterator[None]:
        caller = CALLER.get()
        share = self._turn(("caller", caller), _THREADS_OF_ONE[caller.beats])
        if share.statistics().tasks_waiting >= _LONGEST_LINE:
            raise Throttled(1.0)
        async with share:
            yield

    def _turn(self, of: Hashable, at_once: int = _TURNS) -> anyio.Semaphore:
        turns = self._turns.get(of)
        if turns is None:
            turns = self._turns[of] = anyio.Semaphore(at_once)
        return turns
