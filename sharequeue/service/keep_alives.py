"""Collect the heartbeats of thousands of members into few calls of the database.

Heartbeats that only keep a member alive are collected for a hundredth of a second, and sent in one call
(`heartbeats.keep_alive`). Any other heartbeat is a separate call; so is each one that this call does not process, and
every heartbeat while this replica does not check all groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.domain.errors import ShareError, first_line
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.heartbeats import HeartbeatRequest, HeartbeatResponse, is_keep_alive, keep_alive

_log = logging.getLogger(__name__)

GATHER_SECONDS = 0.01
"""How long heartbeats are collected: the time that each one takes longer; 2,000 per second become 100 calls."""
MOST = 1_000
"""The maximum number of heartbeats in one call; more wait for the next one."""

Responses = list[HeartbeatResponse | None]
Waiting = tuple[HeartbeatRequest, str, asyncio.Future[HeartbeatResponse | None]]


class KeepAlives:
    """The heartbeats of one replica. `run` runs a call of the database in a thread; `keeps_up` returns whether this
    replica checks all groups."""

    def __init__(
        self,
        database: Database,
        configs: ServiceConfigs,
        run: Callable[[Callable[[], Responses]], Awaitable[Responses]],
        keeps_up: Callable[[], bool],
    ) -> None:
        self._database = database
        self._configs = configs
        self._run = run
        self._keeps_up = keeps_up
        self._waiting: list[Waiting] = []
        self._sender: asyncio.Task[None] | None = None

    async def response(self, request: HeartbeatRequest, principal: str) -> HeartbeatResponse | None:
        """Return the response to a heartbeat that only keeps a member alive; None for any other."""
        if not is_keep_alive(request) or not self._keeps_up():
            return None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[HeartbeatResponse | None] = loop.create_future()
        self._waiting.append((request, principal, future))
        if self._sender is None or self._sender.done():
            self._sender = loop.create_task(self._send())
        return await future

    async def _send(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_SECONDS)
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            asked = [(request, principal) for request, principal, _ in batch]
            try:
                responses = await self._run(partial(keep_alive, self._database, asked, self._configs))
            except (SQLAlchemyError, ShareError) as error:
                _log.warning("%d heartbeats are processed one by one: %s", len(batch), first_line(error))
                responses = [None] * len(batch)
            except BaseException:
                for _, _, future in batch:
                    future.cancel()
                raise
            for (_, _, future), response in zip(batch, responses, strict=True):
                if not future.done():
                    future.set_result(response)
