"""The errors that a job which has not begun yet does not wait out."""

from __future__ import annotations

import socket

import pytest
from sqlalchemy.exc import OperationalError

from sharequeue.spark.following import is_mistake
from sharequeue.words.errors import BrokerNotAvailable, CoordinatorNotAvailable, UnknownTopicOrPartition
from sharequeue.words.settings import Settings

KNOWN = Settings.load(
    database_url="postgresql://u:p@localhost:1/db",
    bootstrap_servers="localhost:1,PLAINTEXT://nobody.invalid:1",
    service_url="http://localhost:1",
)
UNKNOWN = KNOWN.replace(
    database_url="postgresql://u:p@nobody.invalid:1/db",
    bootstrap_servers="nobody.invalid:1,SSL://no-more.invalid:1",
    service_url="http://nobody.invalid:1",
)


def refused(said: str) -> OperationalError:
    return OperationalError("select 1", {}, Exception(said))


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Let names that end in `.invalid` be unknown, whatever server for names this machine has."""
    errors = {"nobody.invalid": socket.EAI_NONAME, "no-more.invalid": socket.EAI_NONAME}

    def look_up(host: str, _: object) -> list[str]:
        if host in errors:
            raise socket.gaierror(errors[host], "no")
        return [host]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return errors


@pytest.mark.parametrize(
    "away",
    [
        BrokerNotAvailable("connection refused"),
        CoordinatorNotAvailable("connection refused"),
        refused("Connection refused"),
        refused("FATAL:  the database system is starting up"),
        refused("FATAL:  sorry, too many clients already"),
    ],
)
def test_a_server_that_is_away_is_waited_for(away: Exception, names: dict[str, int]) -> None:
    """Where its name is known, one of several is enough; and where the server for names is away itself."""
    assert not is_mistake(away, KNOWN)
    names |= dict.fromkeys(names, socket.EAI_AGAIN)
    assert not is_mistake(away, UNKNOWN)


@pytest.mark.parametrize(
    "error", [BrokerNotAvailable("no"), CoordinatorNotAvailable("no"), refused("could not translate")]
)
def test_a_name_that_nobody_knows_is_a_mistake(error: Exception) -> None:
    """Of the server that the error is of."""
    assert is_mistake(error, UNKNOWN)


@pytest.mark.parametrize(
    "said",
    [
        'FATAL:  password authentication failed for user "u"',
        'FATAL:  database "db" does not exist',
        "fe_sendauth: no password supplied",
        'FATAL:  no pg_hba.conf entry for host "h"',
    ],
)
def test_a_login_that_is_refused_is_a_mistake(said: str) -> None:
    """Postgres has answered."""
    assert is_mistake(refused(said), KNOWN)


def test_a_topic_that_is_not_there_is_a_mistake() -> None:
    """A person has to create it, or to correct its name."""
    assert is_mistake(UnknownTopicOrPartition(), KNOWN)


@pytest.mark.parametrize(
    ("url", "mistake"),
    [
        ("postgresql://u@/db?host=nobody.invalid:5432&host=localhost:5432", False),
        ("postgresql://u@/db?host=nobody.invalid&host=no-more.invalid", True),
        ("postgresql://u@/db?host=/var/run/postgresql", False),
    ],
)
def test_several_hosts_and_sockets(url: str, mistake: bool) -> None:
    """One host that is known will do, and a socket's folder is no name."""
    assert is_mistake(refused("no"), KNOWN.replace(database_url=url)) is mistake
