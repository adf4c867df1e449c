"""Pages to look at: which groups are there, how far are they, who holds what, and what ended as a dead letter?

Made on the server, without a build step and without an address outside the service; they work without script. Read
`looking` (who asks, and how long it may take), `signing` (who may act), `frame` (what is around each page), `reads`
(what is read), then the pages: `overview`, `group`, `share_partition`, `letters`, `redrive`, `manage`.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sharequeue.reporting.html import element
from sharequeue.service.pages.frame import STATIC, document, error_document, secured
from sharequeue.service.pages.group import group
from sharequeue.service.pages.letters import dead_letters
from sharequeue.service.pages.looking import Look, Pages
from sharequeue.service.pages.manage import manage
from sharequeue.service.pages.overview import overview
from sharequeue.service.pages.redrive import redrive
from sharequeue.service.pages.share_partition import share_partition
from sharequeue.service.pages.signing import sign_in_form, signed_in, signed_out

__all__ = ["Pages", "routes"]


def routes(pages: Pages) -> list[Route]:
    """Return the routes of all pages."""
    return [
        Route("/", pages.route(overview)),
        Route("/groups/{group_id:group}", pages.route(group)),
        Route("/share-partitions/{group_id:group}", pages.route(share_partition)),
        Route("/dead-letters/{group_id:group}", pages.route(dead_letters, slow=True)),
        Route("/redrive/{group_id:group}", pages.route(redrive, slow=True)),
        Route("/redrive/{group_id:group}", pages.route(redrive, slow=True), methods=["POST"]),
        Route("/manage/{group_id:group}", pages.route(manage, slow=True)),
        Route("/manage/{group_id:group}", pages.route(manage, slow=True), methods=["POST"]),
        Route("/sign-in", pages.route(_sign_in, anybody=True)),
        Route("/sign-in", pages.route(_signed_in, anybody=True), methods=["POST"]),
        Route("/sign-out", pages.route(_signed_out, anybody=True), methods=["POST"]),
        Route("/pages/{name}", _static),
    ]


def _sign_in(look: Look) -> Response:
    return document(
        "Sign in",
        (
            element("h1", "Sign in"),
            element("p", "With a token of the service you act as its principal, as far as the ACLs allow."),
            sign_in_form(look.asked("next")),
        ),
    )


def _signed_in(look: Look) -> Response:
    return signed_in(look.service, look.request, look.form)


def _signed_out(look: Look) -> Response:
    return signed_out(look.service, look.request)


async def _static(request: Request) -> Response:
    """The style sheet, the script and the icon: the same for everybody."""
    name = str(request.path_params["name"])
    if name not in STATIC:
        return error_document("There is no such thing", "The pages have no file of this name.", 404)
    content, media = STATIC[name]
    response = secured(Response(content, media_type=media))
    response.headers["Cache-Control"] = "max-age=60"
    return response
