"""What comments, docstrings and pages refer to is in the tree: rules, files, pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.pages import PAGES, ROOT

_FOLDERS = ("sharequeue", "sql", "pipelines", "orchestration", "benchmarks", "docker", "tests", "tools")
_RULE = re.compile(r"(?<![\w-])R-[A-Z]{2}(?:-\d+)?\b")
_LISTED = re.compile(r"^\| (R-[A-Z]{2}-\d+) \|", re.MULTILINE)
_COMMENTS = {".py": re.compile(r"^ *# .*|  # .*", re.MULTILINE), ".sql": re.compile(r"-- .*")}
_FILE = re.compile(
    r"(?<![\w./<>-])(?:(?:[\w-]+/)+[\w-]+\.(?:py|sql|md)|[\w-]+\.(?:sql|md)|(?<=`)[\w-]+\.py)(?![\w.-]\w)"
)
_NOT_HERE = re.compile(
    r"kafka-semantics|(?<!by )\bdesign: ?\w+|\(design\b[^)]*\)|\b[Rr](?:ows?|ules?) \d+(?: to| and|[,:).])"
    r"|(?:\b(?:[Cc]hapters?|[Ss]ections?) |§ ?)\d+"
)
_OUTSIDE = """kafka-semantics 2.14; design: poison isolation; (design, last part); see rows 9 to 12; rule 7.
chapter 3; Section 2.1; § 4"""
_EXAMPLES = {"folder/file.py", "my_module.py", "sharequeue/spark/sinks/NAME.py"}


@cache
def _files() -> list[Path]:
    """Return the files with code, and the pages that describe the tree; other pages name files of their readers."""
    code = [
        path
        for folder in _FOLDERS
        for end in ("py", "sql")
        for path in sorted((ROOT / folder).rglob(f"*.{end}"))
    ]
    pages = [
        name for name in PAGES if not name.startswith(("docs/howto/", "docs/tutorial/", "docs/reference/"))
    ]
    return [*code, *(ROOT / name for name in [*pages, "sql/README.md"])]


@cache
def _prose(path: Path) -> str:
    """Return the comments and docstrings of a file, or a whole page."""
    text = path.read_text()
    if path.suffix == ".md":
        return text
    said = _COMMENTS[path.suffix].findall(text)
    if path.suffix == ".py":
        said += [
            str(node.value.value)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ]
    return "\n".join(said)


def _found(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield where a pattern occurs in prose, and what it is."""
    for path in _files():
        for match in pattern.finditer(_prose(path)):
            yield str(path.relative_to(ROOT)), match[0]


def test_every_rule_that_is_cited_is_in_the_list_of_rules() -> None:
    """A rule with its number is a line of `docs/evidence/conformance.md`; R-XX stands for all lines of that kind."""
    rules = set(_LISTED.findall((ROOT / "docs/evidence/conformance.md").read_text()))
    known = rules | {rule.rpartition("-")[0] for rule in rules} | {"R-XX"}
    cited = [
        (str(path.relative_to(ROOT)), rule) for path in _files() for rule in _RULE.findall(path.read_text())
    ]
    assert len(cited) > 100
    assert [each for each in cited if each[1] not in known] == []


def test_every_file_that_is_named_exists() -> None:
    """A comment or a page names a file by its path, or by the end of it."""
    pages = [ROOT / name for name in [*PAGES, "CHANGELOG.md", "tests/conformance/traces/README.md"]]
    there = [f"/{path.relative_to(ROOT)}" for path in [*_files(), *pages]]
    ends = {path[at + 1 :] for path in there for at, letter in enumerate(path) if letter == "/"}
    named = list(_found(_FILE))
    assert len(named) > 100
    assert [each for each in named if each[1] not in ends | _EXAMPLES] == []


def test_nothing_refers_to_documents_outside_the_tree() -> None:
    """Nothing cites notes that are not here, or their chapters and rows: a comment cites a KIP or R-XX."""
    assert len(_NOT_HERE.findall(_OUTSIDE)) == 8
    pages = [(name, match[0]) for name in PAGES for match in _NOT_HERE.finditer((ROOT / name).read_text())]
    assert list(_found(_NOT_HERE)) + pages == []
