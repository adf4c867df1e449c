"""What becomes of the records of a poll that was cancelled."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import IllegalStateException, Message, Messages

from sharequeue import AIOShareConsumer, ShareConsumer, WakeupException
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
        assert not late.inner._handover.outbox
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
        assert not late.inner._handover.outbox

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


@pytest.fixture
def closable() -> Iterator[Any]:
    """Give a consumer without servers that can be closed."""
    with consumer_of() as inner:
        inner._database = SimpleNamespace(close=lambda: None)
        inner._fetcher.release_all = lambda _: None
        yield inner


def test_closed_twice_and_called_afterwards(closable: Any) -> None:
    """As the synchronous one: a second close does nothing, each other call raises IllegalStateException."""

    async def program() -> None:
        consumer = awaitable(closable)
        await consumer.close()
        await consumer.close()
        message = Message("t", 0, 0)
        for call in (
            consumer.subscribe(["t"]),
            consumer.unsubscribe(),
            consumer.subscription(),
            consumer.poll(0),
            consumer.acknowledge(message),
            consumer.acknowledge_offset("t", 0, 0),
            consumer.commit_sync(),
            consumer.commit_async(),
            consumer.lock_remaining(message),
            consumer.client_instance_id(),
            consumer.metrics(),
            consumer.set_sasl_credentials("u", "p"),
            consumer.set_acknowledgement_commit_callback(None),
        ):
            with pytest.raises(IllegalStateException, match="Share consumer closed"):
                await call
        async with consumer:
            pass

    asyncio.run(program())


def test_close_beside_polls(closable: Any) -> None:
    """One that waits ends with WakeupException; one that waits for its turn, and one that comes later, is refused."""

    async def program() -> list[Any]:
        consumer = awaitable(closable)
        polls = [asyncio.ensure_future(consumer.poll()) for _ in range(2)]
        while not closable._handover._polling:
            await asyncio.sleep(0.001)
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0)
        polls.append(asyncio.ensure_future(consumer.poll()))
        return await asyncio.wait_for(asyncio.gather(*polls, closing, return_exceptions=True), 60)

    ended = asyncio.run(program())
    assert list(map(type, ended)) == [
        WakeupException,
        IllegalStateException,
        IllegalStateException,
        type(None),
    ]
    assert closable._guard.closed


def test_a_close_that_is_cancelled_goes_on(closable: Any) -> None:
    """Another one waits for its end."""
    let_go = threading.Event()
    closable._fetcher.release_all = lambda _: let_go.wait(60)

    async def program() -> None:
        consumer = awaitable(closable)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.close(), 0.05)
        let_go.set()
        await consumer.close()
        assert consumer._thread._shutdown

    asyncio.run(program())


def test_records_that_nobody_has_seen_are_not_polled_after_close(late: Late) -> None:
    """They are given back."""

    async def program() -> None:
        consumer = awaitable(late.inner)
        late.inner.close = lambda timeout: None
        await late.cancelled(consumer)
        late.let_go.set()
        await consumer.close()
        with pytest.raises(IllegalStateException, match="Share consumer closed"):
            await consumer.poll(0)

    asyncio.run(program())


def test_a_fork_s_copy_is_refused(closable: Any) -> None:
    """And its close does nothing; neither waits for a thread that is not there."""
    consumer = awaitable(closable)
    asyncio.run(consumer.subscription())
    child = os.fork()
    if child == 0:
        right = False
        with suppress(BaseException):
            with pytest.raises(IllegalStateException, match="create one in each process"):
                asyncio.run(asyncio.wait_for(consumer.subscription(), 20))
            asyncio.run(asyncio.wait_for(consumer.close(), 20))
            right = True
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_it_has_every_method() -> None:
    """Whatever is public on the synchronous one, but the helper that this one uses."""
    public = {name for name in dir(ShareConsumer) if not name.startswith("_")} - {"forget_wakeup"}
    assert public <= set(dir(AIOShareConsumer))
