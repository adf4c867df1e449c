"""The main job, through Dagster, Spark, Kafka and Postgres: on the first 20,000 flights in every run, on all 336,776
in a deep one, with the figures of the demo.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import pandas as pd
import pytest

from orchestration.demo.__main__ import main
from sharequeue.deadletters.letters import KAFKA_HEADERS
from sharequeue.state import State
from tests.e2e.kills import FLIGHTS, SERVERS, Follow, impatient, kill, process_of, until_leased
from tests.fixtures.demo import (
    GROUP,
    TOPIC,
    DemoStack,
    Fate,
    accepted_records,
    assert_drained,
    dead_letter_records,
)
from tests.reported import reported_lags

pytestmark = [pytest.mark.slow]


@dataclass(frozen=True)
class Figures:
    """How many flights there are, and how they end."""

    accepted: int
    rejected: int
    exhausted: int

    @property
    def flights(self) -> int:
        """All of them."""
        return self.accepted + self.rejected + self.exhausted


FIRST = Figures(accepted=19_758, rejected=187, exhausted=55)
ALL = Figures(accepted=327_346, rejected=8_255, exhausted=1_175)


@dataclass
class Drained:
    """A stack after its first demo: what that printed, and what must have become of each record."""

    stack: DemoStack
    figures: Figures
    printed: str
    fate: Fate


@pytest.fixture(
    scope="module",
    params=[pytest.param(FIRST, id="first"), pytest.param(ALL, id="all", marks=pytest.mark.deep)],
)
def drained(demo_stack: DemoStack, request: pytest.FixtureRequest) -> Drained:
    """Give the stack after one demo, everything accounted for."""
    figures: Figures = request.param
    printed = demo_stack.run("--records", str(figures.flights))
    return Drained(demo_stack, figures, printed, assert_drained(demo_stack))


def test_every_flight_has_one_outcome(drained: Drained) -> None:
    """Accepted, rejected and exhausted flights make up the whole input; none twice, none lost."""
    assert len(drained.fate.accepted) == drained.figures.accepted
    assert len(drained.fate.rejected) == drained.figures.rejected
    assert len(drained.fate.exhausted) == drained.figures.exhausted
    assert (FIRST.flights, ALL.flights) == (20_000, 336_776)


def test_the_manifest_counts_what_was_accepted(drained: Drained) -> None:
    """The manifest in Postgres says as many records as were accepted, as many as the files it names hold."""
    accepted = drained.figures.accepted
    with drained.stack.database() as database:
        state = State(database)
        assert sum(output.records for output in state.outputs.counted(GROUP, TOPIC)) == accepted
        assert accepted_records(drained.stack.settings, state).total() == accepted


def test_dead_letters_say_where_they_come_from_and_why(drained: Drained) -> None:
    """Each dead letter has Kafka's six headers: rejected at once, or delivered five times."""
    figures = drained.figures
    letters = dead_letter_records(drained.stack.settings)
    assert len(letters) == figures.rejected + figures.exhausted
    assert all(letter.header(name) is not None for letter in letters for name in KAFKA_HEADERS)
    assert Counter((letter.cause, letter.delivery_count) for letter in letters) == {
        ("rejected", 1): figures.rejected,
        ("exhausted", 5): figures.exhausted,
    }
    assert all(letter.value is not None for letter in letters)


def test_delivery_counts_are_exact(drained: Drained) -> None:
    """Without a kill everything ends at its first delivery, but the flights that wait for their arrival report."""
    with drained.stack.database() as database:
        found: Counter[tuple[str, int]] = Counter()
        for count in State(database).figures.delivery_counts(GROUP):
            found[count.outcome, count.delivery_count] += count.records
    figures = drained.figures
    assert found == {
        ("accepted", 1): figures.accepted,
        ("rejected", 1): figures.rejected,
        ("exhausted", 5): figures.exhausted,
    }


