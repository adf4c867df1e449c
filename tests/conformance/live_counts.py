"""Count the steps of each live scenario that are equal, and different under which line.

`live_counts.json` has it by scenario and engine. The tests hold it against each run, so that the table of
`docs/evidence/conformance.md` says what was seen; a test that fails prints what to put there.
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
    return [f"{FILE.name} has for {scenario}, {engine}: {json.dumps(listed)}, not {json.dumps(seen)}"]
