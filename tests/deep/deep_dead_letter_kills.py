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
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import get_args

import pytest

from sharequeue.deadletters.outbox import BatchStep
from sharequeue.domain.settings import Settings
from tests.chaos.forked_processes import in_fork
from tests.fixtures.deadletters import GivenUp
from tests.fixtures.stack import say

KILLS = int(os.environ.get("SHAREQUEUE_TEST_KILLS", "1000"))
SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
AT_ONCE = 4
KILLS_A_GROUP = 25
RECORDS = 30
PARTITIONS = 3
STEPS: tuple[BatchStep, ...] = get_args(BatchStep)


@dataclass
class Ledger:
    """What all groups together came to."""

    killed: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    """Writers that were done before their time came."""
    groups: int = 0
    records: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def left(self) -> int:
        """Kills still to be made."""
        return KILLS - sum(self.killed.values())


def one_group(case: GivenUp, chance: random.Random, write: Callable[..., int], ledger: Ledger) -> None:
    """Writers of one group die until it has had its share of kills; then its letters are counted."""
    kills = 0
    while kills < KILLS_A_GROUP and ledger.left() > 0:
        case.produce(RECORDS, partitions=PARTITIONS)
        case.reject()
        step, nth = chance.choice(STEPS), chance.randint(1, 4)
        delay_ms = chance.choice([0, 0, chance.randint(1, 40)])
        code = write(case.group, chance.choice([4, 10, 100]), step, nth, "kill", delay_ms)
        assert code in (0, -signal.SIGKILL), f"{step} number {nth}, {delay_ms} ms later: {code}"
        with ledger.lock:
            ledger.ended += code == 0
            if code:
                kills += 1
                ledger.killed[f"{'after' if delay_ms else 'at'} {step}"] += 1
    report = case.writer().write()
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
        with in_fork(settings.home, subprocess.DEVNULL) as write:
            while ledger.left() > 0:
                with making:
                    made = given_up(partitions=PARTITIONS, dlq_partitions=2, copy=chance.random() < 0.5)
                    name = f"{made.group}-{ledger.groups}-{number}-{chance.randrange(10**6)}"
                    case = made.renamed(name)
                one_group(case, chance, write, ledger)
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


def test_twenty_random_kills(given_up: Callable[..., GivenUp], settings: Settings) -> None:
    """Twenty writers of one group, each killed at a random step or at a random moment after it, by SIGKILL or
    `os._exit`; records are given up in between."""
    case = given_up(partitions=3, dlq_partitions=2, copy=True)
    killed = 0
    with in_fork(settings.home) as write:
        for seed in range(20):
            chance = random.Random(seed)  # noqa: S311
            case.produce(30, partitions=3)
            case.reject()
            step, nth, manner = chance.choice(STEPS), chance.randint(1, 4), chance.choice(["exit", "kill"])
            delay_ms = chance.choice([0, 0, chance.randint(1, 40)])
            print(f"seed {seed}: {manner} {delay_ms} ms after {step} number {nth}")
            killed += write(case.group, chance.choice([4, 10, 100]), step, nth, manner, delay_ms) != 0
    report = case.writer().write()
    print(f"{killed} writers were killed; the last one wrote {report.written}, found {report.resumed}")
    assert killed >= 10
    assert sum(case.expected.values()) == 30 * 20
    case.assert_each_exactly_once()
