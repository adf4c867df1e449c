"""The blocks of a page, and how each is run.

A block says what it is: `python`, `sh` and `sql` are run as they stand, in the order of the page; `text` and `yaml`
are shown. A page's blocks share what they define, as they do for a reader who types them one after another.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sharequeue.database import Database

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "docker/*.md", "tests/*.md")
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
    environment: Mapping[str, str]
    database: Database
    programs: Path
    """Where the `sharequeue` is that a shell finds."""
    names: dict[str, Any] = field(default_factory=dict)

    def reads(self, page: str) -> list[Block]:
        """Run every block of the page that is to be run; return them. Raises AssertionError where one fails."""
        done = [block for block in blocks(page) if block.language in RUN]
        for block in done:
            self.run(block)
        return done

    def run(self, block: Block) -> None:
        """Run one block as it stands."""
        match block.language:
            case "python":
                exec(compile(block.text, str(block), "exec"), self.names)  # noqa: S102 - our own page
            case "sh":
                self._shell(block)
            case _:
                with self.database.transaction() as connection:
                    # Straight to the driver, without parameters: a percent sign is just text.
                    connection.connection.cursor().execute(block.text)

    def _shell(self, block: Block) -> None:
        path = os.pathsep.join(
            [str(self.folder), str(self.programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        )
        # A reader has a terminal, is asked and agrees.
        text = re.sub(r"--execute\b(?! --yes)", "--execute --yes", block.text)
        typed = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment, "PATH": path},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert typed.returncode == 0, f"{block}\n{block.text}\n{typed.stdout}\n{typed.stderr}"
