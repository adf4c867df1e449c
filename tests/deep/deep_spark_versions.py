"""The leased job, the sinks and the dead letters, on the oldest and the newest series of Spark.

Each series is installed into a folder of its own, which comes before the environment's. The tests of the main run are
repeated with it, in a process of their own with servers of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sharequeue.words.settings.jar_sets import CONNECTOR, SERIES
from tests.fixtures.stack import REPOSITORY

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1500)]

TESTS = (
    "tests/integration/spark/test_lease.py",
    "tests/integration/spark/test_run.py",
    "tests/integration/spark/test_rows.py",
    "tests/integration/spark/test_sinks.py",
    "tests/integration/spark/test_postgres_sink.py",
    "tests/integration/spark/test_dead_letters.py",
    "tests/integration/spark/test_read.py",
    "tests/integration/spark/test_seek.py",
    "tests/integration/spark/test_formats.py",
    "tests/integration/spark/test_record_page.py",
    "tests/integration/dagster/test_quality.py",  # Great Expectations imports parts of PySpark
)


@pytest.mark.parametrize("series", [SERIES[CONNECTOR][0], SERIES[CONNECTOR][-1]])
def test_the_leased_job_sinks_and_dead_letters(series: str, tmp_path: Path, told: list[str]) -> None:
    """What passes with the environment's Spark passes with this series."""
    folder = tmp_path / "pyspark"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), f"pyspark=={series}.*"]
    subprocess.run(pip, check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join((str(folder), str(REPOSITORY)))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        cwd=REPOSITORY,
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    installed = next(folder.glob("pyspark-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    (passed,) = re.findall(r"(\d+) passed", ran.stdout)
    told.append(f"PySpark {installed}: {passed} tests passed")
