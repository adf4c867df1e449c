"""How does a client reach the coordinator service?

Its URL, who the client is (a bearer token, or a certificate of its own), and whose certificates it trusts. The
settings have all of it (`Settings.service`).
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
    """An address is neither in the environment nor in the stack file, or a file that is named cannot be used; the
    message says which and what to do."""


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """Where the service is, and as whom it is called: without a token and a certificate as `User:ANONYMOUS`."""

    url: str
    token: str | None = field(default=None, repr=False)
    """A bearer token (`Settings.service_token`)."""
    ca: Path | None = None
    """PEM file of the authorities that the service's certificate may be from; None trusts those of the system."""
    certificate: Path | None = None
    """PEM file of the client's own certificate, with its chain."""
    key: Path | None = None
    """PEM file of its key; None where it is in the same file."""

    @classmethod
    def of(cls, address: ServiceAddress | str) -> ServiceAddress:
        """Take a bare URL for an address that is called by nobody in particular."""
        return address if isinstance(address, ServiceAddress) else cls(address)

    def client(self, timeout: float) -> httpx.Client:
        """Return a client of the service; `timeout` in seconds. Raises SettingMissing for files that are none."""
        # Imported here: a fifth of the time that any command needs to begin.
        import httpx

        # The service's address is a direct one: a proxy of the environment is for the outside world.
        # A member sends a heartbeat each five seconds, after which httpx would have closed its connection.
        limits = httpx.Limits(keepalive_expiry=60.0)
        return httpx.Client(
            base_url=self.url, verify=self._context(), timeout=timeout, limits=limits, trust_env=False
        )

    def _context(self) -> ssl.SSLContext | bool:
        if not self.url.startswith("https:"):
            return True  # none is asked for
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
