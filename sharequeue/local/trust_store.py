"""The certificate authorities that a wheel's Java trusts when it fetches jars.

The system's Java trusts the system's authorities. The wheel's Java has its own list, without the authority of a
company's proxy, through which pip works. So it gets the list that Python trusts. The checksums of fetched files are
checked in any case.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from pathlib import Path

__all__ = ["java_trust_store", "trust_options"]

_MAGIC, _VERSION, _TRUSTED = 0xFEEDFEED, 2, 2
_PASSWORD = "changeit"  # noqa: S105 - it keeps nothing secret: Java's own stores of authorities have the same
_WHITENER = b"Mighty Aphrodite"
"""The format adds this between the password and the content before the digest."""


def trust_options(store: Path) -> list[str]:
    """Write Python's trusted authorities to `store`; return the JVM options for it. No options if Python's
    list is empty or comes from a folder: the JVM then uses its own.
    """
    authorities = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not authorities:
        return []
    store.write_bytes(java_trust_store(authorities))
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=JKS"]


def java_trust_store(certificates: list[bytes]) -> bytes:
    """Return DER certificates as a Java key store of trusted authorities: JKS, as OpenJDK reads it."""
    content = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        alias, kind = f"authority-{number}".encode(), b"X.509"
        content += struct.pack(">IH", _TRUSTED, len(alias)) + alias + struct.pack(">qH", 0, len(kind)) + kind
        content += struct.pack(">I", len(certificate)) + certificate
    whitened = _PASSWORD.encode("utf-16-be") + _WHITENER + content
    return content + hashlib.sha1(whitened, usedforsecurity=False).digest()
