"""The file of a group's page for a day.

The path is `<output>/reports/<group>/<day>.html` on this machine, with the day in UTC. If the output is a URI,
`<home>/output` is used instead. The file is replaced as a whole.
"""

from __future__ import annotations

import os
from datetime import UTC, date
from pathlib import Path

from sharequeue.domain.names import folder_name
from sharequeue.domain.settings import Settings
from sharequeue.reports.page import report_page
from sharequeue.reports.read import GroupReport


def page_path(settings: Settings, group_id: str, day: date) -> Path:
    """Return the path of the page."""
    return Path(settings.local_output) / "reports" / folder_name(group_id) / f"{day}.html"


def write_page(settings: Settings, report: GroupReport) -> Path:
    """Write the report to the page of its day; return the path."""
    path = page_path(settings, report.figures.group_id, report.at.astimezone(UTC).date())
    replace_text(path, report_page(report))
    return path


def replace_text(path: Path, text: str) -> None:
    """Write a file so that readers see either the old or the new one, never a part; create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    staged.write_text(text, encoding="utf-8")
    staged.replace(path)
