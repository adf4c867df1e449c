"""Connect to Postgres, and tell why a server or a pooler refuses a connection.

The driver gives no SQLSTATE for a refused connection, and the server's message may be in any language. So libpq,
which the driver has loaded, connects once more and prints the SQLSTATE alone. A pooler has one code for everything,
or none: its messages, which are always in English, are compared with known ones.
"""

from __future__ import annotations

import ctypes
import re
import select
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg2
import psycopg2._psycopg
from psycopg2.extensions import make_dsn
from sqlalchemy.exc import SQLAlchemyError

__all__ = ["FULL", "LOGIN", "PARAMETER", "TLS", "ConnectionRefused", "RefusalKind", "connect", "refusal_of"]

_BY_THE_SERVER = re.compile(r"failed: \S+:  ")
"""A server's message after its severity, which may be in any language, too; libpq's own messages have none."""
_READING, _WRITING = 1, 2
_SQLSTATE_ONLY = 3
"""Values of libpq's enumerations: what a connection that is being made waits for, and how much an error tells."""
_WAIT_S = 10


@dataclass(frozen=True, slots=True)
class RefusalKind:
    """A kind of refusal: what the server does, what to do, whether it may pass by itself, how it is recognised."""

    what: str
    remedy: str
    passes: bool
    states: tuple[str, ...]
    """The beginnings of Postgres's SQLSTATEs."""
    texts: tuple[str, ...]
    """Parts of the messages of poolers and of libpq, in lower case."""


LOGIN = RefusalKind(
    "refuses the login",
    "set SHAREQUEUE_DATABASE_URL to a user, a password and a database that exist in Postgres, and in the pooler if "
    "there is one; with ?sslmode=require if the server wants encryption",
    passes=False,
    states=("28", "3D", "42501"),
    texts=(
        "authentication failed",
        "no password supplied",
        "does not exist",
        "no pg_hba.conf entry",
        "not permitted to log in",
        "no such database",
        "no such user",
        "wrong password type",
        "tenant or user not found",
    ),
)
PARAMETER = RefusalKind(
    "refuses a parameter of the connection",
    "remove or correct it in SHAREQUEUE_DATABASE_URL (behind the `?`) or in the environment (PGOPTIONS); a pooler "
    "has no startup options, and Postgres only its own parameters",
    passes=False,
    states=("22023", "42601", "42704", "55P02"),
    texts=("startup parameter", "command-line options", "invalid dsn", "connection option", " value: "),
)
TLS = RefusalKind(
    "cannot be reached over TLS as the address wants it",
    "correct sslmode, sslrootcert, sslcert and sslkey in SHAREQUEUE_DATABASE_URL",
    passes=False,
    states=(),
    texts=(
        "does not support ssl",
        "root certificate",
        "certificate file",
        "private key file",
        "certificate verify failed",
        "server certificate",
    ),
)
FULL = RefusalKind(
    "has no connection left",
    'raise max_connections, the limit of the role or database, or the pooler\'s (page "Plan the capacity")',
    passes=True,
    states=("53300",),
    texts=("no more connections allowed", "too many clients", "too many connections", "max clients"),
)


class ConnectionRefused(psycopg2.OperationalError):
    """The server, or the pooler before it, refuses the connection; `refusal` has the kind."""

    def __init__(self, message: str, refusal: RefusalKind) -> None:
        super().__init__(message)
        self.refusal = refusal


def connect(*arguments: Any, **route: Any) -> Any:
    """Return psycopg2's connection. Raises ConnectionRefused if the refusal is of a known kind."""
    try:
        return psycopg2.connect(*arguments, **route)
    except psycopg2.Error as error:
        # One line for each host of the address.
        for line in str(error).splitlines():
            if refusal := _refusal(line, route):
                raise ConnectionRefused(line, refusal) from error
        raise


def refusal_of(error: SQLAlchemyError) -> RefusalKind | None:
    """Return the kind of refusal, if the error is a refused connection."""
    original = getattr(error, "orig", None)
    return original.refusal if isinstance(original, ConnectionRefused) else None


def _refusal(message: str, route: Mapping[str, Any]) -> RefusalKind | None:
    known = (PARAMETER, TLS, FULL, LOGIN)
    text = message.lower()
    found = next((each for each in known if any(part in text for part in each.texts)), None)
    if found is None and _BY_THE_SERVER.search(message):
        state = _sqlstate(route)
        found = next((each for each in known if state.startswith(each.states)), None)
    return found


def _sqlstate(route: Mapping[str, Any]) -> str:
    """Connect once more; return the SQLSTATE of the refusal, or nothing if it is not refused any more."""
    libpq = ctypes.CDLL(psycopg2._psycopg.__file__)
    libpq.PQconnectStart.restype = ctypes.c_void_p
    libpq.PQerrorMessage.restype = ctypes.c_char_p
    connection = ctypes.c_void_p(libpq.PQconnectStart(make_dsn(**route).encode()))
    try:
        libpq.PQsetErrorVerbosity(connection, _SQLSTATE_ONLY)
        while (state := libpq.PQconnectPoll(connection)) in (_READING, _WRITING):
            waiting = select.poll()  # select fails for descriptors above 1024
            waiting.register(
                libpq.PQsocket(connection), select.POLLIN if state == _READING else select.POLLOUT
            )
            if not waiting.poll(1000 * _WAIT_S):
                break
        found = re.search(rb"\b([0-9A-Z]{5})\s*$", libpq.PQerrorMessage(connection) or b"")
    finally:
        libpq.PQfinish(connection)
    return found[1].decode() if found else ""
