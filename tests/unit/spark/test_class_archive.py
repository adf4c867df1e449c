"""The archive of a driver's classes: used when it is whole, written when there is none, never a reason to fail."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sharequeue.domain.java import Java, NoJava
from sharequeue.spark import class_archive
from sharequeue.spark.class_archive import CHOSEN_BY, SETTINGS_OF_SPARK, archive_options

WHOLE = (0xF00BABA8).to_bytes(4, "little") + b"classes"


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """A Java with the archive of its own classes, and a Spark."""
    for name in (*CHOSEN_BY, *SETTINGS_OF_SPARK):
        monkeypatch.delenv(name, raising=False)
    home, spark = tmp_path / "java", tmp_path / "spark"
    for file in (home / "lib/server/classes.jsa", home / "release", spark / "jars/spark-core.jar"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("17")
    made = Java(home, home / "bin/java", "17.0.15", 17)
    monkeypatch.setattr(class_archive, "find_java", lambda: made)
    monkeypatch.setattr(class_archive, "_find_spark_home", lambda: str(spark))
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "jars"
    made.mkdir()
    return made


def written(folder: Path, content: bytes) -> Path:
    """Write the archive that a driver asks its JVM for; return its path."""
    _, _, rest = archive_options(folder).partition("ArchiveClassesAtExit=")
    path = Path(rest.partition('"')[0])
    path.write_bytes(content)
    return path


@pytest.mark.usefixtures("java")
def test_the_first_driver_writes_an_archive_and_the_next_one_uses_it(folder: Path) -> None:
    path = written(folder, WHOLE)
    assert path.parent == folder
    assert archive_options(folder).startswith(f' "-XX:SharedArchiveFile={path}" -Xlog')


@pytest.mark.usefixtures("java")
def test_an_archive_is_left_alone_while_it_is_written_and_written_again_when_it_was_cut(folder: Path) -> None:
    path = written(folder, b"\0\0\0\0")
    assert archive_options(folder) == ""
    before = time.time() - 2 * class_archive.WRITTEN_AFTER_SECONDS
    os.utime(path, (before, before))
    assert "ArchiveClassesAtExit" in archive_options(folder)


def test_an_archive_is_of_one_java_and_of_the_same_jars(folder: Path, java: Java, tmp_path: Path) -> None:
    first = written(folder, WHOLE)
    (java.home / "release").write_text("17.0.16")
    second = written(folder, WHOLE)
    jar = tmp_path / "spark/jars/spark-core.jar"
    os.utime(jar, ns=(0, 0))
    third = written(folder, WHOLE)
    assert len({first, second, third}) == 3
    # One of before stays, for another environment.
    assert {each for each in (first, second, third) if each.exists()} == {second, third}


@pytest.mark.parametrize(
    "chosen", ["-Xshare:off", "-XX:SharedArchiveFile=/a", "-XX:+AutoCreateSharedArchive"]
)
@pytest.mark.parametrize("by", CHOSEN_BY)
@pytest.mark.usefixtures("java")
def test_options_of_every_jvm_decide(
    folder: Path, monkeypatch: pytest.MonkeyPatch, by: str, chosen: str
) -> None:
    monkeypatch.setenv(by, f"-Xmx1g {chosen}")
    assert archive_options(folder) == ""


def test_where_there_can_be_no_archive_there_is_no_option(
    folder: Path, java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With files in the class path; where nothing can be written; with a Java that has no archive of its own classes;
    without a Java.
    """
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert archive_options(folder) == ""
    monkeypatch.delenv("HADOOP_CONF_DIR")
    (tmp_path / "spark/conf").mkdir()
    assert archive_options(folder) == ""
    (tmp_path / "spark/conf").rmdir()
    assert archive_options(folder) != ""
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        assert archive_options(folder) == ""
    (java.home / "lib/server/classes.jsa").unlink()
    assert archive_options(folder) == ""

    def missing() -> Java:
        raise NoJava("none")

    monkeypatch.setattr(class_archive, "find_java", missing)
    assert archive_options(folder) == ""
