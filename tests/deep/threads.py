"""Work beside a test, in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def beside(
    stop: threading.Event, work: Sequence[Callable[[], object]], *, patience_s: float = 30
) -> Iterator[None]:
    """Run each of these in a thread while the block runs, then set `stop`, which ends them."""
    threads = [threading.Thread(target=each, daemon=True) for each in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(patience_s)
