"""Stored times against the time now."""

import pytest

from sharequeue.dagster.clocks import has_passed


@pytest.mark.parametrize(
    ("since", "passed"), [(899, True), (901, False), (1059, False), (1061, True), (1e308, True)]
)
def test_a_time_in_the_future_is_from_before_the_clock_was_set_back(since: float, passed: bool) -> None:
    """It is from before the clock was set back; one that is a little ahead is another machine's."""
    assert has_passed(100, since, 1000) is passed
