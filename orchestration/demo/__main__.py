"""The steps of the demo: stack, input, group, runs until drained, summary.

Every step first checks what is done already, so that a demo that was killed at any point continues there,
and a second one finds nothing to do.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dagster_postgres.utils import DagsterPostgresException
from rich.console import Console
from sqlalchemy.exc import DBAPIError

from orchestration.demo import summary
from orchestration.demo.position import Position, look
from orchestration.demo.queue import GROUP, NAME, QUEUE, TOPIC
from orchestration.demo.runs import Launcher, RunOutcome, open_instance, sole_demo
from orchestration.demo.waiting import Holder, Holders, wait_for_holders
from sharequeue.database import Database
from sharequeue.domain.errors import BrokerNotAvailable, CoordinatorNotAvailable, ShareError, first_line
from sharequeue.domain.settings import SettingMissing, Settings
from sharequeue.kafka.topics import Topics
from sharequeue.local import stack
from sharequeue.local.home import Home
from sharequeue.local.preflight import StackError
from sharequeue.state import State

FLIGHTS = 336_776
WIDTH_OF_A_LOG = 110
RUNS_WITHOUT_PROGRESS = 3
"""After this many runs in a row that fail, or make no progress, the demo ends."""


RESTARTS = 3
"""How often the demo starts again when a server goes away."""
LOOK_AFTER_SECONDS = 2.0

_SERVER_GONE = (DBAPIError, DagsterPostgresException, BrokerNotAvailable, CoordinatorNotAvailable)


class NoProgress(Exception):
    """Runs make no progress; the message has the last run's reason and its log."""


@dataclass(slots=True)
class Wanted:
    """The requested input: the first ``records`` flights, and ``more`` beyond the existing ones, once."""

    records: int
    more: int
    seconds: float | None
    """The time after which a run starts no new round; None for the value in the group's `defs.yaml`."""


class InputNotThere(Exception):
    """The flights are not in the topic; the message has the reason."""


class Demo:
    """One demo against one stack."""

    def __init__(
        self, console: Console, settings: Settings, database: Database, topics: Topics, launcher: Launcher
    ) -> None:
        self.console = console
        self.settings = settings
        self.database = database
        self.state = State(database)
        self.topics = topics
        self.launcher = launcher
        self._look_again_at = 0.0

    def say(self, line: str) -> None:
        """Print one short line of progress."""
        _print(self.console, line)

    def look(self) -> Position:
        """Return the position of the group."""
        return look(self.state, self.topics, GROUP, TOPIC)

    def produce(self, wanted: Wanted) -> None:
        """Produce the flights that are missing in the input topic."""
        from pipelines.flights.producer import NotProduced, TopicInUse, extra, produce
        from pipelines.flights.records import FlightsMissing

        began = time.monotonic()
        try:
            with self.console.status("producing flights") as status:
                made = produce(
                    self.settings,
                    limit=wanted.records,
                    progress=lambda done, total: status.update(f"producing flights: {done:,} of {total:,}"),
                )
                new = made.new
                if wanted.more:
                    made = extra(self.settings, wanted.more)
                    new += made.new
                    wanted.more = 0
        except (FlightsMissing, NotProduced, TopicInUse) as error:
            raise InputNotThere(str(error)) from error
        produced = f", {new:,} produced in {time.monotonic() - began:.1f} s" if new else ""
        self.say(f"topic        {TOPIC}: {made.total:,} records{produced}")

    def drain(self, holders: Holders, max_seconds: float | None) -> tuple[int, float, float]:
        """Launch runs until nothing is left; return their number, their seconds, and those of their rounds. Raises
        NoProgress.
        """
        launched, seconds, in_rounds, idle = 0, 0.0, 0.0, 0
        while not (position := self._wait(holders)).done:
            launched += 1
            outcome = self._run(launched, max_seconds)
            seconds += outcome.seconds
            in_rounds += outcome.rounds_seconds
            moved = bool(outcome.leased) or self._moved(position)
            idle = 0 if outcome.succeeded and moved else idle + 1
            if idle >= RUNS_WITHOUT_PROGRESS:
                why = outcome.reason or f"{self.look().lag:,} records do not move"
                raise NoProgress(f"{idle} runs in a row made no progress: {why}. The last log: {outcome.log}")
        return launched, seconds, in_rounds

    def _run(self, number: int, max_seconds: float | None) -> RunOutcome:
        before = self.look()
        self.say(
            f"run {number}        {before.lag:,} records to process, {before.archiving:,} dead letters to write"
        )
        with self.console.status("starting") as status:

            def watch(stage: str) -> None:
                status.update(f"run {number}: {stage}")
                self._look_after_the_stack()

            outcome = self.launcher.launch(max_seconds, watch)
        after = self.look()
        name = outcome.run_id[:8] or "?"
        if outcome.succeeded:
            self.say(
                f"             {name}: {outcome.rounds} rounds, {outcome.leased or 0:,} records leased, "
                f"lag {after.lag:,}, {outcome.seconds:.1f} s"
            )
        else:
            self.say(f"             {name} failed after {outcome.seconds:.1f} s: {outcome.reason}")
            self.say(f"             its log: {outcome.log}")
        return outcome

    def _look_after_the_stack(self) -> None:
        """Start stopped servers again: the run's clients reconnect to them."""
        if time.monotonic() < self._look_again_at:
            return
        died = [component.name for component in stack.status(self.settings.home) if component.state == "died"]
        if died:
            self.say(f"             {', '.join(died)} died: starting again what is not running")
            stack.up(self.settings.home, lambda line: None)
        self._look_again_at = time.monotonic() + LOOK_AFTER_SECONDS

    def _moved(self, before: Position) -> bool:
        after = self.look()
        return (after.lag, after.waiting, after.archiving) != (before.lag, before.waiting, before.archiving)

    def _wait(self, holders: Holders) -> Position:
        printed: set[str] = set()
        with self.console.status("looking") as status:

            def say(found: list[Holder]) -> None:
                for holder in found:
                    if f"{holder.who} {holder.what}" not in printed:
                        printed.add(f"{holder.who} {holder.what}")
                        self.say(f"waiting      {holder}")
                status.update(f"waiting: {max(found, key=lambda holder: holder.seconds)}")

            return wait_for_holders(self.look, holders, self.state.sweep, say)

    def show(self) -> None:
        """Print the summary's tables."""
        figures = summary.Figures(
            position=self.look(),
            counts=tuple(c for c in self.state.figures.delivery_counts(GROUP) if c.topic == TOPIC),
            dead_letters=tuple(self.state.dead_letters.written(GROUP)),
            checks=tuple(self.launcher.checks()),
        )
        summary.show(self.console, figures)


