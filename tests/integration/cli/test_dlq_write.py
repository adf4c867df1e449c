"""Dead letters written by hand: `sharequeue dlq write`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import ResourceType  # type: ignore[attr-defined]

from sharequeue.cli import command
from tests.fixtures.deadletters import GivenUp, alter_configs

Make = Callable[..., GivenUp]


def test_by_hand(given_up: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --execute it says what waits and writes nothing; with it each letter is one, however often it is asked;
    what is held says why and fails the command."""
    case = given_up(partitions=2, errors_deadletterqueue_group_enable="false")
    monkeypatch.setenv("SHAREQUEUE_HOME", str(case.settings.home))

    def write(*more: str) -> Result:
        return CliRunner().invoke(command, ["dlq", "write", "--group", case.group, *more])

    case.produce(10, partitions=2)
    case.reject()
    look = json.loads(write("-o", "json").stdout)
    assert [(row["partition"], row["waiting"], row["dead_letter_topic"]) for row in look] == [
        (0, 5, case.dead_letter_topic),
        (1, 5, case.dead_letter_topic),
    ]
    assert "no service writes the dead letters" in look[0]["remark"]
    assert "a dry run: nothing was changed" in write().stdout
    assert case.letters() == []

    held = write("--execute", "--yes", "-o", "json")
    assert held.exit_code == 1
    rows = json.loads(held.stdout)
    assert [(row["written"], row["held"]) for row in rows] == [(0, 5), (0, 5)]
    assert "errors.deadletterqueue.group.enable" in rows[0]["reason"]
    assert "are held" in json.loads(write("-o", "json").stdout)[0]["remark"]

    alter_configs(
        case.settings,
        ResourceType.TOPIC,
        case.dead_letter_topic,
        errors_deadletterqueue_group_enable="true",
    )
    written = write("--execute", "--yes", "-o", "json")
    assert written.exit_code == 0, written.output
    assert [(row["written"], row["held"]) for row in json.loads(written.stdout)] == [(5, 0), (5, 0)]
    again = write("--execute", "--yes", "-o", "json")
    assert (again.exit_code, json.loads(again.stdout)) == (0, [])
    case.assert_each_exactly_once()
