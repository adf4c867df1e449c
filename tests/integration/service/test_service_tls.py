"""The service with TLS, as a process: whom clients trust, and as whom they call."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import CoordinatorNotAvailable
from sharequeue.domain.settings import ServiceAddress, SettingMissing, Settings
from sharequeue.groups.acls import Acl, Acls
from sharequeue.groups.descriptions import describe_group
from sharequeue.groups.membership import Membership
from sharequeue.groups.tokens import Tokens
from sharequeue.service.edge.certificates import principal_of_subject
from tests.servers.certificates import Authority
from tests.servers.ports import free_port
from tests.waiting import PATIENCE_S, wait_until

_PRINCIPALS = sa.text("select member_id, principal from sharequeue.group_members")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Who signs the service's certificate, and its clients'."""
    return Authority(tmp_path)


@pytest.fixture
def url(
    settings: Settings, private_database: Database, authority: Authority, tmp_path: Path
) -> Iterator[str]:
    """The address of `sharequeue serve` with TLS, which requires a token or a certificate."""
    port = free_port()
    pair = authority.signed("service")
    words = [sys.executable, "-m", "sharequeue.cli", "serve", "--port", str(port), "--require-token"]
    words += ["--ssl-certificate", str(pair.certificate), "--ssl-key", str(pair.key)]
    words += ["--ssl-client-ca", str(authority.certificate), "--home", str(tmp_path)]
    words += ["--bootstrap-server", settings.bootstrap_servers]
    words += ["--database-url", private_database.engine.url.render_as_string(hide_password=False)]
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        wait_until(lambda: _listens(port) or running.poll() is not None)
        assert running.poll() is None, (tmp_path / "log").read_text()
        yield f"https://127.0.0.1:{port}"
    finally:
        running.terminate()
        assert running.wait(PATIENCE_S) is not None


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_who_calls_is_who_the_certificate_or_the_token_says(
    url: str, private_database: Database, authority: Authority, tmp_path: Path
) -> None:
    """A member by certificate is its subject, one by token the token's principal, and nobody is anonymous; who does
    not trust the authority does not call."""
    ann = authority.signed("ann")
    for principal in ("User:CN=ann", "User:bob"):
        Acls(private_database).add(Acl(principal, "READ", "ALLOW", "LITERAL", "g"))
    _, secret = Tokens(private_database).create("User:bob")
    certified = ServiceAddress(url, None, authority.certificate, ann.certificate, ann.key)
    with_token = ServiceAddress(url, secret, authority.certificate)
    with Membership(certified, "g", ["t"], "ann") as one, Membership(with_token, "g", ["t"], "bob") as other:
        one.join(0)
        other.join(0)
        found = private_database.rows(_PRINCIPALS)
        assert {row["member_id"]: row["principal"] for row in found} == {
            "ann": "User:CN=ann",
            "bob": "User:bob",
        }
    assert describe_group(private_database, "g").members == ()
    trusting = ServiceAddress(url, None, authority.certificate)
    with trusting.client(30) as client:
        assert client.get("/v1/groups").status_code == 401
        assert client.get("/health").status_code == 200
    with (
        ServiceAddress(url, None, None, ann.certificate, ann.key).client(30) as client,
        pytest.raises(httpx.ConnectError),
    ):
        client.get("/health")
    forged = Authority(tmp_path, "another").signed("ann")
    stranger = ServiceAddress(url, None, authority.certificate, forged.certificate, forged.key)
    with Membership(stranger, "g", ["t"]) as member, pytest.raises(CoordinatorNotAvailable):
        member.join(1)
    with pytest.raises(SettingMissing, match="SHAREQUEUE_SERVICE_SSL_CA_LOCATION"):
        ServiceAddress(url, None, tmp_path / "nothing.pem").client(30)


def test_a_subject_is_spelt_as_kafka_spells_it() -> None:
    """RFC 2253: the last part first, what has a meaning there escaped."""
    subject = ((("countryName", "CH"),), (("organizationName", "A, B"),), (("commonName", "ann"),))
    assert principal_of_subject(subject) == "User:CN=ann,O=A\\, B,C=CH"
