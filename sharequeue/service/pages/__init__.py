"""HTML pages: the groups, a group with its leases, and its dead letters.

They are rendered on the server, without a script and without an address outside the service, and are read-only. Read
`requests` (the caller's rights and the limits of a page), `layout` (the frame of each page), then the pages:
`overview_page`, `group_page`, `letters_page`; and `data_docs_page`, for the files that Great Expectations has
written. Figures are read and shown by `sharequeue.reports`.
"""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from sharequeue.service.callers import ANONYMOUS, demanded
from sharequeue.service.pages.data_docs_page import data_docs
from sharequeue.service.pages.group_page import group
from sharequeue.service.pages.layout import secured
from sharequeue.service.pages.letters_page import dead_letters
from sharequeue.service.pages.overview_page import overview
from sharequeue.service.pages.requests import PageRequest, Pages

__all__ = ["Pages", "routes"]


def routes(pages: Pages) -> list[Route]:
    """Return the routes of all pages."""
    return [
        Route("/", pages.route(overview)),
        Route("/groups/{group_id:group}", pages.route(group)),
        Route("/dead-letters/{group_id:group}", pages.route(dead_letters)),
        Route("/v1/data-docs/{name}/{path:path}", pages.route(data_docs)),
        Route("/sign-in", pages.route(_sign_in)),
    ]


def _sign_in(request: PageRequest) -> Response:
    """Make the browser prompt for a token, which it then sends with each request."""
    if request.principal == ANONYMOUS:
        raise demanded()
    return secured(RedirectResponse("/", 303))
