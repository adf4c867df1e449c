"""The report of a group, as the command `groups report` writes it. Its errors are JSON, not pages."""

from __future__ import annotations

from starlette.responses import HTMLResponse, Response

from sharequeue.groups.group_names import require_there
from sharequeue.reports.page import report_page
from sharequeue.reports.read import read_report
from sharequeue.service.call import Call
from sharequeue.service.pages.layout import secured


async def report(call: Call) -> Response:
    """Return the report of the group, an HTML page; 404 if the group does not exist."""
    group_id, service = await call.group(), call.service

    def made() -> str:
        require_there(service.database, group_id)
        return report_page(read_report(service.database, group_id, service.settings))

    return secured(HTMLResponse(await call.run(made)))
