"""The messages that the page on troubleshooting quotes are messages of ours."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tools.pages import ROOT

_QUOTED = re.compile(r"`([^`]+)`|\"([^\"]+)\"")
_FOREIGN = {"server closed the connection unexpectedly"}
"""Messages of others that have no place in our code: that of Postgres's client library."""


def _quoted() -> Iterator[str]:
    """Yield what the first column of each table quotes, without commands and their arguments."""
    for line in (ROOT / "docs" / "howto" / "troubleshooting.md").read_text().splitlines():
        if line.startswith("| "):
            first = line.removeprefix("| ").partition(" | ")[0]
            found = ("".join(each) for each in _QUOTED.findall(first))
            yield from (each for each in found if not each.startswith("sharequeue ") and "=" not in each)


def _texts() -> Iterator[str]:
    """Yield the texts and the names of classes in the code. The values in an f-string are left out, but not their own
    texts: the first of several alternatives."""
    for file in (ROOT / "sharequeue").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(map(_first_text, node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.ClassDef):
                yield node.name
    yield from (file.read_text() for file in (ROOT / "sql" / "functions").rglob("*.sql"))


def _first_text(part: ast.expr) -> str:
    texts = (each.value for each in ast.walk(part) if isinstance(each, ast.Constant))
    return next((text for text in texts if isinstance(text, str)), "")


def test_every_message_that_the_page_quotes_is_in_the_code() -> None:
    """A message that changes changes there too; `…` stands for its values."""
    texts = [" ".join(text.split()) for text in _texts()]
    quoted = sorted(set(_quoted()) - _FOREIGN)
    assert len(quoted) > 30

    def is_there(message: str) -> bool:
        parts = (re.escape(part.strip()) for part in message.split("…"))
        pattern = re.compile(".*".join(parts))
        return any(pattern.search(text) for text in texts)

    assert [each for each in quoted if not is_there(each)] == []
