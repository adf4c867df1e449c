"""No public name comes or goes unseen."""

from __future__ import annotations

from tools.public_names import FILE, KINDS, listed
from tools.reference import WRITE


def test_every_public_name_is_in_the_list() -> None:
    """The names that the code has are those of the list, of every kind."""
    now, before = listed().splitlines(), FILE.read_text().splitlines()
    gone, new = sorted({*before} - {*now}), sorted({*now} - {*before})
    assert now == before, f"gone: {gone}; new: {new}. If that is meant, run `.venv/bin/{WRITE}`"
    assert len([line for line in now if line.startswith("# ")]) == len(KINDS)
    assert "\n\n\n" not in FILE.read_text(), "a kind without names"
