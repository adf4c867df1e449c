"""The embedded broker's settings: ours, then the user's, then where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharequeue.local.home import Home
from sharequeue.local.kafka import write_settings


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home.at(tmp_path / "数据")
    home.create()
    return home


def written(home: Home) -> dict[str, str]:
    """The settings as Java reads them: of two of one name the second."""
    path = write_settings(home, home.kafka, home.kafka / "data", 9092, 9093)
    lines = [line for line in path.read_text("latin-1").splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_the_users_settings_win_but_not_over_where_the_broker_is(home: Home) -> None:
    """Each start reads them, so that they stay after a kill and after a change."""
    assert written(home)["log.retention.ms"] == "-1"
    home.broker_settings.write_text("log.retention.ms=1000\nmessage.max.bytes=9\nnode.id=7")
    found = written(home)
    assert (found["log.retention.ms"], found["message.max.bytes"], found["node.id"]) == ("1000", "9", "1")
    assert found["listeners"] == "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    home.broker_settings.write_text("message.max.bytes=8")
    found = written(home)
    assert (found["log.retention.ms"], found["message.max.bytes"]) == ("-1", "8")


def test_a_reset_leaves_them(home: Home) -> None:
    """They are the user's, as the jars are: a reset removes data."""
    home.broker_settings.write_text("message.max.bytes=9")
    home.erase()
    assert home.broker_settings.read_text() == "message.max.bytes=9"
