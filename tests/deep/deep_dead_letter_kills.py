"""A thousand dead-letter writers killed by SIGKILL: every record is one letter, whatever died when.

Four groups at once, each with its own source and dead-letter topic, are given records to write and writers that die:
at a step drawn at random, the first to fourth time it is reached, or up to 40 ms later, in the middle of whatever
comes then. Every record given up is in a ledger; a group's letters are read back and counted when 25 of its writers
have died, and the group is then replaced. The writers are processes forked from one that has imported everything,
because starting Python a thousand times would take longer than all else.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import pytest

from sharequeue.deadletters.batches import Step
from sharequeue.settings import Settings
from tests.fix_deadletters import GivenUp
from tests.fix_stack import say

KILLS = int(os.environ.get("SHAREQUEUE_TEST_KILLS", "1000"))
SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
AT_ONCE = 4
KILLS_A_GROUP = 25
RECORDS = 30
PARTITIONS = 3
STEPS: tuple[Step, ...] = get_args(Step)
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Ledger:
    """What all groups together came to."""

    killed: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    """Drains that were done before their time came."""
    groups: int = 0
    records: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def left(self) -> int:
        """Kills still to be made."""
        return KILLS - sum(self.killed.values())


@contextmanager
def drains(settings: Settings) -> Iterator[Callable[..., int]]:
    """Give a function that drains in a process of its own and gives its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.drain_dead_letters"],
        cwd=REPOSITORY,
        env={**os.environ, "SHAREQUEUE_HOME": str(settings.home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:

        def drain(*arguments: object) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(" ".join(map(str, arguments)) + "\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield drain
    finally:
        process.stdin.close()
        process.wait(60)


def one_group(case: GivenUp, chance: random.Random, drain: Callable[..., int], ledger: Ledger) -> None:
    """Writers of one group die until it has had its share of kills; then its letters are counted."""
    kills = 0
    while kills < KILLS_A_GROUP and ledger.left() > 0:
        case.produce(RECORDS, partitions=PARTITIONS)
        case.reject()
        step, nth = chance.choice(STEPS), chance.randint(1, 4)
        delay_ms = chance.choice([0, 0, chance.randint(1, 40)])
        code = drain(case.group, chance.choice([4, 10, 100]), step, nth, "kill", delay_ms)
        assert code in (0, -signal.SIGKILL), f"{step} number {nth}, {delay_ms} ms later: {code}"
        with ledger.lock:
            ledger.ended += code == 0
            if code:
                kills += 1
                ledger.killed[f"{'after' if delay_ms else 'at'} {step}"] += 1
    report = case.writer().drain()
    assert report.held == ()
    case.assert_each_exactly_once()
    with ledger.lock:
        ledger.groups += 1
        ledger.records += sum(case.expected.values())


@pytest.mark.timeout(0)
def test_a_thousand_kills(given_up: Callable[..., GivenUp], settings: Settings, told: list[str]) -> None:
    """Nothing lost, nothing doubled, in the topic and in the state, group by group."""
    ledger = Ledger()
    began = time.monotonic()
    making = threading.Lock()

    def work(number: int) -> None:
        chance = random.Random(SEED * AT_ONCE + number)  # noqa: S311
        with drains(settings) as drain:
            while ledger.left() > 0:
                with making:
                    made = given_up(partitions=PARTITIONS, dlq_partitions=2, copy=chance.random() < 0.5)
                    name = f"{made.group}-{ledger.groups}-{number}-{chance.randrange(10**6)}"
                    case = made.renamed(name)
                one_group(case, chance, drain, ledger)
                done, seconds = sum(ledger.killed.values()), time.monotonic() - began
                say(
                    f"seed {SEED}: {done} of {KILLS} writers killed in {seconds:.0f} s, no letter lost or doubled"
                )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for finished in [pool.submit(work, number) for number in range(AT_ONCE)]:
            finished.result()
    killed = sum(ledger.killed.values())
    assert killed >= KILLS
    assert {name.partition(" ")[2] for name in ledger.killed} == set(STEPS)
    told.append(
        f"seed {SEED}: {killed:,} dead-letter writers killed by SIGKILL in {time.monotonic() - began:,.0f} s,"
        f" {ledger.ended} more ended first; {ledger.records:,} records given up by {ledger.groups} groups,"
        " each one letter, none lost, none doubled"
    )
    told.append("killed: " + ", ".join(f"{name} {count}" for name, count in ledger.killed.most_common()))
