"""The layout of all pages, and the security headers.

Each page is plain HTML with the style of reports. The headers forbid everything else: scripts, other styles,
addresses outside the service, framing, and caching.
"""

from __future__ import annotations

from starlette.responses import HTMLResponse, Response

from sharequeue import __version__
from sharequeue.reports.html import STYLE_POLICY, Content, Html, document, element, joined
from sharequeue.service.admission import ANONYMOUS
from sharequeue.service.edge.response_headers import COMMON

__all__ = ["HEADERS", "error_page", "link", "page", "secured"]

HEADERS = {
    "Content-Security-Policy": f"{STYLE_POLICY}; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    **COMMON,
}


def secured(response: Response) -> Response:
    """Return a response with the security headers."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def page(title: str, *main: Content, principal: str = ANONYMOUS, status: int = 200) -> Response:
    """Return a page."""
    # For an anonymous caller there is a link that makes the browser prompt for a token.
    caller = (
        joined("Not signed in ", link("Sign in", "/sign-in")) if principal == ANONYMOUS else joined(principal)
    )
    body = joined(
        element("a", "Skip to the content", href="#main", class_="skip"),
        element(
            "header",
            element("nav", link("sharequeue", "/", class_="home"), link("Groups", "/"), aria_label="Pages"),
            element("div", caller, class_="who"),
        ),
        element("main", *main, id="main", tabindex="-1"),
        element("footer", element("p", f"sharequeue {__version__}")),
    )
    return secured(HTMLResponse(document(f"{title} – sharequeue", body), status))


def error_page(title: str, message: str, status: int, principal: str = ANONYMOUS) -> Response:
    """Return a page that shows an error."""
    main = (element("h1", title), element("p", message, class_="wrong"))
    return page(title, *main, principal=principal, status=status)


def link(text: Content, href: str, class_: str | None = None) -> Html:
    """Return a link to an address of the service."""
    return element("a", text, href=href, class_=class_)
