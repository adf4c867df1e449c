"""Install packages with pip, and show which one is at work and how many are left.

The arguments are those of `pip install`. The script is run by the new environment's own Python, before anything is
installed, so it uses only the standard library. pip names the packages while it collects them, and installs all of
them in one silent step at the end: during that step the number of installed packages is counted in the environment.
The number of packages to collect is about that of `requirements.lock`. A line is written at most every three seconds.
If pip fails, its last lines are shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

EVERY_SECONDS = 3.0
SHOWN_LINES = 30
LOCK = Path(__file__).parents[1] / "requirements.lock"


class Progress:
    """What pip does, from the lines that it prints."""

    def __init__(self, expected: int, folder: Path, show: Callable[[str], None]) -> None:
        self.expected = expected
        """About how many packages there will be; 0 if unknown."""
        self.folder = folder
        """Where they are installed."""
        self._show = show
        self._now = "reading the list of packages"
        self._collected: set[str] = set()
        self._to_install: list[str] = []
        self._shown = ""

    def read(self, line: str) -> None:
        """Take in a line of pip."""
        if found := re.match(r"\s*(?:Downloading|Using cached) (\S+?)-\d(\S*)( \(.*\))?$", line):
            name, file, size = found[1], found[2], found[3] or ""
            if file.endswith(".metadata"):
                self._now = f"choosing the version of {name}"
            else:
                self._collected.add(name)
                self._now = f"collecting {name}{size}"
        elif found := re.match(r"\s*Building (?:editable|wheel) for (\S+)", line):
            self._now = f"building {found[1]}"
        elif line.startswith("Installing collected packages: "):
            self._to_install = line.partition(": ")[2].split(", ")

    def show(self) -> None:
        """Write a line if it differs from the last one."""
        if self._to_install:
            done = len(self._to_install) - len(left := self._left())
            text = f"installing {left[0]}: {done} of {len(self._to_install)} done" if left else "finishing"
        else:
            collected = len(self._collected)
            about = f" of about {max(self.expected, collected)}" if self.expected else ""
            text = f"{self._now}: {collected}{about} collected"
        if text != self._shown:
            self._show(text)
        self._shown = text

    def _left(self) -> list[str]:
        """Return the packages that are not installed yet, in pip's order."""
        # An old pip without the package wheel writes egg-info for a source archive.
        there = {_normal(each.name.split("-")[0]) for each in self.folder.glob("*.*-info")}
        return [name for name in self._to_install if _normal(name) not in there]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def install(arguments: Sequence[str]) -> int:
    """Run `pip install`; return its exit code."""
    # Only an installation of the project, with its extras in brackets, has the packages of the lock file.
    whole = any("[" in each for each in arguments)
    expected = len(re.findall(r"^\S+==", LOCK.read_text(), re.MULTILINE)) if whole else 0
    folder = Path(sysconfig.get_path("purelib"))
    progress = Progress(expected, folder, lambda text: print(f"  {text}", flush=True))
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    lines: list[str] = []
    ended = threading.Event()

    def show() -> None:
        while not ended.wait(EVERY_SECONDS):
            progress.show()

    began = time.monotonic()
    with subprocess.Popen(
        [*command, *arguments],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as pip:
        threading.Thread(target=show, daemon=True).start()
        for line in pip.stdout or ():
            lines.append(line.rstrip())
            progress.read(line.rstrip())
    ended.set()
    if pip.returncode:
        print("\n".join(lines[-SHOWN_LINES:]), file=sys.stderr)
    else:
        print(f"  installed in {time.monotonic() - began:.0f} s", flush=True)
    return pip.returncode


if __name__ == "__main__":
    sys.exit(install(sys.argv[1:]))
