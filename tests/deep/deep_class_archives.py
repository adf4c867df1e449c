"""The class-data archives as `up` has them made: a first job of Spark's, a broker of its own (a minute)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sharequeue.jvm.class_archive import folder_of
from sharequeue.local import class_archives
from sharequeue.local.preflight import find_java
from tests.fixtures.stack import jars_folder
from tests.waiting import wait_until


@pytest.mark.timeout(900)
def test_both_archives_are_made_in_the_background(tmp_path: Path) -> None:
    jars, java = tmp_path / "jars", find_java().executable
    jars.symlink_to(jars_folder())
    assert len(class_archives.missing(jars, java)) == 2
    class_archives.begin(jars, java, os.environ)
    wait_until(lambda: not class_archives.missing(jars, java), 800)
    assert sorted(path.name.split("-")[0] for path in folder_of(jars).glob("*.jsa")) == ["broker", "spark"]
    assert all(path.stat().st_size > 20_000_000 for path in folder_of(jars).glob("*.jsa"))
