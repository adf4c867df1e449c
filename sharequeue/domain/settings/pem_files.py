"""Load certificates and keys for TLS. An error names the file, what is wrong with it, and what was expected.

OpenSSL's own errors name no file, and OpenSSL would ask for the password of an encrypted key on the terminal.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from sharequeue.domain.settings.addresses import SettingMissing

__all__ = ["PemFile", "client_context", "load_authority", "load_identity"]

_CERTIFICATE, _KEY = "CERTIFICATE", "PRIVATE KEY"


@dataclass(frozen=True, slots=True)
class PemFile:
    """A file, and the option or the variable that names it."""

    path: Path
    setting: str

    def unusable(self, what: str) -> SettingMissing:
        """Return the error for this file."""
        return SettingMissing(f"{self.setting}={self.path} {what}.")

    def require(self, kind: str) -> None:
        """Raise SettingMissing unless the file has something of this kind in PEM; a key must not be encrypted."""
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise self.unusable(f"cannot be read ({error.strerror}): expected a PEM file") from None
        if kind == _KEY and b"ENCRYPTED" in content:
            raise self.unusable(
                "has an encrypted key: expected one without a password, in a file that only this user can read. "
                "`openssl pkcs8 -topk8 -nocrypt` writes one"
            )
        if f"{kind}-----".encode() not in content:
            der = ". It may be in DER: convert it with `openssl`" if content[:1] == b"0" else ""
            raise self.unusable(
                f"has no {kind.lower()} in PEM: expected a line `-----BEGIN {kind}-----`{der}"
            )


def client_context(authority: PemFile | None) -> ssl.SSLContext:
    """Return a client's context, which trusts this authority, or by default those of the system.

    Raises SettingMissing for a file that cannot be used.
    """
    if authority is None:
        return ssl.create_default_context()
    authority.require(_CERTIFICATE)
    try:
        return ssl.create_default_context(cafile=str(authority.path))
    except OSError as error:
        raise _damaged(authority, error) from None


def load_authority(context: ssl.SSLContext, authority: PemFile) -> None:
    """Let a server's context trust an authority. Raises SettingMissing for a file that cannot be used."""
    authority.require(_CERTIFICATE)
    try:
        context.load_verify_locations(authority.path)
    except OSError as error:
        raise _damaged(authority, error) from None


def load_identity(context: ssl.SSLContext, certificate: PemFile, key: PemFile | None) -> None:
    """Give a context its certificate and key; without `key`, both are in one file.

    Raises SettingMissing for files that cannot be used.
    """
    certificate.require(_CERTIFICATE)
    key = key or certificate
    key.require(_KEY)
    try:
        context.load_cert_chain(certificate.path, key.path)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise key.unusable(
                f"is not the key of the certificate in {certificate.path}: expected its key"
            ) from None
        raise _damaged(certificate, error) from None


def _damaged(file: PemFile, error: OSError) -> SettingMissing:
    reason = getattr(error, "reason", None) or error
    return file.unusable(f"is damaged, or its key is ({reason}): write the files again")
