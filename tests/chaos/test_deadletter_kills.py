"""A dead-letter writer killed at any moment, by any means, any number of times: every record is one letter."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import pytest

from sharequeue.deadletters.outbox import BatchStep
from sharequeue.local.stack import StackInfo
from tests.chaos.forked_processes import in_fork
from tests.chaos.write_dead_letters import EXIT_CODE
from tests.fixtures.deadletters import GivenUp

Make = Callable[..., GivenUp]
Write = Callable[..., int]
STEPS: tuple[BatchStep, ...] = get_args(BatchStep)


@pytest.fixture(scope="module")
def two_writers(stack: StackInfo) -> Iterator[tuple[Write, Write]]:
    """Give two functions that write in a separate process, which dies at the given step."""
    with in_fork(stack.home) as one, in_fork(stack.home) as other:
        yield one, other


@pytest.fixture
def write(two_writers: tuple[Write, Write]) -> Write:
    """Give one of them."""
    return two_writers[0]


@pytest.mark.parametrize("manner", [pytest.param("exit", marks=pytest.mark.deep), "kill"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_of_the_second_batch(
    given_up: Make, write: Write, step: BatchStep, manner: str
) -> None:
    """Dead at this step, resumed by the next writer: nothing lost, nothing doubled, whatever was committed."""
    case = given_up(copy=True)
    case.produce(60)
    case.reject()
    # `initialised` comes once a share-partition, all others once or more a batch.
    nth = 1 if step == "initialised" else 2
    code = write(case.group, 20, step, nth, manner, 0)
    assert code == (EXIT_CODE if manner == "exit" else -signal.SIGKILL)
    report = case.writer(batch_records=20).write()
    assert report.held == ()
    case.assert_each_exactly_once()


def test_killed_before_it_could_fence_the_one_that_was_killed(given_up: Make, write: Write) -> None:
    """A dead writer's open transaction, then a writer that dies before `init_transactions`: the third resumes."""
    case = given_up()
    case.produce(60)
    case.reject()
    assert write(case.group, 20, "marked", 2, "exit", 0) == EXIT_CODE
    assert write(case.group, 20, "start", 1, "exit", 0) == EXIT_CODE
    case.writer(batch_records=20).write()
    case.assert_each_exactly_once()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in (1, 2))])
def test_two_processes_write_at_once_and_one_is_killed(
    given_up: Make, two_writers: tuple[Write, Write], seed: int
) -> None:
    """Two writers fence each other, one of them dies somewhere: every record is one letter in the end."""
    chance = random.Random(seed)  # noqa: S311
    case = given_up(partitions=2)
    case.produce(400, partitions=2)
    case.reject()
    step, nth = chance.choice(STEPS[1:]), chance.randint(1, 12)
    print(f"seed {seed}: one of two is killed at {step} number {nth}")
    told = [(step, nth, "kill", 0), ("never", 1, "exit", 0)]
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(one, case.group, 10, *fate) for one, fate in zip(two_writers, told, strict=True)]
    codes = [process.result() for process in both]
    assert codes[0] in (0, -signal.SIGKILL)
    assert codes[1] == 0
    case.writer().write()
    case.assert_each_exactly_once()