def run(console: Console, home: Path | None, wanted: Wanted) -> None:
    """Run the whole demo."""
    began = time.monotonic()

    def say(line: str) -> None:
        _print(console, line)

    info = stack.up(home, say)
    settings = Settings.load(info.home)
    up = time.monotonic() - began
    with (
        sole_demo(Home.at(settings.home), say) as lock,
        Database.open(settings) as database,
        Topics(settings) as topics,
        open_instance(settings) as instance,
    ):
        launcher = Launcher(settings, instance, lock)
        demo = Demo(console, settings, database, topics, launcher)
        demo.produce(wanted)
        QUEUE.configure(database)
        for run_id in launcher.bury():
            say(f"run {run_id[:8]} of an earlier demo was killed")
        to_do = demo.look().lag
        launched, seconds, in_rounds = demo.drain(Holders(database, instance, GROUP), wanted.seconds)
        position = demo.look()
        if launched:
            say(f"\nDrained: {position.total:,} records in the topic, lag 0.")
            demo.show()
            runs = "1 run" if launched == 1 else f"{launched} runs"
            took = f"stack {up:.1f} s, {runs} {seconds:.1f} s, of which the rounds {in_rounds:.1f} s"
            say(f"  took          {time.monotonic() - began:.1f} s: {took}")
            if in_rounds:
                say(f"  rate          {to_do / in_rounds:,.0f} records a second in the rounds")
        else:
            say(f"\nNothing left to do: {position.total:,} records in the topic, lag 0. No run was launched.")
            demo.show()
        summary.show_places(console, settings)


def _print(console: Console, line: str, style: str | None = None) -> None:
    console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run the demo; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m orchestration.demo",
        description=f"Run the job {NAME} until share group {GROUP} is drained.",
    )
    parser.add_argument("--home", type=Path, help="data folder (default: SHAREQUEUE_HOME, or .sharequeue)")
    parser.add_argument("--records", type=int, default=FLIGHTS, help="number of flights in the topic")
    parser.add_argument(
        "--more", type=int, default=0, help="produce this many flights beyond the existing ones"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="seconds after which a run starts no new round (default: the value in defs.yaml)",
    )
    given = parser.parse_args(arguments)
    wanted = Wanted(given.records, given.more, given.seconds)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_OF_A_LOG)
    try:
        for attempt in range(RESTARTS + 1):
            try:
                run(console, given.home, wanted)
                break
            except _SERVER_GONE as error:
                if attempt == RESTARTS:
                    raise
                reason = first_line(error)
                _print(console, f"\nA server went away ({reason}). Starting again from the current state.\n")
    except KeyboardInterrupt:
        console.print(
            "\nStopped. `make demo` carries on from here; `make down` stops the stack.", markup=False
        )
        return 130
    except (StackError, SettingMissing, ShareError, NoProgress, InputNotThere, *_SERVER_GONE) as error:
        _print(console, f"\n{error}", style="red")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
