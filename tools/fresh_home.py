"""Follow the README and the tutorials as a new reader does: a new home folder, no environment active, pasted blocks.

`python -m tools.fresh_home` does all three pages, `python -m tools.fresh_home own-queue` one. The checkout is a clone
of the last commit in `~/sharequeue`. Nothing is done that the page does not have, except to wait where it says that
something happens by itself, and to leave out `make check` and `make test`, which a build server runs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sharequeue.local import stack
from tools.pages import ROOT, RUN, Block, blocks
from tools.typed import Interpreter, Shell

OF_THE_MACHINE = ("_proxy", "cert", "ca_bundle")
"""Parts of the names of variables by which a machine reaches the package index, beside those of pip."""


def new_environment(home: Path) -> dict[str, str]:
    """Return the variables of a new user's shell."""
    reached = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or any(part in name.lower() for part in OF_THE_MACHINE)
    }
    path = "/usr/local/bin:/usr/bin:/bin"
    return {**reached, "HOME": str(home), "PATH": path, "LANG": os.environ.get("LANG", "C.UTF-8")}


@dataclass(slots=True)
class FreshHome:
    """A reader's home folder, shell and Python prompt."""

    folder: Path
    environment: Mapping[str, str]
    say: Callable[[str], None] = print
    shell: Shell = field(init=False)
    python: Interpreter | None = None

    def __post_init__(self) -> None:
        """Open the shell."""
        self.shell = Shell(self.folder, self.environment)

    def paste(self, block: Block) -> str:
        """Paste a block into the shell, or at the prompt of the `python` that the shell finds; return its output."""
        self.say(f"  {block}")
        if block.language != "python":
            return self.shell.run(block.text)
        if self.python is None:
            folder, program = self.shell.run("pwd\ncommand -v python\n").split()
            self.python = Interpreter(Path(folder), self.environment, prompt=True, program=Path(program))
        return self.python.run(block.text, str(block))

    def end(self) -> None:
        """Stop the servers, and close the prompt and the shell."""
        if self.python is not None:
            self.python.end()
        self.shell.end()
        for home in self.folder.glob("*/**/.sharequeue"):
            stack.down(home, self.say)


@contextmanager
def fresh_home(clone: bool = True) -> Iterator[FreshHome]:
    """Give a new home folder, with a clone of this checkout in `~/sharequeue`."""
    with tempfile.TemporaryDirectory(prefix="home-", ignore_cleanup_errors=True) as made:
        home = Path(made)
        # Postgres runs as another user if we are root: its folder must be one that everybody may enter.
        home.chmod(0o755)
        if clone:
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(home / "sharequeue")], check=True)
        reader = FreshHome(home, new_environment(home), lambda line: print(line, flush=True))
        try:
            yield reader
        finally:
            reader.end()


def wait_for(figures: Callable[[], tuple[int, ...]], wanted: tuple[int, ...]) -> None:
    """Wait until a group has these figures. Raises AssertionError after 20 minutes."""
    deadline = time.monotonic() + 1200
    while (found := figures()) != wanted:
        assert time.monotonic() < deadline, f"expected {wanted}, found {found} after 20 minutes"
        time.sleep(1)


def first_queue() -> None:
    """Follow the first tutorial."""
    with fresh_home() as reader:
        for block in blocks("docs/tutorial/first-queue.md"):
            if block.language in RUN or "pip install" in block.text:
                reader.paste(block)
        reader.shell.run("sharequeue down\n")


def own_queue() -> None:
    """Follow the second tutorial, from an empty folder."""
    with fresh_home() as reader:
        reader.shell.run("mkdir work && cd work\n")
        shop = reader.folder / "work" / "shop"

        def ended() -> tuple[int, ...]:
            # Before its first run there is no such group, and then no figure of it.
            rows = json.loads(
                reader.shell.run("sharequeue groups describe --group orders -o json || echo '[]'\n")
            )
            return tuple(sum(row[name] or 0 for row in rows) for name in ("accepted", "rejected", "lag"))

        for block in blocks("docs/tutorial/own-queue.md"):
            if "order[" in block.text:
                handler = shop / "queues" / "orders.py"
                line = textwrap.indent(block.text, " " * 8)
                handler.write_text(
                    handler.read_text().replace("        return {", f"{line}        return {{")
                )
            if "groups describe" in block.text:
                wait_for(ended, (95, 5, 0))
            if block.language == "sh" or "pip install" in block.text:
                reader.paste(block)
            if "--execute" in block.text:
                wait_for(ended, (100, 5, 0))


def readme() -> None:
    """Follow the README: `make demo`, and the commands that it prints at its end."""
    with fresh_home() as reader:
        reader.shell.run("cd sharequeue\n")
        for block in blocks("README.md"):
            if block.language == "sh":
                reader.say(f"  {block}")
                lines = block.text.splitlines()
                commands = [line for line in lines if not line.startswith(("make check", "make test"))]
                reader.say(reader.shell.run("\n".join(commands) + "\n"))
            elif "\nNext\n" in block.text:
                shown = block.text.partition("\nNext\n")[2].splitlines()
                for command in (re.split(r"\s{2,}", line.strip())[0] for line in shown):
                    if command != "make ui":  # needs a browser
                        reader.say(f"  {block}: {command}")
                        reader.shell.run(f"{command}\n")


PAGES = {"readme": readme, "first-queue": first_queue, "own-queue": own_queue}

if __name__ == "__main__":
    for name in sys.argv[1:] or PAGES:
        print(name, flush=True)
        PAGES[name]()
