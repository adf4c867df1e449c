"""The blocks of a page, and how each is run.

A block says what it is: `python`, `sh` and `sql` are run as they stand, in the order of the page; `text` and `yaml`
are shown. A page has one shell and one Python interpreter, both new, as for a reader who types its blocks one after
another. Nothing of the test or of another page is there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharequeue.database import Database
from tools.typed import Interpreter, Shell

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "docker/*.md", "tests/*.md", "tools/*.md")
    for page in ROOT.glob(pattern)
    if page.name != "CHANGELOG.md"
)
RUN = ("python", "sh", "sql")
SHOWN = ("text", "yaml")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def execute(self, names: dict[str, Any]) -> None:
        """Run the block, which is Python, in this process with these names."""
        exec(compile(self.text, str(self), "exec"), names)  # noqa: S102 - our own page


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order; a block inside a list loses its indentation."""
    opened: tuple[int, str, int] | None = None
    inside: list[str] = []
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        stripped = line.strip()
        if not stripped.startswith("```"):
            inside.append(line)
        elif opened is None:
            opened = (number, stripped.removeprefix("```"), len(line) - len(line.lstrip()))
            inside = []
        else:
            at, language, indented = opened
            yield Block(page, at, language, "".join(f"{each[indented:]}\n" for each in inside))
            opened = None
    assert opened is None, f"{page}: the block of line {opened[0] if opened else 0} has no end"


@dataclass(slots=True)
class Reader:
    """Somebody who types what a page shows, block by block."""

    folder: Path
    """Where the shell and the interpreter start."""
    environment: Mapping[str, str]
    database: Database
    programs: Path
    """Where the `sharequeue` is that a shell finds."""
    _shell: Shell | None = None
    _python: Interpreter | None = None

    def reads(self, page: str) -> list[Block]:
        """Run every block of the page that is to be run, in a new shell and a new interpreter; return them.

        Raises AssertionError if one fails.
        """
        self.end()
        done = [block for block in blocks(page) if block.language in RUN]
        try:
            for block in done:
                self.run(block)
        finally:
            self.end()
        return done

    def reads_here(self, page: str) -> str:
        """Run the blocks of a page, those of Python in this process; return what the others printed."""
        names: dict[str, Any] = {}
        shown = ""
        for block in blocks(page):
            if block.language == "python":
                block.execute(names)
            elif block.language in RUN:
                shown += self.run(block)
        return shown

    def run(self, block: Block) -> str:
        """Run one block as it stands, after the earlier ones; return what it prints."""
        if block.language == "python":
            return self.interpreter.run(block.text, str(block))
        if block.language == "sh":
            self._shell = self._shell or Shell(self.folder, self._variables())
            return self._shell.run(block.text)
        with self.database.transaction() as connection:
            # Straight to the driver, without parameters: a percent sign is just text.
            connection.connection.cursor().execute(block.text)
        return ""

    @property
    def interpreter(self) -> Interpreter:
        """The interpreter of the page."""
        self._python = self._python or Interpreter(self.folder, self._variables())
        return self._python

    def end(self) -> None:
        """End the shell and the interpreter."""
        for each in (self._shell, self._python):
            if each is not None:
                each.end()
        self._shell = self._python = None

    def _variables(self) -> dict[str, str]:
        path = os.pathsep.join(
            [str(self.folder), str(self.programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        )
        modules = os.pathsep.join([str(self.folder), str(ROOT)])
        return {**os.environ, "PYTHONPATH": modules, **self.environment, "PATH": path}
