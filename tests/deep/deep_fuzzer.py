"""The state under hostile clients for many minutes: what their answers say must be true."""

from __future__ import annotations

import os
import random
import time

import pytest

from sharequeue.database import Database
from tests.fuzzer.run import Run

RUNS = 10
SECONDS = float(os.environ.get("SHAREQUEUE_TEST_SECONDS", "600"))
SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("number", range(RUNS))
def test_results_under_attack_are_true(private_database: Database, number: int, told: list[str]) -> None:
    """Nothing is leased twice, counted twice or lost, whoever is killed, late, or uses others' tokens and ids: many
    calls at once, cut off at any moment, with one seed after the other. Every other run has groups in order by key:
    no record is accepted before an earlier one of its key."""
    run = Run(private_database, SEED + number, ordered=number % 2 == 1)
    faults = run.at_once(time.monotonic() + SECONDS / RUNS)
    told.append(run.told())
    assert not faults, f"{len(faults)} faults, SHAREQUEUE_TEST_SEED={SEED + number}\n{faults[0]}"
