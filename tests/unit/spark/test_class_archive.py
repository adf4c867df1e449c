"""The archive of a driver's classes: used when it is whole, written when there is none, never a reason to fail."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf

from sharequeue.domain.java import Java, NoJava
from sharequeue.domain.settings import Settings
from sharequeue.spark import SparkNotReady, class_archive, session
from sharequeue.spark.class_archive import CLASS_PATH_OF_SPARK, GIVEN_BY, ClassArchive

WHOLE = (0xF00BABA8).to_bytes(4, "little") + b"classes"
DAY = 86_400


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """A Java with the archive of its own classes, and a Spark."""
    for name in (*GIVEN_BY, *CLASS_PATH_OF_SPARK):
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


def found(folder: Path, **conf: str) -> ClassArchive | None:
    return class_archive.class_archive(
        folder, {name.replace("_", "."): value for name, value in conf.items()}
    )


def options(folder: Path) -> str:
    archive = found(folder)
    return archive.options if archive else ""


def written(folder: Path, content: bytes) -> Path:
    """Write the archive that a driver asks its JVM for; return its path."""
    archive = found(folder)
    assert archive is not None
    assert f'"-XX:ArchiveClassesAtExit={archive.path}"' in archive.options
    archive.path.write_bytes(content)
    return archive.path


def made_old(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


@pytest.mark.usefixtures("java")
def test_the_first_driver_writes_an_archive_and_the_next_one_uses_it(folder: Path) -> None:
    path = written(folder, WHOLE)
    assert path.parent == folder
    # A JVM with a damaged archive would crash, or compute something else.
    assert options(folder).startswith(f'"-XX:SharedArchiveFile={path}" -XX:+VerifySharedSpaces -Xlog')


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("content", [b"", b"\0\0\0\0"])
def test_one_driver_at_a_time_writes_the_archive(folder: Path, content: bytes) -> None:
    """Until its JVM has ended, others do without an archive. One that was killed is not waited for."""
    path = written(folder, content)
    assert options(folder) == ""
    made_old(path, class_archive.WRITTEN_AFTER_SECONDS + 1)
    assert "ArchiveClassesAtExit" in options(folder)
    assert options(folder) == ""


def test_an_archive_is_of_one_java_and_of_the_same_jars(folder: Path, java: Java, tmp_path: Path) -> None:
    """Or of Java's own archive. The times of jars count in seconds, as a layer of an image keeps them."""
    jar = tmp_path / "spark/jars/spark-core.jar"
    os.utime(jar, ns=(0, 1_700_000_000_500_000_000))
    first = written(folder, WHOLE)
    os.utime(jar, ns=(0, 1_700_000_000_000_000_000))
    assert str(first) in options(folder)
    (java.home / "lib/server/classes.jsa").write_text("17.0.16")
    second = written(folder, WHOLE)
    os.utime(jar, ns=(0, 0))
    assert written(folder, WHOLE) not in (first, second)


