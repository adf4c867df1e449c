"""Pages to look at: which groups are there, how far are they, who holds what, and what ended as a dead letter?

Made on the server, without a build step and without an address outside the service; they work without script. Read
`looking` (who asks, and how long it may take), `frame` (what is around each page), `reads` (what is read), then the
pages: `overview`, `group`, `share_partition`.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sharequeue.service.pages.frame import STATIC, error_document, secured
from sharequeue.service.pages.group import group
from sharequeue.service.pages.looking import Pages
from sharequeue.service.pages.overview import overview
from sharequeue.service.pages.share_partition import share_partition

__all__ = ["Pages", "routes"]


def routes(pages: Pages) -> list[Route]:
    """Return the routes of all pages."""
    return [
        Route("/", pages.route(overview)),
        Route("/groups/{group_id:group}", pages.route(group)),
        Route("/share-partitions/{group_id:group}", pages.route(share_partition)),
        Route("/pages/{name}", _static),
    ]


async def _static(request: Request) -> Response:
    """The style sheet, the script and the icon: the same for everybody."""
    name = str(request.path_params["name"])
    if name not in STATIC:
        return error_document("There is no such thing", "The pages have no file of this name.", 404)
    content, media = STATIC[name]
    response = secured(Response(content, media_type=media))
    response.headers["Cache-Control"] = "max-age=60"
    return response
