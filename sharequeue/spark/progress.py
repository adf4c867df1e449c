"""The progress of a run, and its display.

A terminal and a notebook show a bar, everything else one line for each round. Progress is written to stderr, so that
stdout has only results; a notebook shows it below the cell. If stderr is closed, full, or its reader has ended,
nothing is shown: a run never fails because of its progress.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from typing import Any

__all__ = ["Progress", "ProgressCallback", "shown_progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The position of a run, reported when a stage begins and when a round ends (stage `done`). Two rounds may run at
    once.

    `left` are the records that the run may still lease, as far as it knows, without records that others hold, that
    wait for a later time, or that are beyond the run's bounds. It is None before the first check.
    """

    round: int
    stage: str
    leased: int
    records_done: int
    seconds: float
    lag: int | None
    left: int | None = None

    @property
    def rate(self) -> float:
        """Records processed per second since the run began."""
        return self.records_done / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds for the remaining records at the rate so far; None before there is a rate."""
        return None if self.left is None or not self.records_done else self.left / self.rate

    def __str__(self) -> str:
        parts = [f"round {self.round}: "]
        if self.stage != "done":
            parts[0] += f"{self.stage} {self.leased:,} records" if self.leased else self.stage
        if self.stage == "done" or self.records_done:
            done = f"{self.records_done:,} records done"
            parts = [f"{parts[0]}{done}"] if self.stage == "done" else [*parts, done]
            parts.append(f"{self.rate:,.0f}/s")
        if self.lag is not None:
            parts.append(f"lag {self.lag:,}")
        if self.seconds_left:
            parts.append(f"{self.seconds_left:,.0f} s left")
        return ", ".join(parts)


ProgressCallback = Callable[[Progress], None]


@contextmanager
def shown_progress(progress: bool | ProgressCallback) -> Iterator[ProgressCallback]:
    """Yield the callback for a run's progress: True shows it, False does not, a function receives it instead."""
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield lambda progress: None
    elif (display := _notebook_display()) is not None:
        yield _oldest(_notebook(display))
    elif _is_terminal():
        with _terminal() as show:
            yield _oldest(show)
    else:
        yield _line


def _is_terminal() -> bool:
    # In a process without stderr it is None; if stderr was closed, its file raises.
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def _oldest(show: ProgressCallback) -> ProgressCallback:
    """Show only the first of the running rounds: a bar that switches between two rounds is not readable."""
    done = 0

    def show_oldest(progress: Progress) -> None:
        nonlocal done
        if progress.stage == "done":
            done = progress.round
        if progress.round <= done + 1:
            show(progress)

    return show_oldest


def _line(progress: Progress) -> None:
    if progress.stage == "done" and sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(progress, file=sys.stderr, flush=True)


@contextmanager
def _terminal() -> Iterator[ProgressCallback]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bar

    class Quiet(Console):
        """A console that stops its output when its reader has ended; rich would end the process."""

        def on_broken_pipe(self) -> None:
            self.quiet = True

    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}"))
    bar = Bar(*columns, console=Quiet(stderr=True))
    task = bar.add_task("starting", total=None)

    def show(progress: Progress) -> None:
        total = None if progress.left is None else progress.records_done + progress.left
        with suppress(OSError):
            bar.update(task, description=str(progress), completed=progress.records_done, total=total)

    with suppress(OSError):
        bar.start()
    try:
        yield show
    finally:
        with suppress(OSError):
            bar.stop()


def _notebook_display() -> Callable[..., Any] | None:
    """Return the notebook's `display` if this process is a notebook kernel; None otherwise."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return ipython.display.display if shell is not None and hasattr(shell, "kernel") else None


def _notebook(display: Callable[..., Any]) -> ProgressCallback:
    handle: Any = None

    def show(progress: Progress) -> None:
        nonlocal handle
        total = 0 if progress.left is None else progress.records_done + progress.left
        bar = f'<progress value="{progress.records_done}" max="{total}"></progress> ' if total else ""
        shown = {"text/plain": str(progress), "text/html": f"{bar}{escape(str(progress))}"}
        if handle is None:
            handle = display(shown, raw=True, display_id=True)
        else:
            handle.update(shown, raw=True)

    return show
