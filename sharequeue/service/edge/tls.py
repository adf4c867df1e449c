"""As whom does a client call that has shown a certificate?

As the certificate's subject, spelt as Kafka spells it by default (`ssl.principal.mapping.rules=DEFAULT`): the
distinguished name of RFC 2253, for one `User:CN=ann,OU=jobs,O=example`. The authority that signed it was checked by
TLS before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from sharequeue.service.callers import CERTIFIED

__all__ = ["done_as", "principal_of_subject"]

_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""The names of RFC 2253, by those of Python's `ssl`."""

Subject = Sequence[Sequence[tuple[str, str]]]


def done_as(app: ASGIApp, principal: str) -> ASGIApp:
    """Return the application, each request of which has the principal of the client's certificate in its scope."""

    async def certified(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, CERTIFIED: principal}, receive, send)

    return certified


def principal_of_subject(subject: Subject) -> str:
    """Return the principal of a certificate's subject, as Python's `ssl` gives it."""
    parts = (
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(subject)
    )
    return f"User:{','.join(parts)}"


def _escaped(value: Any) -> str:
    return re.sub(r'^[ #]|[,+"\\<>;]| $', lambda found: f"\\{found.group()}", str(value))