def test_a_folder_has_few_archives_and_the_disk_stays_usable(
    folder: Path, java: Java, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each environment has one. One that was not used for long makes room; a full disk gets none."""

    def of_environment(number: int) -> str:
        (java.home / "release").write_text(str(number))
        return options(folder)

    of_each = [of_environment(number) for number in range(class_archive.MOST + 1)]
    assert [bool(each) for each in of_each] == [True] * class_archive.MOST + [False]
    made_old(oldest := next(iter(folder.iterdir())), class_archive.UNUSED_AFTER_SECONDS + DAY)
    assert of_environment(class_archive.MOST)
    assert not oldest.exists()
    assert len(list(folder.iterdir())) == class_archive.MOST
    made_old(next(iter(folder.iterdir())), class_archive.UNUSED_AFTER_SECONDS + DAY)
    full = shutil.disk_usage(folder)._replace(free=class_archive.FREE_BYTES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    assert not of_environment(class_archive.MOST + 1)


@pytest.mark.parametrize(
    "given",
    [
        "-Xshare:off",
        "-XX:SharedArchiveFile=/a",
        "-XX:+AutoCreateSharedArchive",
        "-javaagent:/otel/javaagent.jar",
        '"-agentlib:jdwp=transport=dt_socket,server=y"',
        "@/etc/java.options",
        "--patch-module=java.base=/a",
        "-XX:StartFlightRecording",
        "-XX:+UseZGC",
    ],
)
@pytest.mark.parametrize("by", [*GIVEN_BY, "spark.driver.defaultJavaOptions"])
@pytest.mark.usefixtures("java")
def test_what_else_a_jvm_is_given_decides(
    folder: Path, monkeypatch: pytest.MonkeyPatch, by: str, given: str
) -> None:
    """With an agent, a JVM that is to write an archive does not start; a recording would not be made."""
    conf = {by: f"-Xmx1g {given}"}
    if by.isupper():
        monkeypatch.setenv(by, conf.pop(by))
    assert class_archive.class_archive(folder, conf) is None


@pytest.mark.usefixtures("java")
def test_ordinary_options_change_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser=a@b -Xmx1g --add-opens=java.base/java.nio=ALL-UNNAMED")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-memory 2g pyspark-shell")
    assert found(folder, spark_driver_extraJavaOptions="-XX:+UseG1GC -Dx=y") is not None


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("name", ["a:b", 'a"b', "a\\b", "a\nb", "a\udcffb"])
def test_a_folder_whose_name_an_option_cannot_have_gets_no_archive(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert found(tmp_path / name) is None


def test_where_there_can_be_no_archive_there_is_no_option(
    folder: Path, java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With files in the class path; with a Java that has no archive of its own classes; without a folder, without
    jars, without a Java.
    """
    for name in CLASS_PATH_OF_SPARK:
        with monkeypatch.context() as patch:
            patch.setenv(name, str(tmp_path))
            assert options(folder) == ""
    assert found(folder, spark_driver_extraClassPath="/a.jar") is None
    (tmp_path / "spark/conf").mkdir()
    assert options(folder) == ""
    (tmp_path / "spark/conf").rmdir()
    assert options(tmp_path / "nowhere") == ""
    (tmp_path / "spark/jars").rename(tmp_path / "elsewhere")
    assert options(folder) == ""
    (tmp_path / "elsewhere").rename(tmp_path / "spark/jars")
    assert options(folder) != ""
    (java.home / "lib/server/classes.jsa").unlink()
    assert options(folder) == ""

    def missing() -> Java:
        raise NoJava("none")

    monkeypatch.setattr(class_archive, "find_java", missing)
    assert options(folder) == ""


@pytest.mark.parametrize("is_there", [True, False])
def test_a_jvm_that_does_not_start_with_an_archive_is_started_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """The archive is removed, so that the next driver writes another one."""
    path = tmp_path / "spark-0.jsa"
    path.touch()
    archive, given = ClassArchive(path, is_there), []

    def launched(conf: SparkConf, popen_kwargs: Any) -> str:
        given.append(conf.get("spark.driver.extraJavaOptions"))
        if archive.options in (given[-1] or ""):
            raise RuntimeError("JAVA_GATEWAY_EXITED")
        return "a gateway"

    monkeypatch.setattr(session, "class_archive", lambda folder, conf: archive)
    monkeypatch.setattr(session, "launch_gateway", launched)
    conf = SparkConf(loadDefaults=False).set("spark.driver.extraJavaOptions", "-Dx=y")
    assert session._gateway(Settings.load(tmp_path), conf) == "a gateway"
    assert given == [f"-Dx=y {archive.options}", "-Dx=y"]
    assert path.exists() is not is_there

    def failing(conf: SparkConf, popen_kwargs: Any) -> str:
        raise RuntimeError("JAVA_GATEWAY_EXITED")

    path.touch()
    monkeypatch.setattr(session, "launch_gateway", failing)
    with pytest.raises(SparkNotReady):
        session._gateway(Settings.load(tmp_path), conf)
    assert path.exists()
