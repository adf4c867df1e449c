"""A million random steps: both engines agree after every one."""

from __future__ import annotations

import os
import random

import pytest

from sharequeue.database import Database
from tests.conformance.histories import Run, run_histories
from tests.conformance.test_two_engines import (
    DIAGRAM,
    MET,
    MET_IN_ORDER,
    OPERATIONS,
    ORDERED,
    REFUSALS,
)
from tests.fixtures.stack import say

HISTORIES = int(os.environ.get("SHAREQUEUE_TEST_HISTORIES", "15000"))
"""About 70 steps each."""
SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


@pytest.mark.timeout(0)
def test_both_engines_agree_on_order_by_key(private_database: Database, told: list[str]) -> None:
    """A fifth of the steps once more, with groups in order by key."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    run: Run | None = None
    for number in range(SEED, SEED + -(-HISTORIES // 2500)):
        run = run_histories(url, number, 500, run, ordered=True)
        say(f"so far in order by key, {run.told()}")
        if run.difference is not None:
            told.append(f"{run.told()}: {run.difference}")
            raise run.difference
    assert run is not None
    assert run.tally.calls.keys() >= ORDERED
    assert run.tally.met.keys() >= MET_IN_ORDER
    told.append(f"in order by key, seeds {SEED} to {number}: {run.told()}, no difference")


@pytest.mark.timeout(0)
def test_both_engines_agree_over_a_million_steps(private_database: Database, told: list[str]) -> None:
    """In runs of 500 histories, each from the next seed; every transition, operation and refusal is met."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    run: Run | None = None
    for number in range(SEED, SEED + -(-HISTORIES // 500)):
        run = run_histories(url, number, 500, run)
        say(f"so far, {run.told()}")
        if run.difference is not None:
            told.append(f"{run.told()}: {run.difference}")
            raise run.difference
    assert run is not None
    total = run.tally
    assert total.transitions == DIAGRAM
    assert total.calls.keys() == OPERATIONS
    assert total.refusals.keys() == REFUSALS
    assert total.met.keys() >= MET
    told.append(
        f"seeds {SEED} to {number}: {total.steps:,} steps in {total.histories:,} histories, {run.seconds:,.0f} s,"
        " no difference"
    )
    told.append("calls on each engine: " + ", ".join(f"{n} {c:,}" for n, c in total.calls.most_common()))
    told.append("refusals met: " + ", ".join(f"{n} {c:,}" for n, c in total.refusals.most_common()))
