"""Why a server or a pooler refuses a connection."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import psycopg2
import pytest

from sharequeue.database.refusals import FULL, LOGIN, PARAMETER, TLS, ConnectionRefused, RefusalKind, connect

_SSL = 80877103


class Refusing:
    """A server without TLS that refuses each connection with a code and a message."""

    def __init__(self) -> None:
        self.code, self.message = "", ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, suppress(OSError, struct.error):
                while struct.unpack("!ii", client.recv(8))[1] == _SSL:
                    client.sendall(b"N")
                fields = f"SFATAL\0VFATAL\0C{self.code}\0M{self.message}\0\0".encode()
                client.sendall(b"E" + struct.pack("!i", len(fields) + 4) + fields)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    """Give a server that refuses each connection."""
    server = Refusing()
    yield server
    server.close()


@pytest.mark.parametrize(
    ("code", "message", "refusal"),
    [
        ("28P01", "Passwort-Authentifizierung für Benutzer »u« fehlgeschlagen", LOGIN),
        ("3D000", "la base de données « x » n'existe pas", LOGIN),
        ("42501", "permission denied for database x", LOGIN),
        ("28000", "pg_hba.conf にホストのエントリがありません", LOGIN),
        ("42704", "unbekannter Konfigurationsparameter »foo«", PARAMETER),
        ("53300", "tut mir leid, schon zu viele Verbindungen", FULL),
        # Poolers
        ("08P01", "SASL authentication failed", LOGIN),
        ("08P01", "server login failed: wrong password type", LOGIN),
        ("08P01", "server login has been failing, cached error: password authentication failed for u", LOGIN),
        ("XX000", "Tenant or user not found", LOGIN),
        ("08P01", "unsupported startup parameter: options", PARAMETER),
        ("08P01", "unsupported startup parameter in options: search_path", PARAMETER),
        ("0A000", "RDS Proxy currently doesn't support command-line options.", PARAMETER),
        ("08P01", "no more connections allowed (max_client_conn)", FULL),
        ("XX000", "MaxClientsInSessionMode: max clients reached - in Session mode", FULL),
    ],
)
def test_a_refusal_has_its_kind(refusing: Refusing, code: str, message: str, refusal: RefusalKind) -> None:
    """By the SQLSTATE, whatever the server's language; a pooler's by its words."""
    refusing.code, refusing.message = code, message
    with pytest.raises(ConnectionRefused) as refused:
        connect(host="127.0.0.1", port=refusing.port, user="u", dbname="x", sslmode="disable")
    assert refused.value.refusal is refusal
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("57P03", "das Datenbanksystem startet"),
        ("57P03", "the database system is starting up"),
        ("08P01", "pgbouncer cannot connect to server"),
        ("08P01", "server login has been failing, try again later (server_login_retry)"),
    ],
)
def test_what_passes_by_itself_is_no_refusal(refusing: Refusing, code: str, message: str) -> None:
    """A server that starts, in any language; a pooler whose server is away."""
    refusing.code, refusing.message = code, message
    with pytest.raises(psycopg2.OperationalError, match="failed") as failed:
        connect(host="127.0.0.1", port=refusing.port, user="u", dbname="x", sslmode="disable")
    assert not isinstance(failed.value, ConnectionRefused)


@pytest.mark.parametrize(
    ("parameters", "refusal"),
    [
        ({"sslmode": "bogus"}, PARAMETER),
        ({"connect_timeout": "soon"}, PARAMETER),
        ({"nonsense": "1"}, PARAMETER),
        ({"sslmode": "require"}, TLS),
    ],
)
def test_what_libpq_refuses_has_its_kind(
    refusing: Refusing, parameters: dict[str, str], refusal: RefusalKind
) -> None:
    """A parameter that it does not know, a value that cannot be, TLS that the server does not have: no outage."""
    with pytest.raises(ConnectionRefused) as refused:
        connect(host="127.0.0.1", port=refusing.port, user="u", dbname="x", **parameters)
    assert refused.value.refusal is refusal


def test_of_several_hosts_the_one_that_refuses_is_named(refusing: Refusing) -> None:
    """Not the one before it that is away."""
    refusing.code, refusing.message = "28P01", "fehlgeschlagen"
    away = socket.create_server(("127.0.0.1", 0))
    port = away.getsockname()[1]
    away.close()
    with pytest.raises(ConnectionRefused, match=f"port {refusing.port} failed: FATAL:  fehlgeschlagen"):
        connect(
            host="127.0.0.1,127.0.0.1",
            port=f"{port},{refusing.port}",
            user="u",
            dbname="x",
            sslmode="disable",
        )


def test_a_server_that_accepts_and_says_nothing_is_given_up() -> None:
    """The time limit of a connection covers TLS and the login, not only the address: a proxy may be silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(psycopg2.OperationalError) as failed:
        connect(host="127.0.0.1", port=silent.getsockname()[1], user="u", dbname="x", connect_timeout=1)
    assert "timeout expired" in str(failed.value)
    assert not isinstance(failed.value, ConnectionRefused)
