"""The address of the coordinator service.

Its URL, the client's identity (a bearer token, or a certificate), and the certificates that the client trusts. All
of it comes from the settings (`Settings.service`).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

__all__ = ["ServiceAddress", "SettingMissing"]


class SettingMissing(Exception):
    """An address is set neither in the environment nor in the stack file, or a file cannot be used; the message names
    it and what to do."""


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
        try:
            context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            given = ", ".join(str(file) for file in (self.ca, self.certificate, self.key) if file is not None)
            raise SettingMissing(
                f"The certificates for the service cannot be used ({given}: {error.strerror or error}). Expected: "
                "PEM files, named by SHAREQUEUE_SERVICE_SSL_CA_LOCATION, …_CERTIFICATE_LOCATION and …_KEY_LOCATION."
            ) from None
        return context
