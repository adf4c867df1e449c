"""A certificate authority for a test, and what it signs: PEM files, with keys in PKCS#8, which Java reads too.

By the package `cryptography`, which the project's environment has for Great Expectations anyway: `keytool` gives no
private key away in PEM, and `openssl` need not be on the machine.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in files."""

    certificate: Path
    key: Path

    @property
    def both(self) -> Path:
        """Both in one file, as Java wants them."""
        path = self.key.with_suffix(".both.pem")
        path.write_text(self.key.read_text() + self.certificate.read_text())
        return path


class Authority:
    """Signs certificates for 127.0.0.1 and for users."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = rsa.generate_private_key(65537, 2048)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._signed = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(self._signed.public_bytes(serialization.Encoding.PEM))

    def signed(self, name: str) -> Pair:
        """A new key, and a certificate for it."""
        key = rsa.generate_private_key(65537, 2048)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key, x509.BasicConstraints(ca=False, path_length=None))
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        pair.key.chmod(0o600)
        return pair

    def _sign(
        self, subject: x509.Name, key: rsa.RSAPrivateKey, constraints: x509.BasicConstraints
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=2))
            .add_extension(constraints, critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            # Python 3.13 requires them.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .add_extension(_usage(constraints.ca), critical=True)
            .sign(self._key, hashes.SHA256())
        )


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not authority,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


class TokenKey:
    """Signs tokens, and shows the key by which they are checked."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(65537, 2048)

    def jwks(self) -> str:
        """The public key, as a JSON Web Key Set."""
        numbers = self._key.public_key().public_numbers()
        n, e = (_url(each.to_bytes((each.bit_length() + 7) // 8, "big")) for each in (numbers.n, numbers.e))
        return json.dumps(
            {"keys": [{"kty": "RSA", "kid": "1", "alg": "RS256", "use": "sig", "n": n, "e": e}]}
        )

    def token(self, subject: str, seconds: float) -> str:
        """A token for a subject that lasts so long."""
        now = int(datetime.now(UTC).timestamp())
        claims = {"sub": subject, "iss": "tests", "aud": "kafka", "iat": now, "exp": now + int(seconds)}
        head = _url(json.dumps({"alg": "RS256", "kid": "1", "typ": "JWT"}).encode())
        said = f"{head}.{_url(json.dumps(claims).encode())}"
        return f"{said}.{_url(self._key.sign(said.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
