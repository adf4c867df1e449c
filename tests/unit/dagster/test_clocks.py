"""Stored times against the time now."""

import pytest

from sharequeue.dagster.clocks import has_passed


@pytest.mark.parametrize(
    ("since", "passed"), [(899, True), (901, False), (1059, False), (1061, True), (1e308, True)]
)
def test_a_time_further_ahead_than_clocks_differ_is_long_past(since: float, passed: bool) -> None:
    """It is from before the clock was set back; one that is a little ahead is another machine's."""
    assert has_passed(100, since, 1000) is passed
