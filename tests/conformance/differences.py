"""The recorded steps in which this project differs from the broker on purpose, and why.

``differences.json`` holds every such step with our result and the line of the table of intended differences it
falls under. ``python -m tests.conformance.differences`` writes the results of the engine anew; a line that does not
follow from the two results stays as it was, or null, which the tests refuse. What the service does otherwise than the
bare engine (``service_replay``) stands in the same file, written by hand: a failing test prints the entry.
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
MARKER = ("s160_dlq_markers_and_missing_offsets", 7)
"""Line 25: a marker that is rejected by its offset is a letter without a value; the broker copies its raw bytes. The
one difference among the dead letters; `test_dead_letter_traces.py` says what ours is."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One step: the lines it falls under, and our result."""

    lines: frozenset[int]
    ours: Any


Steps = dict[tuple[str, int], Difference]


def load() -> tuple[dict[int, str], Steps, Steps]:
    """What each line says, and the differences by scenario and step: the engine's, and the service's."""
    told = json.loads(FILE.read_text(encoding="utf-8"))
    lines = {int(number): text for number, text in told["lines"].items()}
    steps, of_the_service = (
        {
            (entry["scenario"], entry["step"]): Difference(frozenset(entry["lines"] or ()), entry["ours"])
            for entry in told[part]
        }
        for part in ("steps", "service")
    )
    return lines, steps, of_the_service


def write() -> None:
    """Every difference of the in-memory engine as it is now, lines kept where they cannot be told."""
    lines, known, _ = load()
    of_the_service = json.loads(FILE.read_text(encoding="utf-8"))["service"]
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
    parts = {"steps": entries, "service": [json.dumps(e, separators=(",", ":")) for e in of_the_service]}
    text = ",\n".join(f'"{part}":[\n' + ",\n".join(rows) + "\n]" for part, rows in parts.items())
    FILE.write_text(f'{{"lines":{head},\n{text}}}\n', encoding="utf-8")


if __name__ == "__main__":
    write()
