"""The Data Docs of a group, as Great Expectations has written them into the data folder.

They show keys and values of dead letters. So the caller must be allowed to describe the group, as for its report, and
to read the group and all topics of its records, as for its dead letters. The pages have inline scripts, and load
styles and scripts from the networks that Great Expectations names. They are sandboxed: a script in them has no access
to the service with the reader's token.
"""

from __future__ import annotations

import sqlalchemy as sa
from starlette.responses import Response

from sharequeue.groups.configs import GroupConfigs
from sharequeue.reports.data_docs import (
    CREATED,
    context_folder,
    group_in_address,
    is_of_life,
    read_file,
    site_folder,
)
from sharequeue.service.pages.layout import error_page, secured
from sharequeue.service.pages.requests import PageRequest

_NETWORKS = " ".join(
    f"https://{host}"
    for host in (
        "cdn.jsdelivr.net",
        "cdnjs.cloudflare.com",
        "code.jquery.com",
        "maxcdn.bootstrapcdn.com",
        "stackpath.bootstrapcdn.com",
        "unpkg.com",
    )
)
_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src 'self' 'unsafe-inline' 'unsafe-eval' {_NETWORKS}",
        f"style-src 'self' 'unsafe-inline' {_NETWORKS}",
        f"font-src 'self' {_NETWORKS}",
        "img-src 'self' data: https://great-expectations-web-assets.s3.us-east-2.amazonaws.com",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "sandbox allow-scripts allow-popups allow-popups-to-escape-sandbox",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    # Browsers do not load a sandboxed page with another policy for its opener.
    "Cross-Origin-Opener-Policy": "unsafe-none",
}
_TOPICS = sa.text("select distinct topic from sharequeue.share_partitions where group_id = :group_id")


def data_docs(request: PageRequest) -> Response:
    """Return a file of a group's Data Docs.

    Raises GroupIdNotFound, GroupAuthorizationFailed and TopicAuthorizationFailed.
    """
    group_id = request.described(group_in_address(str(request.request.path_params["name"])))
    request.require_read(group_id)
    topics = [row["topic"] for row in request.database.rows(_TOPICS, group_id=group_id)]
    for topic in (GroupConfigs.load(request.database, group_id).dead_letter_topic, *topics):
        if topic:
            request.require_read_topic(topic)
    site = site_folder(context_folder(request.service.settings, group_id))
    created = request.database.rows(CREATED, group_id=group_id)
    is_its_own = bool(created) and is_of_life(site, created[0]["created_at"])
    found = read_file(site, str(request.request.path_params["path"])) if is_its_own else None
    if found is None:
        return error_page(
            "There is no such page",
            "The checks of the dead letters write Data Docs into the data folder of their run (SHAREQUEUE_HOME), and "
            "the service reads its own. Run the checks once, and let both use the same folder.",
            404,
            request.principal,
        )
    content, kind = found
    response = Response(content, media_type=kind)
    response.headers.update(_HEADERS)
    if not kind.startswith("text/html"):
        # A sandboxed page has no origin: its own styles and pictures come from another one.
        response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
    return secured(response)
