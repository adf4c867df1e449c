"""The table of Kafka's rules: the test that pins each, and where we differ.

`python -m tests.conformance.table` writes the tables of `docs/evidence/conformance.md` anew: the tests from their own
marks (`@pytest.mark.rule("R-AK-6")`), the rules, our differences and the recorded scenarios from `rules.json`, and
how many recorded steps are equal (`counts`). A test holds the committed tables against them.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.conformance import counts
from tests.conformance.live_java_scenarios import JAVA
from tests.conformance.live_scenarios import LIVE

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "evidence" / "conformance.md"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of Kafka's, in our words: what it is about, and `same` or how and why ours differs."""

    id: str
    says: str
    ours: str
    scenarios: tuple[str, ...]

    @property
    def family(self) -> str:
        """The letters of its id: `R-AK`."""
        return self.id.rpartition("-")[0]

    @property
    def later(self) -> bool:
        """Whether it belongs to a room that is not there yet."""
        return self.ours.startswith("later:")


def rules() -> list[Rule]:
    """All of them, in order."""
    rows = json.loads((Path(__file__).parent / "rules.json").read_text())
    return [Rule(row["id"], row["says"], row["ours"], tuple(row["scenarios"])) for row in rows]


@cache
def marks() -> dict[str, list[str]]:
    """The tests that each rule's marks name, as `folder/file.py::test`."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        for test, ids in _marked(path):
            for rule_id in ids:
                found.setdefault(rule_id, []).append(f"{path.relative_to(TESTS).as_posix()}::{test}")
    return found


def _marked(path: Path) -> Iterator[tuple[str, list[str]]]:
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.rule":
                yield node.name, [str(ast.literal_eval(argument)) for argument in call.args]


def written() -> str:
    """The table, one row a rule."""
    pinned = marks()
    lines = ["| id | Kafka's rule | ours | pinned by |", "| --- | --- | --- | --- |"]
    for rule in rules():
        tests = [f"`{test}`" for test in pinned.get(rule.id, [])]
        scenarios = [scenario.partition("_")[0] for scenario in rule.scenarios]
        live = [name for name, scenario in (LIVE | JAVA).items() if rule.id in scenario.rules]
        told = {"scenarios ": scenarios, "beside a broker ": [f"`{name}`" for name in live]}
        by = ", ".join([*tests, *(says + ", ".join(names) for says, names in told.items() if names)])
        lines.append(f"| {rule.id} | {rule.says} | {rule.ours} | {by or '–'} |")
    return "\n".join(lines)


def document(text: str) -> str:
    """The document with the tables as they are now."""
    for name, table in {"steps": counts.written(), "rules": written()}.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, _, rest = text.partition(begin)
        after = rest.partition(end)[2]
        text = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text()))
