"""Where does the page of a group and a day lie?

`<output>/reports/<group>/<day>.html`, a day by UTC, on this machine: where the output is a URI, `<home>/output`
stands for it. It is replaced as a whole.
"""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, date
from pathlib import Path
from urllib.parse import quote

from sharequeue.reporting.page import page
from sharequeue.settings import Settings
from sharequeue.state.group_report import GroupReport

_LONGEST = 180


def page_path(settings: Settings, group_id: str, day: date) -> Path:
    """Return where the page lies. A group's id may be anything; its folder is one name that every disk takes."""
    name = (
        quote(group_id, safe=" ").replace(".", "%2E")
        if not group_id.strip(".")
        else quote(group_id, safe=" ")
    )
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}-{hashlib.sha256(group_id.encode()).hexdigest()[:16]}"
    return Path(settings.local_output) / "reports" / name / f"{day}.html"


def write_page(settings: Settings, report: GroupReport) -> Path:
    """Write the report where its day's page lies; return the path."""
    path = page_path(settings, report.figures.group_id, report.at.astimezone(UTC).date())
    replace_text(path, page(report))
    return path


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new, never a half; make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    staged.write_text(text, encoding="utf-8")
    staged.replace(path)
