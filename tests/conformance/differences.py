"""In which recorded steps does this project differ from the broker, on purpose, and why?

``differences.json`` holds every such step with our result and the line of the table of intended differences it
falls under. ``python -m tests.conformance.differences`` writes the results anew; a line that does not follow
from the two results stays as it was, or null, which the tests refuse.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.engines import ENGINES
from tests.conformance.replay import Replay
from tests.conformance.scenario import SCENARIOS

FILE = Path(__file__).parent / "differences.json"


@dataclass(frozen=True, slots=True)
class Difference:
    """One step: the lines it falls under, and our result."""

    lines: frozenset[int]
    ours: Any


def load() -> tuple[dict[int, str], dict[tuple[str, int], Difference]]:
    """What each line says, and the differences by scenario and number of the step."""
    told = json.loads(FILE.read_text(encoding="utf-8"))
    lines = {int(number): text for number, text in told["lines"].items()}
    steps = {
        (entry["scenario"], entry["step"]): Difference(frozenset(entry["lines"] or ()), entry["ours"])
        for entry in told["steps"]
    }
    return lines, steps


def write() -> None:
    """Every difference of the in-memory engine as it is now, lines kept where they cannot be told."""
    lines, known = load()
    entries = []
    for name, scenario in SCENARIOS.items():
        for number, (_, result) in enumerate(Replay(scenario, ENGINES["in memory"]()).run()):
            if result is None or result.lines == frozenset():
                continue
            before = known.get((name, number))
            told = result.lines if result.lines is not None else before.lines if before else None
            entry = {"scenario": name, "step": number, "lines": sorted(told) if told else None}
            entries.append(json.dumps({**entry, "ours": result.ours}, separators=(",", ":")))
    head = json.dumps(lines, indent=1, ensure_ascii=False)
    FILE.write_text(f'{{"lines":{head},\n"steps":[\n' + ",\n".join(entries) + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
