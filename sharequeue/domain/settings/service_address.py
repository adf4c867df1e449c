"""The address of the coordinator service.

Its URL, the client's identity (a bearer token, or a certificate), and the certificates that the client trusts. All
of it comes from the settings (`Settings.service`).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sharequeue.domain.settings.pem_files import PemFile, client_context, load_identity

if TYPE_CHECKING:
    import httpx

__all__ = ["ServiceAddress", "unanswered"]

_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "record layer failure", "UNEXPECTED_EOF")
"""What OpenSSL reports if a server answers in plain text."""
_CLOSED = ("RemoteProtocolError", "ReadError")
"""The errors of httpx if a server closes the connection, as one with TLS does."""


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """The service's address and the client's credentials; without a token and a certificate `User:ANONYMOUS`."""

    url: str
    token: str | None = field(default=None, repr=False)
    """A bearer token (`Settings.service_token`)."""
    ca: Path | None = None
    """PEM file of the authorities that may sign the service's certificate; None trusts those of the system."""
    certificate: Path | None = None
    """PEM file of the client's own certificate, with its chain."""
    key: Path | None = None
    """PEM file of its key; None if it is in the same file."""

    @classmethod
    def of(cls, address: ServiceAddress | str) -> ServiceAddress:
        """Return the address; a bare URL becomes an address without credentials."""
        return address if isinstance(address, ServiceAddress) else cls(address)

    def client(self, timeout: float) -> httpx.Client:
        """Return a client of the service; `timeout` in seconds. Raises SettingMissing for missing files."""
        # Imported here: the import takes a fifth of the start time of any command.
        import httpx

        # The service is called directly: a proxy in the environment is for outside addresses.
        # A member sends a heartbeat every five seconds; by then httpx would have closed its connection.
        limits = httpx.Limits(keepalive_expiry=60.0)
        return httpx.Client(
            base_url=self.url, verify=self._context(), timeout=timeout, limits=limits, trust_env=False
        )

    def _context(self) -> ssl.SSLContext | bool:
        if not self.url.startswith("https:"):
            return True  # not needed
        ca, certificate, key = (
            None if path is None else PemFile(path, f"SHAREQUEUE_SERVICE_SSL_{name}_LOCATION")
            for path, name in ((self.ca, "CA"), (self.certificate, "CERTIFICATE"), (self.key, "KEY"))
        )
        context = client_context(ca)
        if certificate is not None:
            load_identity(context, certificate, key)
        return context


def unanswered(url: str, error: BaseException) -> str | None:
    """Return why a request to the service at `url` failed, if that is due to TLS, and what to do; else None."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        found = text.rpartition("certificate verify failed:")[2].partition("(_ssl")[0].strip()
        return (
            f"the certificate of the service at {url} is not trusted ({found}): set "
            "SHAREQUEUE_SERVICE_SSL_CA_LOCATION to the PEM file of its authority, and use a host name that is in the "
            "certificate"
        )
    if url.startswith("https:") and any(part in text for part in _NOT_TLS):
        return f"{url} does not speak TLS: if the service has no certificate, its address begins with http://"
    if url.startswith("http:") and type(error).__name__ in _CLOSED:
        return (
            f"{url} closed the connection without a response: if the service has a certificate "
            "(`--ssl-certificate`), its address begins with https://"
        )
    return None
