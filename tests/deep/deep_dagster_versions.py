"""The oldest Dagster that `pyproject.toml` allows, and the newest 1.x, each in a folder of its own.

Every private name that we import is there, the code location loads, and the tests of queues, sensors and checks pass.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.deep.repeated import passed, with_packages
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
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the PYTHONPATH of another Dagster, and of what it needs; it begins with their folder."""
    folder = tmp_path_factory.mktemp(f"dagster-{request.param}")
    return with_packages(folder, *PACKAGES[request.param])


def test_this_dagster_has_every_private_name(path: str, told: list[str]) -> None:
    """Each import of the project works with it."""
    statements = "\n".join(sorted({found.code for found in private_imports()}))
    code = f"{statements}\nimport dagster; print(dagster.__version__, dagster.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    version, file = ran.stdout.split()
    assert file.startswith(path.partition(os.pathsep)[0])
    told.append(f"Dagster {version} has the {len(private_imports())} private imports of the project")


def test_definitions_runs_sensors_and_checks(path: str, told: list[str]) -> None:
    """The definitions load; queues run, are observed, fail, and are retried."""
    tests = ("tests/unit/dagster", *(f"tests/integration/dagster/test_{name}.py" for name in SUBJECTS))
    told.append(f"{passed(tests, PYTHONPATH=path)} tests passed with it")
