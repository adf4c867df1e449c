"""Bounds that a page names are those of the SQL functions."""

from __future__ import annotations

import re
from pathlib import Path

from sharequeue.database.schema_files import sql_root

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "operations.md"
_EPOCH = re.compile(r"check_between\('the (?:state|member) epoch', \w+, 0, (\d+)\)")
_LAST = re.compile(r"if p_epoch = (\d+) then")


def test_the_largest_epoch_is_the_one_that_the_page_names() -> None:
    """Every function takes epochs up to 2³¹ − 1, the last of Kafka's protocol, and `operations.md` says so."""
    text = "\n".join(file.read_text() for file in (sql_root() / "functions").rglob("*.sql"))
    assert {int(bound) for bound in _EPOCH.findall(text) + _LAST.findall(text)} == {2**31 - 1}
    assert "state epochs above 2³¹ − 1" in PAGE.read_text()
