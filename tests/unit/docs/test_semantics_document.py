"""`docs/explanation/semantics.md` promises what tests show: every test that it names is there."""

from __future__ import annotations

import re

from tests.fixtures.stack import REPOSITORY

_NAMED = re.compile(r"`(?:((?:test|deep)_\w+\.py))?::(test_\w+)")


def test_every_test_that_the_guarantees_name_exists() -> None:
    """A guarantee whose test was renamed or removed is none. `::test_x` alone is of the file named before it."""
    text = (REPOSITORY / "docs" / "explanation" / "semantics.md").read_text()
    found: dict[str, list[str]] = {}
    for path in (*(REPOSITORY / "tests").rglob("test_*.py"), *(REPOSITORY / "tests").rglob("deep_*.py")):
        found.setdefault(path.name, []).append(path.read_text())
    file, named = "", 0
    for name, test in _NAMED.findall(text):
        file = name or file
        assert file in found, f"there is no tests/**/{file}"
        assert len(found[file]) == 1, f"two files are called {file}: the document could mean either"
        assert f"def {test}(" in found[file][0], f"{file} has no {test}"
        named += 1
    assert named > 40
