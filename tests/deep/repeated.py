"""Repeat tests of the project in a process of their own, with another version of something."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.fixtures.stack import REPOSITORY


def passed(tests: Sequence[str], python: str = sys.executable, **variables: str) -> int:
    """Run the tests; return how many passed. Raises AssertionError with their output if one fails."""
    kept: Mapping[str, str] = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    ran = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=REPOSITORY,
        env={**kept, **variables},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    (count,) = re.findall(r"(\d+) passed", ran.stdout)
    return int(count)


def with_packages(folder: Path, *packages: str) -> str:
    """Install packages into a folder; return the PYTHONPATH by which they come before the environment's."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(folder)]
    subprocess.run([*pip, *packages], check=True)
    return os.pathsep.join((str(folder), str(REPOSITORY)))
