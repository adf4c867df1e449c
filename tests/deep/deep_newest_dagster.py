"""Dagster's newest 1.x, in a folder of its own: it has every name that we import, and loads our code location."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.dagster_names import private_imports
from tests.fixtures.stack import REPOSITORY

pytestmark = pytest.mark.deep

PACKAGES = ("dagster<2", "dagster-postgres", "dagster-dg-cli", "dagster-webserver")


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the newest 1.x of Dagster and of what it needs."""
    folder = tmp_path_factory.mktemp("newest-dagster")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--upgrade",
        "--target",
        str(folder),
        *PACKAGES,
    ]
    subprocess.run(command, check=True)
    return folder


def python(newest: Path, *arguments: str) -> str:
    """What a program prints that has this Dagster."""
    path = os.pathsep.join((str(newest), str(REPOSITORY)))
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_newest_dagster_has_every_private_name(newest: Path, told: list[str]) -> None:
    """Each import of the project, with the version that pip gives today."""
    statements = "\n".join(sorted({found.code for found in private_imports()}))
    code = f"{statements}\nimport dagster; print(dagster.__version__, dagster.__file__)"
    version, file = python(newest, "-c", code).split()
    assert file.startswith(str(newest))
    told.append(f"Dagster {version} has the {len(private_imports())} private imports of the project")


def test_the_code_location_loads_with_the_newest_dagster(newest: Path) -> None:
    """Its definitions, their tests, and what a `defs.yaml` may say."""
    tests = [
        f"tests/unit/dagster/test_{name}.py" for name in ("definitions", "share_group", "merged_location")
    ]
    assert " passed" in python(newest, "-m", "pytest", "-q", *tests)
