"""Hostile clients, one call at a time, the same calls in every run (`tests/deep/deep_fuzzer.py` has them at once)."""

from __future__ import annotations

import os
from typing import Any

import pytest

from sharequeue.database import Database
from tests.fuzzer.run import Run

SEEDS = [int(os.environ["SHAREQUEUE_TEST_SEED"])] if "SHAREQUEUE_TEST_SEED" in os.environ else [6]
PHASES = 2


@pytest.mark.parametrize("seed", SEEDS)
def test_results_under_attack_are_true(private_database: Database, seed: int) -> None:
    """Nothing is leased twice, counted twice or lost, whoever is killed, late, or uses others' tokens and ids."""
    run = Run(private_database, seed, in_turn=True)
    faults = run.in_turn(PHASES)
    assert not faults, f"{len(faults)} faults, {run.told()}\n{faults[0]}"
    assert run.ledger.tally.keys() >= {"leased read_committed", "leased read_uncommitted"}


def test_no_record_overtakes_another_of_its_key_under_attack(private_database: Database) -> None:
    """The same with groups in order by key: workers who obey accept each record as the first open one of its key."""
    run = Run(private_database, SEEDS[0], in_turn=True, ordered=True)
    faults = run.in_turn(1)
    assert not faults, f"{len(faults)} faults, {run.told()}\n{faults[0]}"
    assert run.ledger.tally.keys() >= {"acknowledge_in_order", "close_letters"}


def test_the_drain_begins_again_where_a_reset_is_refused(
    private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic has an id again that it had before: its offsets are deleted, and all records come to their end."""
    run = Run(private_database, SEEDS[0], in_turn=True, clients=1)
    (worker,) = run.workers
    named = worker.named(run.shared.partitions[0])
    log: dict[str, Any] = {"p_log_start": 0, "p_log_end": 40, "p_last_stable_offset": 40}

    def step() -> None:
        worker.quiet = True
        worker.send("alter_offsets", **named, p_topic_id="t0-1", p_start_offset=0)
        worker.send("observe", **named, p_topic_id="t0-2", **log)

    monkeypatch.setattr("tests.fuzzer.run.STEPS", 1)
    monkeypatch.setattr(worker, "step", step)
    faults = run.in_turn(1)
    assert not faults, f"{len(faults)} faults, {run.told()}\n{faults[0]}"
    assert run.shared.tally["alter_offsets SQ100"] == 1
