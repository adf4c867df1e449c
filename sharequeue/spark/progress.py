"""How does somebody see how far a run is?

On a terminal a bar, in a notebook a bar of its own, anywhere else a line a round. All of it goes to stderr, so that
stdout has results alone; a notebook shows it below the cell. A stderr that is closed, full, or whose reader is gone
shows nothing: no run fails because nobody looks at it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from html import escape
from typing import Any

from sharequeue.spark.report import Progress, ProgressCallback

__all__ = ["shown_progress"]


@contextmanager
def shown_progress(progress: bool | ProgressCallback) -> Iterator[ProgressCallback]:
    """Give what a run reports its progress to: True shows it, False does not, a function gets it instead."""
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
    # A process without a stderr has None, and one that closed it a file that raises.
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def _oldest(show: ProgressCallback) -> ProgressCallback:
    """Show the first of the rounds at work only: a bar that goes to and fro between two of them is not readable."""
    done = 0

    def told(progress: Progress) -> None:
        nonlocal done
        if progress.stage == "done":
            done = progress.round
        if progress.round <= done + 1:
            show(progress)

    return told


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
        """One that falls silent where its reader is gone; rich ends the process."""

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
    """The `display` of the notebook that this process is the kernel of; None in any other program."""
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
