"""The rules, the leased job, the consumer, Dagster and a new project on the other versions of Python.

All tests run on the environment's own Python. Each of the others must be on PATH, for example as `python3.12`. It
gets an environment of its own, in which these tests are repeated.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deep.repeated import passed
from tests.fixtures.stack import REPOSITORY

pytestmark = [pytest.mark.deep, pytest.mark.timeout(2400)]

VERSIONS = ("3.11", "3.12", "3.13")
TESTS = (
    "tests/unit",
    "tests/integration/consumer/test_share_consumer.py",
    "tests/integration/dagster/test_observe.py",
    "tests/integration/dagster/test_queues.py",
    "tests/integration/spark/test_lease.py",
    "tests/integration/spark/test_rows.py",
    "tests/integration/spark/test_run.py",
    "tests/integration/starter",
)


@pytest.mark.parametrize("version", [each for each in VERSIONS if not sys.version.startswith(f"{each}.")])
def test_the_project_works_on_another_python(version: str, tmp_path: Path, told: list[str]) -> None:
    """What passes with the environment's Python passes with this one."""
    python = shutil.which(f"python{version}")
    assert python, f"python{version} is not on PATH: install it"
    subprocess.run([python, "-m", "venv", str(tmp_path)], check=True)
    own = str(tmp_path / "bin" / "python")
    packages = ("--constraint", "tools/constraints.txt", "-e", ".[dagster,service,embedded,dev]")
    install = [own, "tools/installation.py", *packages]
    subprocess.run(install, check=True, cwd=REPOSITORY)
    count = passed(TESTS, own)
    told.append(f"Python {version}: {count} tests passed")
