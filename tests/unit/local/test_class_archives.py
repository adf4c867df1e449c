"""Class-data archives: their names, who makes them, and what is left when that fails."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from sharequeue.jvm.class_archive import (
    archive_options,
    broker_archive,
    folder_of,
    length_of,
    quoted,
    spark_archive,
)
from sharequeue.local import class_archives
from sharequeue.local.preflight import find_java


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    folder = tmp_path / "jars"
    (folder / "broker").mkdir(parents=True)
    (folder / "broker" / "a.jar").write_bytes(b"1")
    return folder


def test_another_jar_and_another_java_have_an_archive_of_another_name(jars: Path, tmp_path: Path) -> None:
    java = find_java().executable
    first = broker_archive(jars, java)
    assert first == broker_archive(jars, java)
    (jars / "broker" / "a.jar").write_bytes(b"22")
    second = broker_archive(jars, java)
    (tmp_path / "other" / "lib").mkdir(parents=True)
    (tmp_path / "other" / "lib" / "modules").touch()
    third = broker_archive(jars, tmp_path / "other" / "bin" / "java")
    assert len({first, second, third}) == 3
    assert first is not None
    assert first.parent == folder_of(jars)


def test_without_java_or_jars_there_is_no_archive(jars: Path, tmp_path: Path) -> None:
    assert broker_archive(tmp_path / "none", find_java().executable) is None
    assert broker_archive(jars, tmp_path / "none" / "bin" / "java") is None
    assert spark_archive(jars, {"JAVA_HOME": str(tmp_path / "none")}) is None
    assert spark_archive(jars, {**os.environ, "SPARK_HOME": str(tmp_path)}) is None
    assert archive_options(None) == []
    assert archive_options(tmp_path / "none.jsa") == []


@pytest.mark.parametrize("name", ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"])
def test_an_archive_chosen_in_the_environment_keeps_ours_away(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "a b.jsa"
    archive.touch()
    length_of(archive).write_text("0")
    assert quoted(archive_options(archive, {})).startswith(f'"-XX:SharedArchiveFile={archive}"')
    assert archive_options(archive, {name: "-Dx=1 -XX:SharedArchiveFile=/theirs.jsa"}) == []
    assert archive_options(archive, {name: "-Dx=1 -Xshare:off"}) == []


def test_of_two_makers_at_once_one_works_and_the_other_leaves(tmp_path: Path) -> None:
    archive, begun, go_on = tmp_path / "spark-1.jsa", threading.Event(), threading.Event()
    tries: list[Path] = []

    def train(staged: Path) -> None:
        tries.append(staged)
        staged.write_bytes(b"a whole archive")
        begun.set()
        assert go_on.wait(30)

    def wanted() -> list[tuple[Path, class_archives.Train]]:
        return [] if archive.exists() else [(archive, train)]

    first = threading.Thread(target=class_archives.make_all, args=(tmp_path, wanted))
    first.start()
    assert begun.wait(30)
    class_archives.make_all(tmp_path, wanted)
    assert not archive.exists(), "the half of the first was taken for a whole"
    go_on.set()
    first.join(30)
    assert archive.read_bytes() == b"a whole archive"
    assert archive_options(archive, {})
    archive.write_bytes(b"a whole")
    assert archive_options(archive, {}) == [], "a JVM aborts on an archive that was cut short"
    assert len(tries) == 1


@pytest.mark.parametrize(
    "written", [None, b"", bytes(100)], ids=["nothing", "an empty file", "a file without a head"]
)
def test_what_did_not_become_whole_is_removed_and_not_tried_again(
    jars: Path, monkeypatch: pytest.MonkeyPatch, written: bytes | None
) -> None:
    java, tries = find_java().executable, []

    def train(jars: Path, staged: Path) -> None:
        tries.append(staged)
        if written is not None:
            staged.write_bytes(written)

    monkeypatch.setattr(class_archives, "_run_broker", train)
    monkeypatch.setattr(class_archives, "spark_archive", lambda *_: None)
    folder_of(jars).mkdir()
    for _ in range(2):
        class_archives.make_all(folder_of(jars), lambda: class_archives.missing(jars, java))
    assert len(tries) == 1
    assert {path.suffix for path in folder_of(jars).iterdir()} == {"", ".failed"}


def test_archives_that_no_jvm_reads_go_after_a_month(tmp_path: Path) -> None:
    now = time.time()
    for days in (1, 29, 31):
        (tmp_path / f"spark-{days}.jsa").touch()
        os.utime(tmp_path / f"spark-{days}.jsa", (now - days * 86_400, now - 100 * 86_400))
    class_archives.make_all(tmp_path, list)
    assert {path.stem for path in tmp_path.glob("*.jsa")} == {"spark-1", "spark-29"}


def test_where_no_folder_can_be_made_nothing_is_begun(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = find_java().executable
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a maker was started"))
    folder_of(jars).touch()
    class_archives.begin(jars, java, os.environ)
    folder_of(jars).unlink()
    monkeypatch.setattr(
        os, "access", lambda *_: False
    )  # whoever runs this may be root, who may write everywhere
    class_archives.begin(jars, java, os.environ)
