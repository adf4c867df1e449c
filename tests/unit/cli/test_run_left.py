"""When `sharequeue run` ends as if nothing were left."""

from __future__ import annotations

import pytest

from sharequeue.cli.run import _is_known
from sharequeue.domain.results.runs import RoundReport, RunReport

ROUND = RoundReport(number=1, lease_ids=(1,), lag=0, stage_seconds={})


@pytest.mark.parametrize(
    ("report", "known"),
    [
        (RunReport(group="g", drained=True), True),
        (RunReport(group="g", rounds=(ROUND,)), True),
        (RunReport(group="g"), False),
        (RunReport(group="g", rounds=(ROUND,), leaderless=("t-1",)), False),
    ],
)
def test_what_is_left_is_not_known_without_an_assignment_or_a_leader(report: RunReport, known: bool) -> None:
    """Then the exit code is 3, whatever lag is known."""
    assert _is_known(report) is known
