"""The results in one screen: per partition, by delivery count, by cause, the checks, and the next
commands.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from rich.console import Console
from rich.table import Table

from orchestration.demo.position import Position
from orchestration.demo.queue import DEAD_LETTER_TOPIC, GROUP, NAME
from sharequeue.dagster.reports import OUTCOMES
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import ArchivedRun, DeliveryCount


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that the summary shows of the group, for all time, read at once."""

    position: Position
    counts: tuple[DeliveryCount, ...]
    dead_letters: tuple[ArchivedRun, ...]
    checks: tuple[dg.AssetCheckEvaluation, ...]


def show(console: Console, figures: Figures) -> None:
    """Print the tables."""
    console.print(_partitions(figures))
    console.print(_deliveries(figures.counts))
    console.print(f"  dead letters  {_causes(figures.dead_letters)}, in topic {DEAD_LETTER_TOPIC}")
    console.print(f"  checks        {_checks(figures.checks)}")


def show_places(console: Console, settings: Settings) -> None:
    """Print the location of the outputs and the next commands."""
    console.print(f"  outputs       {settings.output}")
    console.print(
        "                flights/ (Parquet by lease), flights-exceptions/ (with the reason of each),"
    )
    console.print("                flight_delays/delays.parquet (per carrier and day)")
    console.print("\n[bold]Next[/bold]")
    programs = _programs()
    for command, what in (
        ("make ui", f"see the runs of {NAME}, their reports and checks"),
        (f"{programs}sharequeue groups describe --group {GROUP}", "the group as an operator sees it"),
        (f"{programs}sharequeue dlq list {DEAD_LETTER_TOPIC}", "the dead letters, with their causes"),
        (
            f"{programs}python -m orchestration.demo --more 10000",
            "10,000 flights more, and process just those",
        ),
        ("make down", "stop; the data folder stays"),
    ):
        console.print(f"  {command:<62} {what}", highlight=False, soft_wrap=True)


def _programs() -> str:
    """Return the path prefix of this environment's programs, relative to the working directory if possible."""
    folder = Path(sys.executable).parent
    return f"{folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder}/"


def _partitions(figures: Figures) -> Table:
    accepted = Counter[int]()
    for count in figures.counts:
        if count.outcome == "accepted":
            accepted[count.partition] += count.records
    letters = Counter[int]()
    for run in figures.dead_letters:
        letters[run.share_partition.partition] += run.offsets.count
    table = _table("partition", "SPSO", "log end", "lag", "in flight", "accepted", "dead letters")
    statuses = figures.position.statuses
    for s in statuses:
        row = (s.spso, s.log_end, s.lag, s.in_flight, accepted[s.partition], letters[s.partition])
        table.add_row(f"{s.topic}-{s.partition}", *map(_number, row))
    table.add_section()
    sums = (sum(s.lag for s in statuses), sum(s.in_flight for s in statuses))
    totals = (figures.position.total, *sums, accepted.total(), letters.total())
    table.add_row("all", "", *map(_number, totals), style="bold")
    return table


def _deliveries(counts: Sequence[DeliveryCount]) -> Table:
    by_outcome: dict[str, dict[int, int]] = {}
    for count in counts:
        heights = by_outcome.setdefault(count.outcome, {})
        heights[count.delivery_count] = heights.get(count.delivery_count, 0) + count.records
    outcomes = [outcome for outcome in OUTCOMES if outcome in by_outcome]
    table = _table("delivered", *outcomes)
    for deliveries in sorted({d for heights in by_outcome.values() for d in heights}):
        times = "once" if deliveries == 1 else f"{deliveries} times"
        cells = [by_outcome[outcome].get(deliveries, 0) for outcome in outcomes]
        table.add_row(times, *(_number(cell) if cell else "" for cell in cells))
    return table


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column(first)
    for number in numbers:
        table.add_column(number, justify="right")
    return table


def _causes(dead_letters: Sequence[ArchivedRun]) -> str:
    causes = Counter[str]()
    for run in dead_letters:
        causes[run.cause] += run.offsets.count
    by_cause = ", ".join(f"{_number(records)} {cause}" for cause, records in sorted(causes.items()))
    return f"{_number(causes.total())} ({by_cause})" if causes else "none"


def _checks(checks: Sequence[dg.AssetCheckEvaluation]) -> str:
    failed = [f"{check.check_name} ({check.severity.value})" for check in checks if not check.passed]
    if not checks:
        return "none yet"
    if failed:
        return f"[red]{len(failed)} of {len(checks)} failed: {', '.join(failed)}[/red]"
    return f"[green]all {len(checks)} passed[/green]"


def _number(value: int) -> str:
    return f"{value:,}"
