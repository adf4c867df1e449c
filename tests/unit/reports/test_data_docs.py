"""The files of Data Docs: each is found by a path that leads down, and by no other."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from sharequeue.domain.settings import Settings
from sharequeue.reports.data_docs import (
    context_folder,
    data_docs_address,
    group_in_address,
    read_file,
    site_folder,
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Give a site with an index, a page below it, and a style sheet; a secret lies beside it."""
    folder = tmp_path / "site"
    for name in ("index.html", "validations/built_in/run one/é.html", "static/styles/a.css", "notes.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (tmp_path / "secret.html").write_text("secret")
    (folder / "link.html").symlink_to(tmp_path / "secret.html")
    return folder


def test_a_file_has_its_content_and_its_type(site: Path) -> None:
    assert read_file(site, "index.html") == (b"index.html", "text/html; charset=utf-8")
    assert read_file(site, "static/styles/a.css") == (b"static/styles/a.css", "text/css; charset=utf-8")
    page = read_file(site, "validations/built_in/run one/é.html")
    assert page is not None
    assert page[1] == "text/html; charset=utf-8"


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", ".", "..", "../secret.html", "static/../../secret.html", "/secret.html", "//secret.html"),
        *("static", "static/", "nothing.html", "notes.txt", "link.html", "..\\secret.html", "index.html\0"),
        *("./index.html", "index.html/", "%2e%2e/secret.html", "static/./styles/a.css"),
    ],
)
def test_no_path_leads_out_of_the_site(site: Path, path: str) -> None:
    """Neither `..` nor an absolute path nor a link does; files of other types are not read either."""
    assert read_file(site, path) is None


def test_a_site_that_does_not_exist_has_no_file(tmp_path: Path) -> None:
    assert read_file(tmp_path / "none", "index.html") is None


@pytest.mark.parametrize(
    "group", ["orders", "a/b", "..", ".", "%2E", "é ü", "a%2Fb", "~", "a~2Fb", "x" * 240]
)
def test_any_group_id_is_one_segment_of_the_address(tmp_path: Path, group: str) -> None:
    """The address leads to the group whose name it has, and its folder is in the data folder."""
    settings = Settings({"home": tmp_path, "service_url": "http://localhost:28080"})
    address = data_docs_address(settings, group)
    *front, name, page = urlsplit(address).path.split("/")
    assert (front, page) == (["", "v1", "data-docs"], "index.html")
    assert group_in_address(name) == group
    assert unquote(name) == name
    assert name not in (".", "..")
    folder = context_folder(settings, group)
    assert folder.parent == tmp_path / "great_expectations"
    assert site_folder(folder).is_relative_to(folder)
