"""The layout of all pages, and the security headers.

Each page is plain HTML: landmarks, a skip link, one style sheet and one small script. The headers
forbid everything else: inline scripts and styles, addresses outside the service, framing, and caching.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

from starlette.responses import HTMLResponse, Response

from sharequeue import __version__
from sharequeue.reports.html import Content, Html, address, each, element, joined
from sharequeue.service.callers import ANONYMOUS

__all__ = [
    "HEADERS",
    "STATIC",
    "UPDATE_SECONDS",
    "document",
    "error_document",
    "field",
    "link",
    "pager",
    "secured",
]

UPDATE_SECONDS = 5
"""How often the script updates a page. Without scripts the browser reloads the page, less often."""
_RELOAD_SECONDS = 20

_POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("style", "script", "connect", "img")),
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_TYPES = {"style.css": "text/css", "update.js": "text/javascript", "icon.svg": "image/svg+xml"}
STATIC = {
    name: (Path(__file__).with_name("static").joinpath(name).read_bytes(), media)
    for name, media in _TYPES.items()
}
"""The static files of the pages, by name: content and type."""


def secured(response: Response) -> Response:
    """Return a response with the security headers."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def document(
    title: str,
    main: Sequence[Content],
    *,
    principal: str = ANONYMOUS,
    status: int = 200,
    query: Sequence[tuple[str, str]] | None = None,
    every: int = UPDATE_SECONDS,
) -> Response:
    """Return a page. With a `query` it updates itself, unless the query turns that off."""
    live = query is not None and ("updates", "off") not in query
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} – sharequeue"),
        element("link", rel="icon", href="/pages/icon.svg", type="image/svg+xml"),
        element("link", rel="stylesheet", href="/pages/style.css"),
        joined(
            element("script", src="/pages/update.js", defer=True),
            element(
                "noscript", element("meta", http_equiv="refresh", content=str(max(_RELOAD_SECONDS, every)))
            ),
        )
        if live
        else None,
    )
    body = element(
        "body",
        element("a", "Skip to the content", href="#main", class_="skip"),
        element(
            "header",
            element("nav", link("sharequeue", "/", class_="home"), link("Groups", "/"), aria_label="Pages"),
            element("div", _caller(principal), class_="who"),
        ),
        element("main", *main, id="main", tabindex="-1", data_live=every if live else None),
        element("footer", element("p", f"sharequeue {__version__}. ", _updates(query))),
    )
    return secured(
        HTMLResponse(f"<!doctype html>\n{element('html', head, body, lang='en')}\n", status_code=status)
    )


def error_document(
    title: str,
    message: str,
    status: int,
    principal: str = ANONYMOUS,
    query: Sequence[tuple[str, str]] | None = None,
) -> Response:
    """Return a page that shows an error; with a `query` the page reloads itself."""
    main = (element("h1", title), element("p", message, class_="wrong"))
    return document(title, main, principal=principal, status=status, query=query)


def _caller(principal: str) -> Content:
    """Return the caller of the page; for an anonymous caller, a link that makes the browser prompt for a token."""
    return joined("Not signed in ", link("Sign in", "/sign-in")) if principal == ANONYMOUS else principal


def _updates(query: Sequence[tuple[str, str]] | None) -> Html | None:
    if query is None:
        return None
    rest = [each for each in query if each[0] != "updates"]
    if len(rest) < len(query):
        return joined(
            "This page does not update itself. ", link("Update automatically", f"?{urlencode(rest)}")
        )
    off = urlencode([*rest, ("updates", "off")])
    return joined("This page updates automatically. ", link("Stop updating", f"?{off}"))


def link(text: Content, href: str, class_: str | None = None) -> Html:
    """Return a link to an address of the service."""
    return element("a", text, href=href, class_=class_)


def field(name: str, label: str, inside: Html, note: str | None = None) -> Html:
    """Return an input with its label; its id is `name`."""
    return element(
        "div",
        element("label", label, for_=name),
        inside,
        element("span", note, class_="note") if note else None,
        class_="field",
    )


def pager(page: int, pages: int, path: str, group_id: str, **query: str | int | None) -> Html | None:
    """Return links to the previous and the next page; None if there is only one page."""
    if pages <= 1:
        return None
    entries: list[Content] = []
    for label, number in (("First", 1), ("Previous", page - 1), ("Next", page + 1), ("Last", pages)):
        there = 1 <= number <= pages and number != page
        target = address(path, group_id, **query, page=number)
        entries.append(element("li", link(label, target) if there else element("span", label, class_="off")))
    return element(
        "nav",
        element("p", f"Page {page:,} of {pages:,}"),
        element("ul", each(entries)),
        class_="pager",
        aria_label="Pages of the table",
    )
