"""What doctor finds."""

from __future__ import annotations

import pytest

from sharequeue.local.doctor import WARNING, _collation_finding


@pytest.mark.parametrize(
    ("made", "now", "warned"),
    [("2.36", "2.41", True), ("2.41", "2.41", False), (None, None, False), ("2.36", None, False)],
)
def test_a_collation_of_another_version_is_a_warning(made: str | None, now: str | None, warned: bool) -> None:
    """An index of texts may then miss a group: the system below the database was replaced. A C locale has none."""
    found = _collation_finding("queue", made, now)
    assert [each.level for each in found] == [WARNING] * warned
    assert all("reindex database queue" in each.text for each in found)
