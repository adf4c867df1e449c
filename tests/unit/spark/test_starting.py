"""What a job that follows waits for at its start, and what ends it as a mistake in the settings."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from sharequeue.database.refusals import FULL, LOGIN, PARAMETER, ConnectionRefused
from sharequeue.domain.errors import (
    BrokerNotAvailable,
    CoordinatorNotAvailable,
    ShareError,
    UnknownTopicOrPartition,
)
from sharequeue.domain.settings import Settings
from sharequeue.spark.starting import is_mistake

UNKNOWN = "unknown.invalid"


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that knows all hosts but one, and does not respond for another."""

    def looked_up(host: str, port: None) -> list[object]:
        if host in (UNKNOWN, "silent"):
            raise socket.gaierror(socket.EAI_NONAME if host == UNKNOWN else socket.EAI_AGAIN, "no")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)


def settings(host: str) -> Settings:
    return Settings.load(Path("nowhere")).replace(
        database_url=f"postgresql+psycopg2://me@{host}:5432/queue",
        bootstrap_servers=f"{host}:9092,{host}:9093",
        service_url=f"http://{host}:8080",
    )


@pytest.mark.parametrize(("host", "mistake"), [(UNKNOWN, True), ("here", False), ("silent", False)])
@pytest.mark.parametrize(
    "error",
    [
        BrokerNotAvailable("away"),
        CoordinatorNotAvailable("away"),
        OperationalError("select", {}, Exception("connection refused")),
    ],
)
def test_an_unknown_host_is_a_mistake(error: Exception, host: str, mistake: bool) -> None:
    """A server that does not respond is waited for, and so is a name server."""
    assert is_mistake(error, settings(host)) is mistake


def test_a_permanent_refusal_by_a_server_is_a_mistake() -> None:
    """A login, a parameter, a topic; a server that has no connection left may have one soon."""
    for refusal in (LOGIN, PARAMETER, FULL):
        refused = OperationalError("select", {}, ConnectionRefused("no", refusal))
        assert is_mistake(refused, settings("here")) is (refusal is not FULL)
    assert is_mistake(UnknownTopicOrPartition("no topic"), settings("here"))
    assert not is_mistake(ShareError("something else"), settings("here"))


def test_one_known_broker_of_several_is_enough() -> None:
    given = settings("here").replace(bootstrap_servers=f"{UNKNOWN}:9092,here:9092")
    assert not is_mistake(BrokerNotAvailable("away"), given)
