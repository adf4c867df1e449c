"""Who may act on the pages, and how does somebody sign in?

By a bearer token, once; a cookie then has a session (`groups.page_sessions`) that no script can read and that the
browser sends to these pages only when they themselves ask for something. Only who has said who it is can act: by a
session, by a certificate, or by a token in the header. A form counts only when the browser says that it comes from a
page of ours (`Origin`), because certificates are sent whoever asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sharequeue.groups.page_sessions import LIFETIME, close_session, open_session
from sharequeue.groups.tokens import TokenRefused
from sharequeue.reporting.html import Html, element, joined
from sharequeue.service.callers import ANONYMOUS
from sharequeue.service.context import Service
from sharequeue.service.pages.frame import error_document, field, link, secured

__all__ = [
    "NotOurs",
    "check_origin",
    "safe_path",
    "session_of",
    "sign_in_asked",
    "sign_in_form",
    "signed_in",
    "signed_out",
    "who",
]

_COOKIE, _TLS_COOKIE = "sharequeue", "__Host-sharequeue"
"""Browsers take a cookie with the prefix over TLS alone, and for no other host."""


class NotOurs(Exception):
    """A form that was not sent by a page of ours."""


def check_origin(request: Request) -> None:
    """Raise NotOurs unless a form was sent by a page of this very host and port."""
    origin = urlsplit(request.headers.get("origin", ""))
    if not origin.netloc or origin.netloc.lower() != request.headers.get("host", "").lower():
        raise NotOurs(
            "This form was not sent by a page of this service, so nothing was done. Open the page here, and send it "
            "again. A proxy before the service has to pass on the headers Host and Origin as they are."
        )


def session_of(request: Request) -> str | None:
    """Return the session in a request's cookies; over TLS only one that was set over TLS."""
    if request.url.scheme == "https":
        return request.cookies.get(_TLS_COOKIE)
    return request.cookies.get(_TLS_COOKIE) or request.cookies.get(_COOKIE)


def safe_path(text: str) -> str:
    """Return an address of ours to go to, else the first page: never another site's."""
    plain = all(" " < each < "\x7f" and each not in '\\"<>' for each in text)
    ours = text.startswith("/") and not text.startswith(("//", "/sign-", "/v1/"))
    return text if plain and ours and len(text) < 4000 else "/"


def who(principal: str, here: str, *, proved: bool = False, signed: bool = False) -> Html:
    """Return as whom the caller looks, and how that changes."""
    if signed:
        out = element("button", "Sign out", type="submit", class_="plain")
        return joined(element("span", principal), element("form", out, method="post", action="/sign-out"))
    if proved:
        return element("span", principal)
    name = "Not signed in" if principal == ANONYMOUS else principal
    return joined(element("span", name), link("Sign in", f"/sign-in?{urlencode({'next': here})}"))


def sign_in_form(target: str) -> Html:
    """Return the form for a token."""
    token = element(
        "input",
        id="token",
        name="token",
        type="password",
        required=True,
        autocomplete="current-password",
        maxlength=200,
    )
    return element(
        "form",
        element("input", type="hidden", name="next", value=safe_path(target)),
        # Password managers keep a password with a name.
        element("input", name="username", autocomplete="username", value="token", hidden=True),
        field("token", "Token", token, "sq_…, from `sharequeue tokens create`"),
        element("button", "Sign in", type="submit"),
        class_="ask",
        method="post",
        action="/sign-in",
    )


def sign_in_asked(error: TokenRefused, target: str) -> Response:
    """Return the page for who has to sign in."""
    response = error_document("Sign in", error.message, 401, sign_in_form(target))
    response.headers["WWW-Authenticate"] = "Bearer"
    return response


def signed_in(service: Service, request: Request, form: Mapping[str, str]) -> Response:
    """Open a session, and go where the caller wanted to go. Raises TokenRefused."""
    secret = open_session(service.database, form.get("token", "").strip())
    response = secured(RedirectResponse(safe_path(form.get("next", "/")), 303))
    # Behind a proxy with TLS the request has none, but the page's origin has.
    tls = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https:")
    response.set_cookie(
        _TLS_COOKIE if tls else _COOKIE,
        secret,
        max_age=int(LIFETIME.total_seconds()),
        path="/",
        secure=tls,
        httponly=True,
        samesite="strict",
    )
    return response


def signed_out(service: Service, request: Request) -> Response:
    """Close the session, and have the browser forget its cookie."""
    for name in (_COOKIE, _TLS_COOKIE):
        if secret := request.cookies.get(name):
            close_session(service.database, secret)
    response = secured(RedirectResponse("/", 303))
    response.delete_cookie(_COOKIE, path="/", httponly=True, samesite="strict")
    response.delete_cookie(_TLS_COOKIE, path="/", secure=True, httponly=True, samesite="strict")
    return response
