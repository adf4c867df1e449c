"""What becomes of the records of a poll that was cancelled?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Messages

from sharequeue import AIOShareConsumer, ShareConsumer
from tests.unit.consumer.stub import consumer_of, put


class Late:
    """A poll that has its records before it is woken up, and ends only when it is let go."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.begun, self.let_go = threading.Event(), threading.Event()
        inner.poll = self.poll
        put(inner, 0, 2)

    def poll(self, _: float) -> Messages:
        del self.inner.poll
        self.begun.set()
        self.let_go.wait(120)
        messages = self.inner.poll(0)
        ShareConsumer.wakeup(self.inner)
        return messages  # type: ignore[no-any-return]

    async def cancelled(self, consumer: AIOShareConsumer) -> None:
        """Cancel the poll; it goes on behind."""
        self.inner.wakeup = lambda: None
        await cancel(consumer, self.begun)
        del self.inner.wakeup


async def cancel(consumer: AIOShareConsumer, begun: threading.Event | None = None) -> None:
    """Cancel a poll once it has begun."""
    polling = asyncio.ensure_future(consumer.poll(0))
    await asyncio.sleep(0.01)
    while begun is not None and not begun.is_set():
        await asyncio.sleep(0.001)
    polling.cancel()
    await asyncio.wait([polling])
    assert polling.cancelled()


@pytest.fixture(params=["implicit", "explicit"])
def late(request: pytest.FixtureRequest) -> Iterator[Late]:
    """Give a consumer without servers whose next poll is late."""
    with consumer_of(share_acknowledgement_mode=request.param) as inner:
        yield Late(inner)


def awaitable(inner: ShareConsumer) -> AIOShareConsumer:
    return AIOShareConsumer(consumer_class=lambda: inner)  # type: ignore[arg-type]


def test_what_nobody_has_seen_is_not_committed(late: Late) -> None:
    """It comes with the next poll, and may be acknowledged from then on; no wakeup is left for a commit."""

    async def program() -> None:
        consumer = awaitable(late.inner)
        await late.cancelled(consumer)
        late.let_go.set()
        assert await consumer.commit_sync(0) == {}
        await consumer.commit_async()
        assert not late.inner._fetcher.outbox
        messages = await consumer.poll(0)
        assert [message.offset() for message in messages] == [0, 1]
        if late.inner._config.explicit:
            for message in messages:
                await consumer.acknowledge(message)
        assert len(await consumer.commit_sync(0)) == 1  # no result in no time, and no WakeupException

    asyncio.run(program())


def test_cancelled_again_while_the_first_has_not_ended(late: Late) -> None:
    """The records come with the third poll."""

    async def program() -> None:
        consumer = awaitable(late.inner)
        await late.cancelled(consumer)
        await cancel(consumer)
        late.let_go.set()
        assert [message.offset() for message in await consumer.poll(0)] == [0, 1]
        assert not late.inner._fetcher.outbox

    asyncio.run(program())


@pytest.mark.parametrize("late", ["explicit"], indirect=True)
def test_acknowledged_while_a_cancelled_poll_ends(late: Late) -> None:
    """It waits for that poll's end, and is no call beside it."""

    async def program() -> None:
        consumer = awaitable(late.inner)
        await late.cancelled(consumer)
        threading.Timer(0.05, late.let_go.set).start()
        await consumer.acknowledge_offset("t", 0, 0)
        assert list(late.inner._in_hand[0].handed.values()) == [1, -1]

    asyncio.run(program())
