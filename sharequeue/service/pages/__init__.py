"""HTML pages: the groups, their share-partitions, and their dead letters.

They are rendered on the server, without a build step and without an address outside the service; they work without
scripts, and are read-only. Read `requests` (the caller's rights and the time limits of a page), `layout` (the frame
of each page), then the pages: `overview`, `group`, `share_partition`, `letters`; and `data_docs`, for the files that
Great Expectations has written. Figures are read and shown by `sharequeue.reports`.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from sharequeue.service.callers import ANONYMOUS, demanded
from sharequeue.service.pages.data_docs import data_docs
from sharequeue.service.pages.group import group
from sharequeue.service.pages.layout import STATIC, error_document, secured
from sharequeue.service.pages.letters import dead_letters
from sharequeue.service.pages.overview import overview
from sharequeue.service.pages.requests import PageRequest, Pages
from sharequeue.service.pages.share_partition import share_partition

__all__ = ["Pages", "routes"]


def routes(pages: Pages) -> list[Route]:
    """Return the routes of all pages."""
    return [
        Route("/", pages.route(overview)),
        Route("/groups/{group_id:group}", pages.route(group)),
        Route("/share-partitions/{group_id:group}", pages.route(share_partition)),
        Route("/dead-letters/{group_id:group}", pages.route(dead_letters, slow=True)),
        Route("/v1/data-docs/{name}/{path:path}", pages.route(data_docs)),
        Route("/sign-in", pages.route(_sign_in)),
        Route("/pages/{name}", _static),
    ]


def _sign_in(request: PageRequest) -> Response:
    """Make the browser prompt for a token, which it then sends with each request."""
    if request.principal == ANONYMOUS:
        raise demanded()
    return secured(RedirectResponse("/", 303))


async def _static(request: Request) -> Response:
    """Return the style sheet, the script or the icon; they are the same for every caller."""
    name = str(request.path_params["name"])
    if name not in STATIC:
        return error_document("Not found", "The pages have no file of this name.", 404)
    content, media = STATIC[name]
    response = secured(Response(content, media_type=media))
    response.headers["Cache-Control"] = "max-age=60"
    return response
