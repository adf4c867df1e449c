"""Work that is done once for all concurrent callers."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise

from sharequeue.service.health.single_flight import SingleFlight


def test_work_rests_before_it_is_repeated() -> None:
    """However many ask for it without a pause: it takes a fifth of the time, in a thread of its own."""
    turns: list[tuple[float, float]] = []
    threads = set()

    def work() -> int:
        began = time.monotonic()
        threads.add(threading.current_thread().name)
        sum(range(200_000))
        turns.append((began, time.monotonic()))
        return len(turns)

    async def ask(flight: SingleFlight[int]) -> list[int]:
        return [await flight.get(60) for _ in range(4)]

    async def all_ask() -> list[list[int]]:
        flight = SingleFlight(work, "shared", rests=4)
        return await asyncio.gather(*(ask(flight) for _ in range(8)))

    assert max(max(each) for each in asyncio.run(all_ask())) == len(turns) < 32
    assert threads == {"shared"}
    for (began, ended), (again, _) in pairwise(turns):
        assert again - ended >= 4 * (ended - began)
