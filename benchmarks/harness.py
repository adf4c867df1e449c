"""The runner of cases, which prints their results.

Sides take turns, so that a busy machine slows all of them; medians are compared. The first round is a warm-up and is
discarded; the first six are where a side takes less time than its JVM needs to compile it. The goal, the command, the
machine, its load and the versions are printed under each table.
"""

from __future__ import annotations

import inspect
import os
import platform
import statistics
import subprocess
import sys
import time
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import table as rich_table
from rich.console import Console

REPOSITORY = Path(__file__).parents[1]
WARM_UP = 6
"""Rounds until a JVM has compiled what a second of Spark's work needs."""
Side = Callable[[], float]
Measured = Mapping[str, Sequence[float]]
"""The figures of each side, one per round."""
MADE_OF: dict[str, str] = {"Python": platform.python_version()}
"""Names and versions of the software that a case uses; servers add theirs when they start."""
median = statistics.median


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a case's results."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """A measuring function, whose docstring is the title, and its goal."""

    names: tuple[str, ...]
    goal: str
    measure: Callable[..., Iterator[Table]]
    short: Mapping[str, Any]

    def values(self, full: bool, changes: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters of the goal or of the short form, with changes from the command line."""
        values = {name: each.default for name, each in inspect.signature(self.measure).parameters.items()}
        values |= {} if full else self.short
        for name, text in changes.items():
            if name not in values:
                raise SystemExit(
                    f"{self.names[0]} has no parameter {name}; expected one of {', '.join(values)}"
                )
            try:
                values[name] = (
                    text if isinstance(values[name], str) else type(values[name])(literal_eval(text))
                )
            except (ValueError, SyntaxError) as error:
                raise SystemExit(f"{name}={text}: expected a value such as {values[name]}") from error
        return values

    def parameters(self) -> str:
        """Return the parameters of the goal and of the short form, for the list."""
        full, short = self.values(True, {}), self.values(False, {})
        return "  ".join(f"{name}={short[name]} (--full: {full[name]})" for name in full)


CASES: dict[str, Case] = {}
"""The cases of all imported modules, by the names of their functions."""


def case(
    names: str, goal: str, **short: Any
) -> Callable[[Callable[..., Iterator[Table]]], Callable[..., Iterator[Table]]]:
    """Make a function a case: its defaults are the sizes of the goal, ``short`` has those of the short form."""

    def register(measure: Callable[..., Iterator[Table]]) -> Callable[..., Iterator[Table]]:
        name = measure.__name__
        CASES[name] = Case((*names.split(), name), goal, measure, short)
        return measure

    return register


def run(case: Case, *, full: bool, changes: Mapping[str, str]) -> None:
    """Run a case and print its tables, each as soon as it is complete."""
    options = [*(f"{name}={text}" for name, text in changes.items()), *(["--full"] if full else [])]
    command = " ".join(["python -m benchmarks", case.names[0], *options])
    console = Console(width=118, highlight=False)
    console.print(f"{', '.join(case.names[:-1]) or case.names[-1]}: {case.measure.__doc__}")
    for found in case.measure(**case.values(full, changes)):
        shown = rich_table.Table(title=found.title or None, title_justify="left")
        for at, heading in enumerate(found.headings):
            shown.add_column(heading, justify="left" if at == 0 else "right")
        for row in found.rows:
            shown.add_row(*row)
        console.print(shown)
        for note in found.notes:
            console.print(note)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    versions = " · ".join(f"{name} {version}" for name, version in MADE_OF.items())
    console.print(f"goal: {case.goal}")
    machine = f"{os.cpu_count()} × {_processor()}, load {load}"
    console.print(f"{command} · {datetime.now(UTC):%Y-%m-%d %H:%M} UTC · {machine} · {versions}")


def in_turn(
    sides: Mapping[str, Side], rounds: int, after: Callable[[], None] = lambda: None, *, warm_up: int = 1
) -> dict[str, list[float]]:
    """Return the figure of each side in each round, after some that warm up; ``after`` is called after every side."""
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(warm_up + rounds):
        for name, side in sides.items():
            began, figure = time.monotonic(), side()
            if number >= warm_up:
                measured[name].append(figure)
            if time.monotonic() - began > 1:
                say(f"{name}: {figure:.2f}")
            after()
    return measured


def side_rows(measured: Measured, base: str = "", records: int = 0) -> list[tuple[str, ...]]:
    """Return a row for each side: seconds, range, records/s, and its time as a multiple of ``base``'s."""
    return [
        (
            name,
            number(median(figures)),
            spread(figures),
            *([f"{records / median(figures):,.0f}"] if records else []),
            *([f"{median(figures) / median(measured[base]):.2f}"] if base else []),
        )
        for name, figures in measured.items()
    ]


def side_table(
    measured: Measured, base: str, records: int = 0, title: str = "", notes: Sequence[str] = ()
) -> Table:
    """Return the table of ``side_rows``. The multiple of a side is its time divided by ours."""
    rounds = len(measured[base])
    records_heading = ["records/s"] if records else []
    headings = ("side", f"seconds, median of {rounds}", "range", *records_heading, f"× the time of: {base}")
    return Table(headings, side_rows(measured, base, records), title, notes)


def seconds(call: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def number(figure: float) -> str:
    """Format a figure with three digits, or with more before the decimal point."""
    return f"{figure:,.{3 if figure < 1 else 2 if figure < 100 else 0}f}"


def spread(figures: Sequence[float], unit: float = 1.0) -> str:
    """Format the smallest and the largest figure, in a unit."""
    return f"{number(min(figures) * unit)} … {number(max(figures) * unit)}"


def percentile(figures: Sequence[float], percent: int) -> float:
    """Return a percentile; for few figures the largest one."""
    ordered = sorted(figures)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def say(line: str) -> None:
    """Print progress outside the table."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def part(target: str, *arguments: object, cores: set[int] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run ``module:function`` of the benchmarks in a separate process, on the given cores; kill it at the end."""
    command = [sys.executable, "-m", "benchmarks", "--part", f"benchmarks.{target}", *map(str, arguments)]
    pin = None if cores is None else lambda: os.sched_setaffinity(0, cores)
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=pin
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine()
    )
