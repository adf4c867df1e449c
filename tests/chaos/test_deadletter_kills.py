"""A dead-letter writer killed at any moment, by any means, any number of times: every record is one letter."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from sharequeue.deadletters.batches import Step
from tests.chaos.drain_dead_letters import EXIT_CODE
from tests.fix_deadletters import GivenUp

Make = Callable[..., GivenUp]
REPOSITORY = Path(__file__).parents[2]
STEPS: tuple[Step, ...] = get_args(Step)
SEEDS = range(20)


def start(
    case: GivenUp, batch: int, step: str, nth: int, manner: str = "exit", delay_ms: int = 0
) -> subprocess.Popen[str]:
    """A drain in a process of its own, that dies as told."""
    arguments = [case.group, str(batch), step, str(nth), manner, str(delay_ms)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.drain_dead_letters", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "SHAREQUEUE_HOME": str(case.settings.home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> int:
    """How a drain ended; what it said is shown when the test fails."""
    output, errors = process.communicate(timeout=120)
    print(output, errors)
    return process.returncode


@pytest.mark.parametrize("manner", ["exit", "kill"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_of_the_second_batch(given_up: Make, step: Step, manner: str) -> None:
    """Dead at this step, resumed by the next drain: nothing lost, nothing doubled, whatever was committed."""
    case = given_up(copy=True)
    case.produce(60)
    case.reject()
    # `initialised` comes once a share-partition, all others once or more a batch.
    nth = 1 if step == "initialised" else 2
    code = end(start(case, 20, step, nth, manner))
    assert code == (EXIT_CODE if manner == "exit" else -signal.SIGKILL)
    report = case.writer(batch_records=20).drain()
    assert report.held == ()
    case.assert_each_exactly_once()


def test_killed_before_it_could_fence_the_one_that_was_killed(given_up: Make) -> None:
    """A dead writer's open transaction, then a writer that dies before `init_transactions`: the third resumes."""
    case = given_up()
    case.produce(60)
    case.reject()
    assert end(start(case, 20, "marked", 2)) == EXIT_CODE
    assert end(start(case, 20, "start", 1)) == EXIT_CODE
    case.writer(batch_records=20).drain()
    case.assert_each_exactly_once()


@pytest.mark.slow
def test_twenty_random_kills(given_up: Make) -> None:
    """Twenty drains, each killed at a random step or a random moment after it; records are given up in between."""
    case = given_up(partitions=3, dlq_partitions=2, copy=True)
    killed = 0
    for seed in SEEDS:
        chance = random.Random(seed)  # noqa: S311
        case.produce(30, partitions=3)
        case.reject()
        step, nth, manner = chance.choice(STEPS), chance.randint(1, 4), chance.choice(["exit", "kill"])
        delay_ms = chance.choice([0, 0, chance.randint(1, 40)])
        print(f"seed {seed}: {manner} {delay_ms} ms after {step} number {nth}")
        killed += end(start(case, chance.choice([4, 10, 100]), step, nth, manner, delay_ms)) != 0
    report = case.writer().drain()
    print(
        f"{killed} of {len(SEEDS)} drains were killed; the last one wrote {report.written}, found {report.resumed}"
    )
    assert killed >= len(SEEDS) // 2
    assert sum(case.expected.values()) == 30 * len(SEEDS)
    case.assert_each_exactly_once()


@pytest.mark.parametrize("seed", range(3))
def test_two_processes_drain_at_once_and_one_is_killed(given_up: Make, seed: int) -> None:
    """Two drains fence each other, one of them dies somewhere: every record is one letter in the end."""
    chance = random.Random(seed)  # noqa: S311
    case = given_up(partitions=2)
    case.produce(400, partitions=2)
    case.reject()
    step, nth = chance.choice(STEPS[1:]), chance.randint(1, 12)
    print(f"seed {seed}: one of two is killed at {step} number {nth}")
    both = [start(case, 10, step, nth, "kill"), start(case, 10, "never", 1)]
    codes = [end(process) for process in both]
    assert codes[0] in (0, -signal.SIGKILL)
    assert codes[1] == 0
    case.writer().drain()
    case.assert_each_exactly_once()
