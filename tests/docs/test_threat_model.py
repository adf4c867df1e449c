"""Each threat names tests that there are."""

from __future__ import annotations

import re

from tools.pages import ROOT

PAGE = ROOT / "docs" / "explanation" / "threat-model.md"


def test_each_threat_has_a_test_that_there_is() -> None:
    """Every row of a table names at least one, and each of them is the name of a function, or of a case of one."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    threats = [line for line in rows if not line.startswith(("| threat |", "| --- |"))]
    named = {name for line in threats for name in re.findall(r"`(test_\w+)(?:\[\w+\])?`", line)}
    assert len(threats) > 20
    assert all("`test_" in line for line in threats), [line for line in threats if "`test_" not in line]
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "tests" / "deep").glob("deep_*.py")]
    there = {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)}
    assert not named - there
