"""Every rule switched off on purpose: the random histories find it, and so do the tests that are marked with it."""

from __future__ import annotations

import pytest

from sharequeue.database import Database
from tests.conformance.histories import Run, run_histories
from tests.deep.checks import failing, marked
from tests.deep.edits import HISTORY_EDITS, ORDER_EDITS, RULE_EDITS, Edit, apply
from tests.fixtures.stack import MakeCopy

ORDINARY_STEPS = 20_000
SEEDS = (1, 2, 3)
ORDER_SEEDS = (7, 8, 9, 10, 11, 12)
"""More of them, because Hypothesis draws few of the steps of order by key from some seeds."""


AGREED: dict[tuple[int, bool], int] = {}
"""How many steps of a seed the functions as they are take without a difference, ordered or not."""


def _found(database: Database, make_copy: MakeCopy, edit: Edit, seed: int, *, ordered: bool = False) -> Run:
    """Break a rule; return the run that may find it. The functions as they are take the same steps without a
    difference: otherwise it is they that were found."""
    histories = 1000 if ordered else 330
    sound = make_copy(database)
    apply(database, edit)
    most = ORDINARY_STEPS // 4 if ordered else ORDINARY_STEPS
    run = run_histories(_url(database), seed, histories, ordered=ordered, most_steps=most)
    if run.difference is None:
        return run
    assert run.tally.found_at is not None
    if AGREED.get((seed, ordered), 0) < run.tally.found_at:
        control = run_histories(_url(sound), seed, histories, ordered=ordered, most_steps=run.tally.found_at)
        if control.difference is not None:
            raise control.difference
        AGREED[seed, ordered] = run.tally.found_at
    return run


def _url(database: Database) -> str:
    return database.engine.url.render_as_string(hide_password=False)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("edit", HISTORY_EDITS, ids=lambda edit: edit.name)
def test_the_random_histories_find_a_rule_that_is_off(
    private_database: Database, make_copy: MakeCopy, told: list[str], edit: Edit
) -> None:
    """Within the steps of one ordinary run, from each of three seeds."""
    steps, seconds = [], []
    for seed in SEEDS:
        run = _found(make_copy(private_database), make_copy, edit, seed)
        assert run.difference is not None, "nothing was found"
        assert run.tally.found_at is not None
        steps.append(run.tally.found_at)
        seconds.append(run.seconds)
    found = " | ".join(f"{step:,}" for step in steps)
    told.append(f"| {edit.name} | `{edit.function}` | {found} | {max(seconds):.1f} |")


@pytest.mark.timeout(0)
@pytest.mark.parametrize("edit", ORDER_EDITS, ids=lambda edit: edit.name)
def test_the_ordered_histories_find_a_rule_of_order_that_is_off(
    private_database: Database, make_copy: MakeCopy, told: list[str], edit: Edit
) -> None:
    """From one of six seeds, within a quarter of an ordinary run from each."""
    for seed in ORDER_SEEDS:
        run = _found(make_copy(private_database), make_copy, edit, seed, ordered=True)
        if run.difference is not None:
            told.append(
                f"| {edit.name} | `{edit.function}` | {seed} | {run.tally.found_at:,} | {run.seconds:.1f} |"
            )
            return
    pytest.fail("nothing was found")


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
