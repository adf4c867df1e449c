"""Check that a browser, a telephone and a screen reader can use a page, and that it stays within the service."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from xml.etree.ElementTree import Element

import html5lib

_FIELDS = ("input", "select", "textarea")
_ADDRESSES = ("href", "src", "action", "formaction", "poster", "data", "srcset", "ping", "background")


class Page:
    """A page as html5lib reads it, which does so as browsers do, and refuses what is not HTML."""

    def __init__(self, text: str) -> None:
        self.root: Element = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)
        self.elements = [each for each in self.root.iter() if isinstance(each.tag, str)]

    def all(self, *names: str) -> list[Element]:
        """Return the elements of these names."""
        return [each for each in self.elements if each.tag.rpartition("}")[2] in names]

    def links(self) -> list[str]:
        """Return where its links lead."""
        return [each.get("href", "") for each in self.all("a")]

    @property
    def text(self) -> str:
        """Everything that is read."""
        return " ".join("".join(self.root.itertext()).split())

    def rows(self, caption: str) -> list[list[str]]:
        """Return the cells of the table whose caption begins so."""
        (table,) = (each for each in self.all("table") if said(each.find("caption")).startswith(caption))
        body = table.find("tbody")
        assert body is not None
        return [[said(cell) for cell in row] for row in body]


def said(element: Element | None) -> str:
    """Return the text of an element."""
    return "" if element is None else " ".join("".join(element.itertext()).split())


def read(text: str) -> Page:
    """Return a page that breaks none of the rules."""
    page = Page(text)
    _structure(page)
    _names(page)
    _tables(page)
    _own(page)
    return page


def _structure(page: Page) -> None:
    (html,) = page.all("html")
    assert html.get("lang") == "en"
    assert said(page.all("title")[0])
    for landmark in ("header", "main", "footer", "h1"):
        assert len(page.all(landmark)) == 1, landmark
    levels = [int(each.tag[1]) for each in page.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    assert any(each.get("name") == "viewport" for each in page.all("meta"))
    ids = [each.get("id") for each in page.elements if each.get("id") is not None]
    assert [each for each, times in Counter(ids).items() if times > 1] == []
    for name in ("for", "aria-labelledby", "aria-describedby", "list"):
        assert {each.get(name) for each in page.elements} - {None} <= set(ids), name
    assert {each[1:] for each in page.links() if each.startswith("#")} <= set(ids)


def _names(page: Page) -> None:
    """Everything that is operated, or seen, has a name in words."""
    labelled = {each.get("for") for each in page.all("label") if said(each)}
    for field in page.all(*_FIELDS):
        if field.get("type") not in ("hidden", "submit") and field.get("hidden") is None:
            assert field.get("id") in labelled, field.attrib
    for each in page.all("a", "button", "summary", "th", "option"):
        assert said(each) or each.get("aria-label"), each.attrib
    for nav in page.all("nav"):
        assert nav.get("aria-label")
    for each in page.elements:
        if each.get("role") in ("region", "img"):
            assert each.get("aria-label"), each.attrib
        assert int(each.get("tabindex", "0")) <= 0
    for svg in page.all("svg"):
        assert svg.get("aria-hidden") == "true" or svg.get("role") == "img"


def _tables(page: Page) -> None:
    for table in page.all("table"):
        assert said(table.find("caption"))
        columns = len(table.findall("thead/tr/th"))
        assert all(each.get("scope") == "col" for each in table.findall("thead/tr/th"))
        for row in table.findall("tbody/tr"):
            assert len(row) == columns
            assert row[0].tag == "th"
            assert row[0].get("scope") == "row"


def _own(page: Page) -> None:
    """Nothing is inside the page but what the policy allows, and nothing leads out of the service."""
    for each in page.elements:
        assert not [name for name in each.attrib if name.lower().startswith("on") or name == "style"], (
            each.attrib
        )
        for name in _ADDRESSES:
            leads = each.get(name)
            assert leads is None or (leads[:1] in ("/", "?", "#") and leads[:2] != "//"), leads
    assert page.all("script", "link", "iframe", "object", "embed", "base", "img") == []
    assert len(page.all("style")) == 1
