"""The main job, through Dagster, Spark, Kafka and Postgres, on all 336,776 flights: the figures of the demo."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import pandas as pd
import pytest

from sharequeue.deadletters.letters import KAFKA_HEADERS
from sharequeue.reports.history import Reports
from sharequeue.state import State
from tests.fixtures.demo import (
    GROUP,
    TOPIC,
    DemoStack,
    Fate,
    accepted_records,
    assert_drained,
    dead_letter_records,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FLIGHTS = 336_776
ACCEPTED = 327_346
REJECTED = 8_255
EXHAUSTED = 1_175


@dataclass
class Drained:
    """A stack after its first demo: what that printed, and what must have become of each record."""

    stack: DemoStack
    printed: str
    fate: Fate


@pytest.fixture(scope="module")
def drained(demo_stack: DemoStack) -> Drained:
    """Give the stack after one demo on the whole input, everything accounted for."""
    printed = demo_stack.run()
    return Drained(demo_stack, printed, assert_drained(demo_stack))


def test_every_flight_is_where_it_belongs(drained: Drained) -> None:
    """327,346 accepted, 8,255 rejected and 1,175 exhausted make up the whole input; none twice, none lost."""
    assert len(drained.fate.accepted) == ACCEPTED
    assert len(drained.fate.rejected) == REJECTED
    assert len(drained.fate.exhausted) == EXHAUSTED
    assert ACCEPTED + REJECTED + EXHAUSTED == FLIGHTS


def test_the_manifest_counts_what_was_accepted(drained: Drained) -> None:
    """The manifest in Postgres says 327,346 records, as many as the files it names hold."""
    with drained.stack.database() as database:
        state = State(database)
        assert sum(output.records for output in state.outputs.counted(GROUP, TOPIC)) == ACCEPTED
        assert accepted_records(drained.stack.settings, state).total() == ACCEPTED


def test_dead_letters_say_where_they_come_from_and_why(drained: Drained) -> None:
    """9,430 dead letters with Kafka's six headers: rejected at once, or delivered five times."""
    letters = dead_letter_records(drained.stack.settings)
    assert len(letters) == REJECTED + EXHAUSTED
    assert all(letter.header(name) is not None for letter in letters for name in KAFKA_HEADERS)
    assert Counter((letter.cause, letter.delivery_count) for letter in letters) == {
        ("rejected", 1): REJECTED,
        ("exceeded", 5): EXHAUSTED,
    }
    assert all(letter.value is not None for letter in letters)


def test_delivery_counts_are_exact(drained: Drained) -> None:
    """Without a kill everything ends at its first delivery, but the flights that wait for their arrival report."""
    with drained.stack.database() as database:
        found: Counter[tuple[str, int]] = Counter()
        for count in State(database).figures.delivery_counts(GROUP):
            found[count.outcome, count.delivery_count] += count.records
    assert found == {("accepted", 1): ACCEPTED, ("rejected", 1): REJECTED, ("exceeded", 5): EXHAUSTED}


def test_the_summary_covers_every_accepted_flight(drained: Drained) -> None:
    """The delays per carrier and day are merged from all committed leases, each once."""
    summary = pd.read_parquet(drained.stack.settings.local_output / "flight_delays" / "delays.parquet")
    assert summary["flights"].sum() == ACCEPTED
    assert not summary.duplicated(["carrier", "day"]).any()


def test_reports_have_a_history(drained: Drained) -> None:
    """Each run has left a row per share-partition, the last of them with lag 0."""
    with drained.stack.database() as database:
        history = Reports(database).history(GROUP)
    runs = len(drained.stack.run_statuses())
    assert len(history) == 4 * runs
    assert {report.lag for report in history[-4:]} == {0}, drained.printed


def test_runs_are_seen_in_dagster_and_their_checks_passed(drained: Drained) -> None:
    """One run suffices, and every check passed."""
    assert drained.stack.run_statuses() == ["SUCCESS"]
    assert re.search(r"all \d\d passed", drained.printed)


def test_the_demo_prints_what_happened(drained: Drained) -> None:
    """The printed summary has the figures of each partition, the histogram, the causes and the places."""
    words = " ".join(drained.printed.split())
    assert words.startswith(f"data folder {drained.stack.home}")
    assert f"all {FLIGHTS:,} 0 0 {ACCEPTED:,} {REJECTED + EXHAUSTED:,}" in words
    assert f"once {ACCEPTED:,} {REJECTED:,}" in words
    assert f"5 times {EXHAUSTED:,}" in words
    assert f"({EXHAUSTED:,} exceeded, {REJECTED:,} rejected)" in words
    assert str(drained.stack.settings.output) in words


def test_a_second_demo_has_nothing_to_do(drained: Drained) -> None:
    """A drained group launches no run."""
    printed = drained.stack.run()
    assert f"Nothing left to do: {FLIGHTS:,} records" in printed
    assert drained.stack.run_statuses() == ["SUCCESS"]


@pytest.mark.deep
def test_new_records_are_done_alone(drained: Drained) -> None:
    """After more flights were produced, a run leases just those."""
    with drained.stack.database() as database:
        before = State(database).outputs.counted(GROUP, TOPIC)
        printed = drained.stack.run("--more", "1000")
        after = State(database).outputs.counted(GROUP, TOPIC)
    assert "1,000 records to do" in printed
    assert drained.stack.run_statuses() == ["SUCCESS"] * 2
    assert_drained(drained.stack)
    assert after[: len(before)] == before
