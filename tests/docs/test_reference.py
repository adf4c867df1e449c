"""The reference says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sharequeue.deadletters import attempts, letters
from sharequeue.deadletters.redrive import selection
from tools.pages import ROOT
from tools.reference import CONFIG_DEFAULTS, FOLDER, WRITE, config_defaults, pages, written


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_what_the_code_knows_is_in_the_page(page: Path) -> None:
    """The generated parts of a page are those that the code makes now."""
    assert page.read_text() == written(page), f"{page} is old: run `.venv/bin/{WRITE}`"


def test_the_configs_of_the_sql_are_those_of_the_code() -> None:
    """Names and defaults of group configs are declared once, in `keys.py`; the SQL has them from there."""
    assert CONFIG_DEFAULTS.read_text() == config_defaults(), f"run `.venv/bin/{WRITE}`"


def test_every_header_is_in_the_page() -> None:
    """A header that is written to a dead letter, or to a record that was put back, is one that the page explains."""
    text = (FOLDER / "dead-letter.md").read_text()
    written_ones = [
        value
        for module in (letters, attempts, selection)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str) and value.startswith(("__dlq.", "sharequeue."))
    ]
    assert len(written_ones) > 15
    short = {
        name: name.removeprefix("__dlq.errors").removeprefix("sharequeue.dead.letter")
        for name in written_ones
    }
    missing = [name for name, end in short.items() if f"`{name}" not in text and f"`{end}`" not in text]
    assert not missing


def test_the_three_ways_name_functions_that_are_there() -> None:
    """Every function of the page is defined in the file beside it."""
    page = ROOT / "docs" / "explanation" / "three-ways.md"
    rows = re.findall(r"\| `(\w+)` \| `([\w/.]+)` \|", page.read_text())
    assert len(rows) > 30
    for function, file in rows:
        defined = rf"(def |function sharequeue\w*\.){function}\("
        assert re.search(defined, (ROOT / file).read_text()), f"{file} has no {function}"
