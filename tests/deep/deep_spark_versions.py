"""The leased job, the sinks and the dead letters, on the oldest and the newest series of Spark.

Each series is installed into a folder of its own, which comes before the environment's. The tests of the main run are
repeated with it, in a process of their own with servers of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sharequeue.domain.settings.jar_sets import CONNECTOR, SERIES
from tests.deep.repeated import passed, with_packages

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
def test_jobs_sinks_and_dead_letters_work_on_this_spark(series: str, tmp_path: Path, told: list[str]) -> None:
    """What passes with the environment's Spark passes with this series."""
    folder = tmp_path / "pyspark"
    count = passed(TESTS, PYTHONPATH=with_packages(folder, f"pyspark=={series}.*"))
    installed = next(folder.glob("pyspark-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    told.append(f"PySpark {installed}: {count} tests passed")


@pytest.mark.parametrize("series", sorted({*SERIES["delta"]} & {*SERIES["iceberg"]}))
def test_lakes_of_any_age_work_on_this_spark(series: str, tmp_path: Path) -> None:
    """The jars of a series work with its newest Spark through all that a table does by age."""
    passed(
        ["--deep", "tests/deep/deep_lake_ages.py"],
        PYTHONPATH=with_packages(tmp_path / "pyspark", f"pyspark=={series}.*"),
    )
