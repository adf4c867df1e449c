"""The page of supported versions, compared with the tests that try them and with the bounds of the project."""

from __future__ import annotations

import re
import tomllib

import pytest

from sharequeue.domain.settings.jar_sets import CONNECTOR, SERIES
from tests.deep import deep_dagster_versions, deep_other_brokers, deep_postgres_versions, deep_python_versions
from tools.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "versions.md").read_text()


def _rows(part: str) -> str:
    """Return the rows of a part: its own, and those below it without a name."""
    found = re.search(rf"^\| {part} \|.*\n(?:\| \|.*\n)*", PAGE, re.MULTILINE)
    assert found, f"versions.md has no row {part}"
    return found[0]


@pytest.mark.parametrize(
    ("part", "versions"),
    [
        ("Python", deep_python_versions.VERSIONS),
        (r"Spark \(PySpark\)", SERIES[CONNECTOR]),
        ("Postgres", deep_postgres_versions.SERIES),
        ("Kafka broker", deep_other_brokers.VERSIONS),
        ("Dagster", [each.partition("==")[2] for each in deep_dagster_versions.PACKAGES["oldest"][:1]]),
    ],
)
def test_each_version_that_is_tried_is_on_the_page(part: str, versions: list[str]) -> None:
    """In the rows of its part."""
    assert [version for version in versions if version not in _rows(part)] == []


def test_the_files_on_the_page_are_there() -> None:
    """Each cell names what tried it."""
    files = {file.name for file in (ROOT / "tests").rglob("*.py")}
    assert set(re.findall(r"`((?:deep|test)_\w+\.py)`", PAGE)) <= files


def test_the_bounds_of_the_project_are_on_the_page() -> None:
    """The versions of Python and Spark that can be installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    assert "| Python | 3.11 to 3.13 |" in PAGE
    assert "pyspark[sql]>=4.0,<4.3" in project["optional-dependencies"]["spark"]
    assert "| Spark (PySpark) | 4.0 to 4.2 |" in PAGE
