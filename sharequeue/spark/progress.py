"""The progress of a run, and its display.

A terminal shows one line that changes, everything else a line for each round, and for each stage that takes longer
than five seconds. Progress is written to stderr, so
that stdout has only results. If stderr is closed, full, or its reader has ended, nothing is shown: a run never fails
because of its progress.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sharequeue.domain.names import plural
from sharequeue.spark.waits import WAIT_SECONDS

__all__ = ["Progress", "ProgressCallback", "shown_progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The position of a run, reported when a stage begins and when a round ends (stage `done`). Two rounds may run at
    once. `seconds` are those since the first round began.
    """

    round: int
    stage: str
    leased: int
    records_done: int
    seconds: float
    lag: int | None

    @property
    def rate(self) -> float:
        """Records processed per second of the rounds."""
        return self.records_done / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        parts = [f"round {self.round}: "]
        if self.stage != "done":
            parts[0] += f"{self.stage} {plural(self.leased, 'record')}" if self.leased else self.stage
        if self.stage == "done" or self.records_done:
            done = f"{plural(self.records_done, 'record')} done"
            parts = [f"{parts[0]}{done}"] if self.stage == "done" else [*parts, done]
            parts.append(f"{self.rate:,.0f}/s")
        if self.lag is not None:
            parts.append(f"lag {self.lag:,}")
        return ", ".join(parts)


ProgressCallback = Callable[[Progress], None]


@contextmanager
def shown_progress(progress: bool | ProgressCallback) -> Iterator[ProgressCallback]:
    """Yield the callback for a run's progress: True shows it, False does not, a function receives it instead."""
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield lambda progress: None
    # In a process without stderr it is None; if stderr was closed, its file raises.
    elif sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty():
        with _terminal() as show:
            yield show
    else:
        with _lines() as show:
            yield show


@contextmanager
def _lines() -> Iterator[ProgressCallback]:
    waiting: dict[int, threading.Timer] = {}

    def show(progress: Progress) -> None:
        # Two rounds may run at once, each in a stage of its own.
        if (timer := waiting.pop(progress.round, None)) is not None:
            timer.cancel()
        if progress.stage == "done":
            _write(progress)
        elif progress.stage != "waiting":  # for records: that is not a delay
            waiting[progress.round] = timer = threading.Timer(WAIT_SECONDS, _write, (progress,))
            timer.daemon = True
            timer.start()

    try:
        yield show
    finally:
        for timer in waiting.values():
            timer.cancel()


def _write(progress: Progress) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(progress, file=sys.stderr, flush=True)


@contextmanager
def _terminal() -> Iterator[ProgressCallback]:
    from rich.console import Console

    class Quiet(Console):
        """A console that stops its output when its reader has ended; rich would end the process."""

        def on_broken_pipe(self) -> None:
            self.quiet = True

    done = 0

    def show(progress: Progress) -> None:
        nonlocal done
        if progress.stage == "done":
            done = progress.round
        # Of two rounds only the first: a line that switches between them is not readable.
        if progress.round <= done + 1:
            status.update(str(progress))

    with Quiet(stderr=True).status("starting") as status:
        yield show
