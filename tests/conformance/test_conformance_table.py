"""The table of rules in `docs/evidence/conformance.md` says what the tests' own marks say."""

from __future__ import annotations

import re

from tests.conformance.counts import DRAWN
from tests.conformance.live_counts import live_counts
from tests.conformance.live_java_scenarios import JAVA
from tests.conformance.live_scenarios import LIVE
from tests.conformance.scenario import SCENARIOS
from tests.conformance.table import DOCUMENT, document, marks, rules

FAMILIES = {
    "R-ST": 9,
    "R-IN": 9,
    "R-NF": 7,
    "R-AQ": 18,
    "R-TH": 7,
    "R-AK": 17,
    "R-RN": 2,
    "R-LT": 3,
    "R-RL": 2,
    "R-SO": 5,
    "R-LS": 6,
    "R-EP": 12,
    "R-DL": 10,
    "R-OR": 4,
    "R-IL": 5,
    "R-GR": 14,
    "R-SS": 6,
    "R-AD": 7,
}
"""How many rules each family has; those of locks are numbered through three, and R-GR-0 is a table."""


def test_the_committed_table_is_the_present_one() -> None:
    """`python -m tests.conformance.table` would change nothing."""
    text = DOCUMENT.read_text()
    assert text == document(text), "run: python -m tests.conformance.table"


def test_every_rule_is_there() -> None:
    """Each once, under the families' numbers, and every mark names one of them."""
    counted = {family: sum(rule.family == family for rule in rules()) for family in FAMILIES}
    assert counted == FAMILIES
    ids = [rule.id for rule in rules()]
    assert len(set(ids)) == len(ids) == sum(FAMILIES.values())
    assert marks().keys() <= set(ids)


def test_every_rule_is_pinned_or_says_why_not() -> None:
    """By a test or a recorded scenario that exists; unless it waits for its room."""
    pinned = marks()
    bare = [rule.id for rule in rules() if not (rule.later or rule.id in pinned or rule.scenarios)]
    assert bare == []
    assert [s for rule in rules() for s in rule.scenarios if s not in SCENARIOS] == []
    assert all(re.fullmatch(r"(same|differs|later)\b.*|[^|]+", rule.ours) for rule in rules())


def test_every_scenario_beside_a_broker_is_counted() -> None:
    """Under its name, on every engine that it is compared on; a run that counts otherwise fails."""
    engines = {name: ["in memory", "postgres"] for name in (*LIVE, *DRAWN)}
    engines |= {name: ["in memory", "postgres", "the consumer"] for name in JAVA}
    assert {name: sorted(counted) for name, counted in live_counts().items()} == {
        name: sorted(names) for name, names in engines.items()
    }
