"""The principal of a TLS client certificate, named as in Kafka.

By default (`ssl.principal.mapping.rules=DEFAULT`) it is the distinguished name of RFC 2253, such as
`User:CN=ann,OU=jobs,O=example`. TLS has already verified the certificate's authority.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["principal_of_subject"]

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
"""The names of RFC 2253, by the names of Python's `ssl`."""

Subject = Sequence[Sequence[tuple[str, str]]]


def principal_of_subject(subject: Subject) -> str:
    """Return the principal of a certificate's subject, which is in the format of Python's `ssl`."""
    parts = (
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(subject)
    )
    return f"User:{','.join(parts)}"


def _escaped(value: Any) -> str:
    return re.sub(r'^[ #]|[,+"\\<>;]| $', lambda found: f"\\{found.group()}", str(value))
