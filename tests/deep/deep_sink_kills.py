"""Drivers with Spark killed at random moments around the user's writer, three to a topic: nothing is left out."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from sharequeue.settings import Settings
from sharequeue.state import State
from tests.chaos.test_sink_kills_spark import RECORDS, random_kills
from tests.fix_pipelines import Assigned, Produce, RunJob
from tests.fix_stack import MakeTopic

TOPICS = 10
KILLS = 3
"""For each topic. A driver takes some ten seconds to start."""
SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("number", range(TOPICS))
def test_drivers_killed_at_random_moments_leave_nothing_out(
    number: int,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    output_settings: Settings,
    tmp_path: Path,
    told: list[str],
) -> None:
    """As in the ordinary run, where one is killed."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, range(RECORDS))
    seeds = range(SEED + KILLS * number, SEED + KILLS * (number + 1))
    random_kills(seeds, assigned(topic), topic, run_job, state, output_settings, tmp_path)
    told.append(f"drivers killed around their writer, seeds {seeds[0]} to {seeds[-1]}: nothing left out")
