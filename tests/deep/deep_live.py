"""Scenarios drawn from fresh seeds, five hundred steps each, on a broker's own share groups and on ours."""

from __future__ import annotations

import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.local.stack import StackInfo
from tests.conformance.live import problems, warm_up
from tests.conformance.live_random import random_scenario
from tests.conformance.postgres_engine import PostgresEngine
from tests.fixtures.stack import say

SCENARIOS = int(os.environ.get("SHAREQUEUE_TEST_HISTORIES", "40"))
STEPS = 500
SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


@pytest.mark.timeout(0)
def test_a_broker_and_ours_do_the_same_whatever_is_drawn(
    stack: StackInfo, private_database: Database, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step of every scenario is equal, or falls under a line of the table of differences."""
    monkeypatch.setattr(PostgresEngine, "shared", private_database)
    settings = Settings.load(stack.home)
    warm_up(settings)
    counts = {engine: Counter[str]() for engine in ("in memory", "postgres")}
    with ThreadPoolExecutor(6) as executor:
        seeds = range(SEED, SEED + SCENARIOS)
        for scenario in executor.map(lambda seed: random_scenario(settings, seed, STEPS), seeds):
            found = problems(scenario, counts)
            assert not found, "\n".join(found[:5])
            say(f"{scenario.name}: equal, or under a line")
    for engine, counted in counts.items():
        told.append(
            f"seeds {SEED} to {seeds[-1]}, {engine}: {counted['equal']:,} steps equal, {counted['listed']:,} differ"
            " as listed, none unexplained"
        )
