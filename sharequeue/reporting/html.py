"""How is HTML made so that nothing of somebody else's becomes a tag?

Out of elements: what is put into one is escaped unless it is `Html`, which only elements make. So a name, a reason or
a record can never be markup, whoever forgets about it. This is what a template library would be needed for; Python
functions do the rest, and the type checker reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape
from urllib.parse import quote, urlencode

__all__ = ["NOTHING", "Content", "Html", "address", "each", "element", "joined", "table"]

_EMPTY = frozenset(("br", "hr", "input", "link", "meta"))
_SHOWN_CONTROLS = {
    number: f"\\x{number:02x}" for number in (*range(0x20), *range(0x7F, 0xA0)) if chr(number) not in "\t\n"
}
"""A browser replaces or drops what is no character of a text; so that nothing is hidden, it is written out."""
_SHOWN_CONTROLS |= {number: f"\\u{number:04x}" for number in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Signs that turn the direction of the text around them: a name could make its neighbours read otherwise."""


class Html(str):
    """Text that is HTML. Only this module and `drawing` make it, of what they have escaped."""

    __slots__ = ()


Content = str | int | float | None
"""What an element can contain: Html as it is, everything else escaped; None is nothing."""

NOTHING = Html("")


def element(tag: str, /, *inside: Content, **attributes: str | int | bool | None) -> Html:
    """Return an element. Attributes are named as in HTML, `class_` for a word of Python's, `_` for a hyphen.

    True is an attribute without a value; one that is None or False is left out.
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
    """Return one part after the other."""
    return Html("".join(part if isinstance(part, Html) else _text(part) for part in parts))


def each(parts: Iterable[Content]) -> Html:
    """Return the parts of any number."""
    return joined(*parts)


def address(path: str, name: str | None = None, **query: str | int | None) -> str:
    """Return an address of ours: below a path, a name that may be anything, and a query without what is None.

    Browsers take the names `.` and `..` for steps in the path: these go into the query.
    """
    asked: dict[str, str | int] = {key: value for key, value in query.items() if value is not None}
    if name in (".", ".."):
        asked = {"name": name, **asked}
        name = "-"
    at = path if name is None else f"{path}/{quote(name, safe='')}"
    return f"{at}?{urlencode(asked)}" if asked else at


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Content]],
    *,
    caption: str,
    of: int | None = None,
    numbers: Collection[str] = (),
    texts: Collection[str] = (),
) -> Html:
    """Return a table; below it a note where it has not all `of` what there is. The first cell of a row names it.

    Columns of numbers, and those of `numbers`, are to the right. Those of `texts` may take several lines.
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
            # Whoever has no mouse can scroll it, too.
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
