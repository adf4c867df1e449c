"""Sign in: make the browser ask for a token."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from sharequeue.service.admission import ANONYMOUS
from sharequeue.service.error_responses import token_required
from sharequeue.service.pages.layout import secured
from sharequeue.service.pages.requests import PageRequest


def sign_in(request: PageRequest) -> Response:
    """Make the browser ask for a token (401), which it then sends with each request; then redirect to the first page
    (303)."""
    if request.principal == ANONYMOUS:
        raise token_required()
    return secured(RedirectResponse("/", 303))
