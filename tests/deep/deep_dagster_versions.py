"""The oldest Dagster that `pyproject.toml` allows, and the newest 1.x, each in a folder of its own.

Every private name that we import is there, the code location loads, and the tests of queues, sensors and checks pass.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.dagster_names import private_imports
from tests.fixtures.stack import REPOSITORY

pytestmark = pytest.mark.deep

SUBJECTS = ("alarms", "observe", "queues", "retries")
PACKAGES = {
    "oldest": (
        "dagster==1.13.0",
        "dagster-postgres==0.29.0",
        "dagster-dg-cli==1.13.0",
        "dagster-webserver==1.13.0",
    ),
    "newest": ("dagster<2", "dagster-postgres", "dagster-dg-cli", "dagster-webserver"),
}


@pytest.fixture(scope="module", params=PACKAGES)
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with another Dagster, and what it needs."""
    folder = tmp_path_factory.mktemp(f"dagster-{request.param}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(folder)]
    subprocess.run([*pip, *PACKAGES[request.param]], check=True)
    return folder


def python(other: Path, *arguments: str) -> str:
    """What a program prints that has this Dagster."""
    path = os.pathsep.join((str(other), str(REPOSITORY)))
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_it_has_every_private_name(other: Path, told: list[str]) -> None:
    """Each import of the project works with it."""
    statements = "\n".join(sorted({found.code for found in private_imports()}))
    code = f"{statements}\nimport dagster; print(dagster.__version__, dagster.__file__)"
    version, file = python(other, "-c", code).split()
    assert file.startswith(str(other))
    told.append(f"Dagster {version} has the {len(private_imports())} private imports of the project")


def test_definitions_runs_sensors_and_checks(other: Path, told: list[str]) -> None:
    """The definitions load; queues run, are observed, fail, and are retried."""
    tests = ("tests/unit/dagster", *(f"tests/integration/dagster/test_{name}.py" for name in SUBJECTS))
    (passed,) = re.findall(r"(\d+) passed", python(other, "-m", "pytest", "-q", *tests))
    told.append(f"{passed} tests passed with it")
