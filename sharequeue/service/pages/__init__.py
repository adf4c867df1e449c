"""Pages to look at: the groups, their share-partitions, and their dead letters.

Made on the server, without a build step and without an address outside the service; they work without script, and
change nothing. Read `looking` (as whom a page is made, and its time limits), `frame` (what is around each page),
`reads` (what is read), then the pages: `overview`, `group`, `share_partition`, `letters`.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from sharequeue.service.callers import ANONYMOUS, demanded
from sharequeue.service.pages.frame import STATIC, error_document, secured
from sharequeue.service.pages.group import group
from sharequeue.service.pages.letters import dead_letters
from sharequeue.service.pages.looking import Look, Pages
from sharequeue.service.pages.overview import overview
from sharequeue.service.pages.share_partition import share_partition

__all__ = ["Pages", "routes"]


def routes(pages: Pages) -> list[Route]:
    """Return the routes of all pages."""
    return [
        Route("/", pages.route(overview)),
        Route("/groups/{group_id:group}", pages.route(group)),
        Route("/share-partitions/{group_id:group}", pages.route(share_partition)),
        Route("/dead-letters/{group_id:group}", pages.route(dead_letters, slow=True)),
        Route("/sign-in", pages.route(_sign_in)),
        Route("/pages/{name}", _static),
    ]


def _sign_in(look: Look) -> Response:
    """Make the browser ask for a token, which it then sends with each request."""
    if look.principal == ANONYMOUS:
        raise demanded()
    return secured(RedirectResponse("/", 303))


async def _static(request: Request) -> Response:
    """The style sheet, the script and the icon: the same for everybody."""
    name = str(request.path_params["name"])
    if name not in STATIC:
        return error_document("There is no such thing", "The pages have no file of this name.", 404)
    content, media = STATIC[name]
    response = secured(Response(content, media_type=media))
    response.headers["Cache-Control"] = "max-age=60"
    return response
