"""A certificate or a key that cannot be used is named, with what is wrong with it; nobody is asked for a password."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from sharequeue.domain.settings import ServiceAddress, ServiceLimits, SettingMissing
from sharequeue.service import Tls
from sharequeue.service.server import configured
from tests.servers.certificates import Authority, Pair

Spoil = Callable[[Pair, Pair], object]


def encrypted(pair: Pair, _: Pair) -> None:
    """Protect the key with a password."""
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )


def in_der(pair: Pair, _: Pair) -> None:
    """Write the certificate in another format."""
    found = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    pair.certificate.write_bytes(found.public_bytes(serialization.Encoding.DER))


def damaged(pair: Pair, _: Pair) -> None:
    """Lose some lines of the certificate."""
    lines = pair.certificate.read_text().splitlines(keepends=True)
    pair.certificate.write_text("".join(lines[:3] + lines[-1:]))


SPOILT: dict[str, tuple[Spoil, str, str]] = {
    "encrypted": (encrypted, "key", "has an encrypted key"),
    "DER": (in_der, "certificate", "has no certificate in PEM.*DER"),
    "damaged": (damaged, "certificate", "is damaged"),
    "empty": (lambda pair, _: pair.key.write_text(""), "key", "has no private key in PEM"),
    "swapped": (lambda pair, _: pair.key.write_bytes(pair.certificate.read_bytes()), "key", "no private key"),
    "another's": (
        lambda pair, other: pair.key.write_bytes(other.key.read_bytes()),
        "key",
        "is not the key of",
    ),
    "absent": (lambda pair, _: pair.key.unlink(), "key", "cannot be read .No such file"),
}


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """By the service and by its clients, with the option or the variable; an authority's file, too."""
    authority = Authority(tmp_path)
    other = authority.signed("other")
    for name, (spoil, of, said) in SPOILT.items():
        pair = authority.signed("mine")
        spoil(pair, other)
        file = f"{pair.key if of == 'key' else pair.certificate} "
        with pytest.raises(SettingMissing, match=said) as found:
            configured(lambda *_: None, ServiceLimits(), "127.0.0.1", 0, Tls(pair.certificate, pair.key))  # type: ignore[arg-type]
        assert str(found.value).startswith(f"--ssl-{of}={file}"), name
        with pytest.raises(SettingMissing, match=said) as found:
            ServiceAddress("https://h", None, authority.certificate, pair.certificate, pair.key).client(1)
        assert str(found.value).startswith(f"SHAREQUEUE_SERVICE_SSL_{of.upper()}_LOCATION={file}"), name
    (tmp_path / "ca.der").write_bytes(b"0\x82\x01")
    with pytest.raises(
        SettingMissing, match=r"SHAREQUEUE_SERVICE_SSL_CA_LOCATION=.*ca\.der has no certificate"
    ):
        ServiceAddress("https://h", None, tmp_path / "ca.der").client(1)
    tls = Tls(other.certificate, other.key, tmp_path / "ca.der")
    with pytest.raises(SettingMissing, match=r"--ssl-client-ca=.*ca\.der has no certificate"):
        configured(lambda *_: None, ServiceLimits(), "127.0.0.1", 0, tls)  # type: ignore[arg-type]
