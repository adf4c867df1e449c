"""Count the steps of each live scenario that are equal, and different under which line.

`live_counts.json` has the counts by scenario and engine. The tests compare each run with it, so that the table of
`docs/evidence/conformance.md` has the results of runs. If they differ, or if a new scenario has no counts yet, the
test fails and prints the counts to write there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).parent / "live_counts.json"


def live_counts() -> dict[str, dict[str, dict[str, int]]]:
    """Verdicts and lines with their numbers, by scenario and engine."""
    found: dict[str, dict[str, dict[str, int]]] = json.loads(FILE.read_text())
    return found


def has_counts(scenario: str) -> bool:
    """Return whether the file must have the counts of a scenario: of each that is written, and of some random
    ones.
    """
    return not scenario.startswith("seed ") or scenario in live_counts()


def miscounted(scenario: str, engine: str, counts: Mapping[str, int]) -> list[str]:
    """What is wrong with the counts in the file; nothing where they are those of this run."""
    seen = {
        name: n
        for name, n in sorted(counts.items())
        if name in ("equal", "listed") or name.startswith("line ")
    }
    listed = live_counts().get(scenario, {}).get(engine)
    if listed == seen:
        return []
    return [
        f"{FILE.name}, {scenario}, {engine}: expected {json.dumps(seen)}, but it has {json.dumps(listed)}"
    ]
