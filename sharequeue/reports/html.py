"""Build HTML from elements, which escape everything that is put into them.

The content of an element is escaped unless it is `Html`, which only elements make. So a name, a reason or a record
can never become markup by mistake. This is the only task for a template library here; Python functions do the rest,
and the type checker checks them.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from pathlib import Path
from urllib.parse import quote, urlencode

__all__ = [
    "STYLE_POLICY",
    "Content",
    "Html",
    "address",
    "document",
    "each",
    "element",
    "joined",
    "moment",
    "short_moment",
    "table",
]

_STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
STYLE_POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'"
)
"""The Content-Security-Policy of a document: nothing but its own style."""

_EMPTY = frozenset(("br", "hr", "input", "link", "meta"))
_SHOWN_CONTROLS = {
    number: f"\\x{number:02x}" for number in (*range(0x20), *range(0x7F, 0xA0)) if chr(number) not in "\t\n"
}
"""Browsers replace or drop control characters; they are written out, so that nothing is hidden."""
_SHOWN_CONTROLS |= {number: f"\\u{number:04x}" for number in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Characters that change the direction of text: a name with one could change how the text beside it reads."""


class Html(str):
    """Text that is HTML. Only this module and `drawing` make it, from escaped text."""

    __slots__ = ()


Content = str | int | float | None
"""The content of an element: Html as it is, everything else escaped; None is empty."""


def document(title: str, body: Html) -> str:
    """Return a whole document. It loads nothing from elsewhere: no script, font, picture or style."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=STYLE_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Html(_STYLE)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def element(tag: str, /, *inside: Content, **attributes: str | int | bool | None) -> Html:
    """Return an element. Attributes are named as in HTML: `class_` for a keyword of Python, `_` for a hyphen.

    True makes an attribute without a value; None and False leave it out.
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_escaped(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _EMPTY:
        return Html(f"<{tag}{given}>")
    return Html(f"<{tag}{given}>{joined(*inside)}</{tag}>")


def joined(*parts: Content) -> Html:
    """Return the parts, one after the other."""
    return Html("".join(part if isinstance(part, Html) else _text(part) for part in parts))


def each(parts: Iterable[Content]) -> Html:
    """Return the parts of an iterable, one after the other."""
    return joined(*parts)


def address(path: str, name: str | None = None, **query: str | int | None) -> str:
    """Return the address of a page: a path, below it any name, and a query without the values that are None.

    Browsers treat the names `.` and `..` as steps in the path: they are put into the query.
    """
    asked: dict[str, str | int] = {key: value for key, value in query.items() if value is not None}
    if name in (".", ".."):
        asked = {"name": name, **asked}
        name = "-"
    at = path if name is None else f"{path}/{quote(name, safe='')}"
    return f"{at}?{urlencode(asked)}" if asked else at


def moment(at: datetime) -> Html:
    """Return a time in UTC, for readers and programs."""
    return _time(at, "%Y-%m-%d %H:%M:%S")


def short_moment(at: datetime) -> Html:
    """Return a time for a table: without its year."""
    return _time(at, "%m-%d %H:%M:%S")


def _time(at: datetime, form: str) -> Html:
    utc = at.astimezone(UTC)
    return element("time", utc.strftime(form), datetime=f"{utc:%Y-%m-%dT%H:%M:%SZ}")


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Content]],
    *,
    caption: str,
    of: int | None = None,
    numbers: Collection[str] = (),
    texts: Collection[str] = (),
) -> Html:
    """Return a table, with a note below if it has fewer than `of` rows. The first cell of a row is its header.

    Columns of numbers, and those in `numbers`, are aligned right. Those in `texts` may wrap.
    """
    sides = [
        "number"
        if name in numbers or any(isinstance(row[index], int | float) for row in rows)
        else "text"
        if name in texts
        else None
        for index, name in enumerate(columns)
    ]
    head = each(
        element("th", name, scope="col", class_=side) for name, side in zip(columns, sides, strict=True)
    )
    body = each(
        element(
            "tr",
            *(
                element("td" if place else "th", _cell(cell), scope=None if place else "row", class_=side)
                for place, (cell, side) in enumerate(zip(row, sides, strict=True))
            ),
        )
        for row in rows
    )
    left = 0 if of is None else of - len(rows)
    return joined(
        element(
            "div",
            element(
                "table",
                element("caption", caption),
                element("thead", element("tr", head)),
                element("tbody", body),
            ),
            class_="wide",
            # So that it can be scrolled with the keyboard.
            tabindex=0,
            role="region",
            aria_label=caption,
        ),
        element("p", f"The first {len(rows):,} of {of:,}.", class_="note") if left > 0 else None,
    )


def _cell(cell: Content) -> Content:
    if cell is None:
        return "–"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _text(part: Content) -> str:
    return "" if part is None else _escaped(str(part))


def _escaped(text: str) -> str:
    return escape(text.translate(_SHOWN_CONTROLS))
