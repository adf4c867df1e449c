"""Every rule switched off on purpose: the random histories find it, and so do the tests that are marked with it."""

from __future__ import annotations

import pytest

from sharequeue.database import Database
from tests.conformance.histories import run_histories
from tests.deep.checks import failing, marked
from tests.deep.edits import HISTORY_EDITS, ORDER_EDITS, RULE_EDITS, Edit, apply

ORDINARY_STEPS = 20_000
SEEDS = (1, 2, 3)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("edit", HISTORY_EDITS, ids=lambda edit: edit.name)
def test_the_random_histories_find_a_rule_that_is_off(
    private_database: Database, told: list[str], edit: Edit
) -> None:
    """Within the steps of one ordinary run, from each of three seeds."""
    apply(private_database, edit)
    url = private_database.engine.url.render_as_string(hide_password=False)
    steps, seconds = [], []
    for number in SEEDS:
        run = run_histories(url, number, 330)
        assert run.difference is not None, "nothing was found"
        assert run.tally.found_at is not None
        assert run.tally.found_at <= ORDINARY_STEPS
        steps.append(run.tally.found_at)
        seconds.append(run.seconds)
    found = " | ".join(f"{step:,}" for step in steps)
    told.append(f"| {edit.name} | `{edit.function}` | {found} | {max(seconds):.1f} |")


@pytest.mark.timeout(0)
@pytest.mark.parametrize("edit", ORDER_EDITS, ids=lambda edit: edit.name)
def test_the_ordered_histories_find_a_rule_of_order_that_is_off(
    private_database: Database, told: list[str], edit: Edit
) -> None:
    """Within three ordinary runs."""
    apply(private_database, edit)
    url = private_database.engine.url.render_as_string(hide_password=False)
    run = run_histories(url, SEEDS[0], 1000, ordered=True)
    assert run.difference is not None, "nothing was found"
    assert run.tally.found_at is not None
    assert run.tally.found_at <= 3 * ORDINARY_STEPS
    told.append(f"| {edit.name} | `{edit.function}` | {run.tally.found_at:,} | {run.seconds:.1f} |")


@pytest.mark.timeout(0)
@pytest.mark.parametrize("family", RULE_EDITS)
def test_a_marked_test_fails_when_its_rule_is_broken(
    private_database: Database, told: list[str], family: str
) -> None:
    """All of the family's tests pass before, and at least one fails after."""
    tests = marked(family)
    assert failing(private_database, tests) == []
    apply(private_database, RULE_EDITS[family])
    failed = failing(private_database, tests)
    assert failed, f"none of {len(tests)} marked tests noticed"
    told.append(f"| {family} | {RULE_EDITS[family].name} | {len(failed)} of {len(tests)} | `{failed[0]}` |")
