"""What a signal does once the consumer is closed."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace

from sharequeue import AIOShareConsumer
from tests.unit.consumer.stub import consumer_of


def test_a_closed_consumer_gives_the_signals_back() -> None:
    """The program ends by SIGTERM again, or does what it did; what was set since stays."""
    heard: list[int] = []

    def mine(number: int, _: object) -> None:
        heard.append(number)

    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        signal.signal(signal.SIGUSR1, mine)
        for awaitable in (False, True):
            with consumer_of() as consumer:
                consumer._database = SimpleNamespace(close=lambda: None)
                consumer._fetcher.release_all = lambda _: None
                consumer.stop_on_signal(*numbers)
                consumer.stop_on_signal(signal.SIGUSR1)
                signal.signal(signal.SIGUSR2, mine)
                if awaitable:
                    asyncio.run(AIOShareConsumer(consumer_class=lambda one=consumer: one).close())  # type: ignore[arg-type]
                else:
                    consumer.close()
                assert signal.getsignal(signal.SIGUSR1) is mine
                assert signal.getsignal(signal.SIGUSR2) is mine
                assert signal.getsignal(signal.SIGTERM) is before[2]
                signal.raise_signal(signal.SIGUSR1)
                assert not consumer.stopping
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert heard == [signal.SIGUSR1] * 2
