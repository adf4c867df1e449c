"""The first driver leaves an archive of the classes that it has loaded, and the next one takes them from there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sharequeue.spark.class_archive import GIVEN_BY
from tests.fixtures.stack import jars_folder
from tests.waiting import wait_until

DRIVER = """
from sharequeue import Settings
from sharequeue.spark import spark_session
spark = spark_session(Settings.load(), "archived")
assert spark.range(1000).selectExpr("id % 7 as k").groupBy("k").count().count() == 7
"""
FROM_ARCHIVE = "source: shared objects file (top)"
"""Java's words for a class from our archive, and not from that of its own classes."""

pytestmark = pytest.mark.slow


def loaded(home: Path, number: int) -> tuple[int, int]:
    """Run a driver; return how many classes its JVM loaded from our archive, and how many from elsewhere."""
    log = home / f"classes-{number}"
    # It says nothing of archives; the tests' own options do.
    environment = {name: value for name, value in os.environ.items() if name not in GIVEN_BY}
    environment |= {
        "SHAREQUEUE_HOME": str(home),
        "SHAREQUEUE_JARS": str(home / "jars"),
        "JDK_JAVA_OPTIONS": f"-Xlog:class+load:file={log}",
    }
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in log.read_text().splitlines() if "source:" in line]
    ours = sum(FROM_ARCHIVE in line for line in lines)
    return ours, sum(not re.search(r"shared objects file", line) for line in lines)


def test_the_second_driver_takes_its_classes_from_the_archive_of_the_first(
    tmp_path: Path, told: list[str]
) -> None:
    """Its JVM has ended some seconds after its process."""
    jars = tmp_path / "jars"
    jars.mkdir()
    for each in filter(Path.is_dir, jars_folder().iterdir()):
        (jars / each.name).symlink_to(each)
    first = loaded(tmp_path, 1)
    assert first[0] == 0
    wait_until(lambda: is_written(jars), 120, "no archive was written")
    second = loaded(tmp_path, 2)
    told.append(f"classes loaded from the archive, and from elsewhere: {first}, then {second}")
    assert second[0] > 5_000
    assert second[1] < first[1] / 3


def is_written(jars: Path) -> bool:
    """Return whether there is an archive, written to its end: Java writes its beginning last."""
    return any(archive.read_bytes()[:4] not in (b"", b"\0\0\0\0") for archive in jars.glob("spark-*.jsa"))
