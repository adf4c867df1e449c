"""The Data Docs of a group: Great Expectations' pages about its dead letters.

Dagster's checks write them below `<home>/great_expectations/<group>`, and the service returns them. Nothing here
imports Great Expectations.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote

import sqlalchemy as sa

from sharequeue.domain.names import folder_name
from sharequeue.domain.settings import Settings

INDEX = "index.html"
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".png": "image/png",
    ".gif": "image/gif",
    ".svg": "image/svg+xml",
    ".ico": "image/vnd.microsoft.icon",
    ".otf": "font/otf",
}
"""The types of the files of a site; no other file is read."""


def context_folder(settings: Settings, group_id: str) -> Path:
    """Return the folder of a group's context of Great Expectations."""
    return settings.home / "great_expectations" / folder_name(group_id)


def site_folder(context: Path) -> Path:
    """Return the folder of the site in a context."""
    return context / "gx" / "uncommitted" / "data_docs" / "local_site"


CREATED = sa.text("select created_at from sharequeue.group_list where group_id = :group_id")
"""When a group was created."""


def is_of_life(site: Path, created_at: datetime | None) -> bool:
    """Return whether a site is of the group that was created then, not of a deleted one of the same name."""
    index = site / INDEX
    if created_at is None or not index.exists():
        return False
    return datetime.fromtimestamp(index.stat().st_mtime, UTC) >= created_at


def data_docs_address(settings: Settings, group_id: str) -> str:
    """Return the address of the site at the service."""
    return f"{settings.service_url}{data_docs_path(group_id)}"


def data_docs_path(group_id: str) -> str:
    """Return the path of the site at the service.

    Its pages refer to each other by relative addresses. So the group is one part of the path, whatever its name is:
    it is escaped with `~`, because servers and proxies replace `%2F` by a slash.
    """
    name = quote(group_id, safe="").replace("~", "%7E")
    # Browsers treat `.` and `..` as steps in the path.
    name = name if name.strip(".") else name.replace(".", "%2E")
    return f"/v1/data-docs/{name.replace('%', '~')}/{INDEX}"


def group_in_address(name: str) -> str:
    """Return the group from its part of the path."""
    return unquote(name.replace("~", "%"))


def read_file(site: Path, path: str) -> tuple[bytes, str] | None:
    """Return a file of a site, with its content type; None if the site has no such file.

    The path leads down only: a path with `..`, and a link out of the site, are not followed.
    """
    parts = path.split("/")
    kind = CONTENT_TYPES.get(Path(parts[-1]).suffix)
    if kind is None or any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts):
        return None
    try:
        root = site.resolve(strict=True)
        file = root.joinpath(*parts).resolve(strict=True)
        return (file.read_bytes(), kind) if file.is_relative_to(root) else None
    except OSError:
        return None
