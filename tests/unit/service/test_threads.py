"""The turns of large bodies."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest
from starlette.requests import Request

from sharequeue.service.admission import Threads


def request(length: str) -> Request:
    return Request({"type": "http", "headers": [(b"content-length", length.encode())], "client": None})


@pytest.mark.parametrize(
    ("length", "is_small"),
    [
        ("0", True),
        ("65536", True),
        ("000000000065536", True),
        ("65537", False),
        ("000000000900000", False),
        ("1" + "0" * 30, False),
        ("0" * 5_000 + "900000", False),
        ("+5", False),
        ("", False),
    ],
)
def test_only_small_bodies_do_not_wait_for_a_turn(length: str, is_small: bool) -> None:
    """A caller has two turns for large bodies. The number decides what is large, not how it is written."""

    async def admitted() -> bool:
        threads = Threads()
        async with AsyncExitStack() as large:
            for _ in range(2):
                await large.enter_async_context(threads.room_for(request("900000")))
            with anyio.move_on_after(0):
                async with threads.room_for(request(length)):
                    return True
        return False

    assert anyio.run(admitted) is is_small