def test_the_summary_covers_every_accepted_flight(drained: Drained) -> None:
    """The delays per carrier and day are merged from all committed leases, each once."""
    summary = pd.read_parquet(drained.stack.settings.local_output / "flight_delays" / "delays.parquet")
    assert summary["flights"].sum() == drained.figures.accepted
    assert not summary.duplicated(["carrier", "day"]).any()


def test_reports_have_a_history(drained: Drained) -> None:
    """A run has left rows of each share-partition before its first lease, with all records waiting, and at its end,
    with lag 0."""
    with drained.stack.database() as database:
        lags = reported_lags(database, GROUP)
    assert sum(lags[:4]) == drained.figures.flights
    assert {*lags[-4:]} == {0}, drained.printed


def test_runs_are_seen_in_dagster_and_their_checks_passed(drained: Drained) -> None:
    """One run suffices, and every check passed."""
    assert drained.stack.run_statuses() == ["SUCCESS"]
    assert re.search(r"all \d\d passed", drained.printed)


def test_the_demo_prints_what_happened(drained: Drained) -> None:
    """The printed summary has the figures of each partition, the histogram, the causes and the places."""
    figures, words = drained.figures, " ".join(drained.printed.split())
    dead = figures.rejected + figures.exhausted
    assert words.startswith(f"data folder {drained.stack.home}")
    assert f"all {figures.flights:,} 0 0 {figures.accepted:,} {dead:,}" in words
    assert f"once {figures.accepted:,} {figures.rejected:,}" in words
    assert f"5 times {figures.exhausted:,}" in words
    assert f"({figures.exhausted:,} exhausted, {figures.rejected:,} rejected)" in words
    assert str(drained.stack.settings.output) in words


def test_a_second_demo_has_nothing_to_do(drained: Drained, capsys: pytest.CaptureFixture[str]) -> None:
    """A drained group launches no run. (In this process: it starts none of its own.)"""
    flights = drained.figures.flights
    assert main(["--home", str(drained.stack.home), "--records", str(flights)]) == 0
    assert f"Nothing left to do: {flights:,} records" in capsys.readouterr().out
    assert drained.stack.run_statuses() == ["SUCCESS"]


@pytest.mark.deep
@pytest.mark.parametrize("drained", [pytest.param(ALL, id="all")], indirect=True)
def test_a_run_leases_only_new_records(drained: Drained) -> None:
    """After more flights were produced, a run leases just those."""
    with drained.stack.database() as database:
        before = State(database).outputs.counted(GROUP, TOPIC)
        printed = drained.stack.run("--more", "1000")
        after = State(database).outputs.counted(GROUP, TOPIC)
    assert "1,000 records to process" in printed
    assert drained.stack.run_statuses() == ["SUCCESS"] * 2
    assert_drained(drained.stack)
    assert after[: len(before)] == before


@pytest.mark.deep
@pytest.mark.parametrize("drained", [pytest.param(FIRST, id="first")], indirect=True)
def test_servers_killed_together_change_nothing(drained: Drained, follow_demo: Follow) -> None:
    """Service, Kafka and Postgres are killed at once while a run holds records: the demo starts them again, and each
    record still ends once and where it belongs."""
    # The runs before this one had Spark's generated code.
    stack = DemoStack(drained.stack.home, {})
    demo = stack.start("--records", str(FIRST.flights), "--more", str(FLIGHTS))
    reading = follow_demo(demo, impatient(stack))
    until_leased(stack, demo, 200)
    killed = {server: kill(stack, server) for server in SERVERS}
    reading.join()
    assert demo.process.returncode == 0, demo.text
    assert " died: starting again what is not running" in demo.text
    # Not the names in that line: a large process takes a moment to end, and the demo may have looked in that moment.
    assert all(process_of(stack, server) != pid for server, pid in killed.items()), demo.text
    fate = assert_drained(stack)
    assert len(fate.accepted) + len(fate.dead) == FIRST.flights + FLIGHTS
