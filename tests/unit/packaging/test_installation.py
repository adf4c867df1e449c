"""The progress of an installation: which package is at work, and how many are left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.installation import Progress


@pytest.fixture
def shown() -> list[str]:
    """Give the lines that are shown."""
    return []


@pytest.fixture
def progress(tmp_path: Path, shown: list[str]) -> Progress:
    """Give the progress of an installation of about ten packages."""
    return Progress(10, tmp_path, shown.append)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "  Downloading pyspark-4.1.4.tar.gz (434.2 MB)",
            "collecting pyspark (434.2 MB): 1 of about 10 collected",
        ),
        (
            "  Using cached click-8.5.1-py3-none-any.whl (126 kB)",
            "collecting click (126 kB): 1 of about 10 collected",
        ),
        # A newer pip chooses all versions first.
        (
            "  Downloading click-8.5.1-py3-none-any.whl.metadata (2 kB)",
            "choosing the version of click: 0 of about 10 collected",
        ),
        (
            "Building wheels for collected packages: pyspark",
            "reading the list of packages: 0 of about 10 collected",
        ),
        (
            "  Building wheel for pyspark (pyproject.toml): started",
            "building pyspark: 0 of about 10 collected",
        ),
    ],
)
def test_a_line_of_pip_is_shown(progress: Progress, shown: list[str], line: str, text: str) -> None:
    """With the package and the number."""
    progress.read(line)
    progress.show()
    progress.show()
    assert shown == [text]


def test_the_silent_step_is_counted_in_the_environment(
    progress: Progress, shown: list[str], tmp_path: Path
) -> None:
    """pip installs in the order that it names, and writes a folder for each package."""
    progress.read("Installing collected packages: typing-extensions, Jinja2, pyspark")
    for name in (
        "typing_extensions-4.16.0.dist-info",
        "jinja2-3.1.6.dist-info",
        "pyspark-4.1.4-py3.11.egg-info",
    ):
        progress.show()
        (tmp_path / name).mkdir()
    progress.show()
    assert shown == [
        "installing typing-extensions: 0 of 3 done",
        "installing Jinja2: 1 of 3 done",
        "installing pyspark: 2 of 3 done",
        "finishing",
    ]
