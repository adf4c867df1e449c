"""Every relative link of every page leads to a page that exists, and to a heading of it."""

from __future__ import annotations

import re
from pathlib import Path

from tools.pages import PAGES, ROOT

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def prose(page: Path) -> str:
    """Return the page without its blocks."""
    return _BLOCK.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Return the names of the page's headings, as GitHub and MkDocs make them."""
    return {
        re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-")
        for text in _HEADING.findall(prose(page))
    }


def test_every_relative_link_leads_somewhere() -> None:
    """A link to a page or a heading that is not there is named with the page that has it."""
    broken, seen = [], 0
    for name in [*PAGES, "CHANGELOG.md"]:
        page = ROOT / name
        for link in _LINK.findall(prose(page)):
            if "://" in link or link.startswith("mailto:"):
                continue
            seen += 1
            path, _, heading = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (heading and heading not in anchors(target)):
                broken.append(f"{name}: {link}")
    assert not broken
    assert seen > 40


def test_every_picture_is_on_a_page_and_small() -> None:
    """A picture that no page shows is not kept, and none makes a clone larger than it must be."""
    shown = {(ROOT / name).parent / link for name in PAGES for link in _LINK.findall(prose(ROOT / name))}
    pictures = set((ROOT / "docs/pictures").iterdir())
    assert pictures == {each.resolve() for each in shown if each.suffix == ".png"}
    assert max(each.stat().st_size for each in pictures) < 200_000


def test_the_front_page_names_every_page() -> None:
    """A page that the front page does not name is a page that nobody finds."""
    docs = ROOT / "docs"
    named = {link.partition("#")[0] for link in _LINK.findall(prose(docs / "index.md"))}
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")} - {"index.md"}
    assert not pages - named


def test_the_site_names_every_page() -> None:
    """The navigation of the site has every page, and no page that is gone."""
    docs = ROOT / "docs"
    navigation = (docs / "site" / "mkdocs.yml").read_text().partition("\nnav:")[2]
    named = set(re.findall(r": (\S+\.md)", navigation))
    assert named == {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
