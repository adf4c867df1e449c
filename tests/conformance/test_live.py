"""Scenarios on a broker's own share groups and on ours: same log, same steps, compared after each.

Some are drawn from a seed, which is their name: `SHAREQUEUE_TEST_SEED` repeats it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from sharequeue.domain.settings import Settings
from sharequeue.local.stack import StackInfo
from tests.conformance.conftest import HISTORIES
from tests.conformance.live import on_the_broker, problems, warm_up
from tests.conformance.live_random import FIRST_SEED, SEEDS, random_scenario
from tests.conformance.live_scenarios import LIVE
from tests.conformance.scenario import Scenario
from tests.waiting import PATIENCE_S

SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", FIRST_SEED))
DRAWN = [f"seed {SEED + number}" for number in range(SEEDS)]
STEPS = 100
"""How many steps a drawn scenario has, without the looks after them; `tests/deep` has longer ones."""
AT_ONCE = 12
"""How many scenarios the broker has at a time: they mostly wait for locks."""


@pytest.fixture(scope="module")
def broker_runs(stack: StackInfo, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Scenario]]]:
    """Run every scenario that is asked for on the broker, side by side."""
    settings = Settings.load(stack.home)
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    warm_up(settings)
    with ThreadPoolExecutor(AT_ONCE) as executor:
        runs = {
            name: executor.submit(on_the_broker, settings, name, live)
            for name, live in LIVE.items()
            if name in asked
        }
        for name in asked & set(DRAWN):
            runs[name] = executor.submit(random_scenario, settings, int(name.removeprefix("seed ")), STEPS)
        yield runs


@pytest.mark.parametrize("name", [*LIVE, *DRAWN])
def test_a_broker_and_ours_do_the_same(
    name: str, broker_runs: dict[str, Future[Scenario]], live_counts: dict[str, Counter[str]]
) -> None:
    """Acquired ranges, gaps, delivery counts, errors, assignments, epochs, start offsets and lag, step by step."""
    scenario = broker_runs[name].result(PATIENCE_S)
    found = problems(scenario, live_counts)
    if name in DRAWN:
        HISTORIES.append(f"{name}, beside a broker: {len(scenario.steps)} steps, looks included")
    assert not found, "\n".join(found)
