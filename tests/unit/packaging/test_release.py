"""The notes of a release are its section of the changelog, and what lacks one is not released."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest

from tools.release import ROOT, NotReleasable, notes_of, require_contents, version_of

CHANGELOG = "# Changelog\n\n## 1.1.0 (2026-12-01)\n\n- More.\n\n## 1.0.0 (unreleased)\n\n- The first.\n"


def test_the_notes_are_the_section_of_the_version() -> None:
    """Up to the next heading, and no further."""
    assert notes_of(CHANGELOG, "1.1.0", dated=True) == "sharequeue 1.1.0\n\n- More.\n"
    assert notes_of(CHANGELOG, "1.0.0", dated=False) == "sharequeue 1.0.0\n\n- The first.\n"


@pytest.mark.parametrize(
    ("version", "reason"),
    [("1.0.0", "write the day"), ("1.2.0", "needs a section"), ("1.1", "needs a section")],
)
def test_a_version_without_a_dated_section_is_not_released(version: str, reason: str) -> None:
    """The message has what to write into the changelog."""
    with pytest.raises(NotReleasable, match=reason):
        notes_of(CHANGELOG, version, dated=True)


def test_the_version_is_the_same_everywhere_and_has_a_section() -> None:
    """The project, the package and the changelog agree."""
    assert notes_of((ROOT / "CHANGELOG.md").read_text(), version_of(ROOT), dated=False)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["sharequeue/__init__.py", "tests/__init__.py"], "package sharequeue alone"),
        (["sharequeue/py.typed"], "lacks sharequeue/_sql/migrations"),
    ],
)
def test_a_wheel_with_other_packages_or_without_the_schema_is_not_released(
    names: list[str], reason: str, tmp_path: Path
) -> None:
    """The wheel is looked into before it is installed."""
    with ZipFile(tmp_path / "some.whl", "w") as archive:
        for name in names:
            archive.writestr(name, "")
    with pytest.raises(NotReleasable, match=reason):
        require_contents(tmp_path / "some.whl")
