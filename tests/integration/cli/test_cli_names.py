"""A name that nobody knows is an error with the names most like it: a typo never looks like a success."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.deadletters.redrive.redrive import Redrive, RedrivePlan
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.domain.errors import GroupIdNotFound, ShareError, UnknownTopicOrPartition
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.group_names import all_group_names
from tests.fixtures.deadletters import GivenUp
from tests.fixtures.stack import MakeTopic

Make = Callable[..., GivenUp]


def refused(settings: Settings, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What the command says as it fails."""
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code != 0, result.output
    if isinstance(result.exception, ShareError):
        return f"{result.exception.name}: {result.exception}"
    return result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "--group", "{}"),
        ("state", "show", "--group", "{}"),
        ("journal", "verify", "--group", "{}"),
        ("journal", "days", "--group", "{}"),
        ("groups", "describe", "--group", "{}"),
        ("groups", "pause", "--group", "{}", "--reason", "why"),
        ("offsets", "reset", "--group", "{}", "--topic", "t", "--to-earliest"),
        ("offsets", "reset", "--group", "{}", "--topic", "t", "--to-earliest", "--execute", "--yes"),
        ("offsets", "delete", "--group", "{}", "--topic", "t"),
        ("dlq", "write", "--group", "{}"),
        ("dlq", "write", "--group", "{}", "--execute", "--yes"),
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
def test_a_group_that_is_not_there(
    database: Database,
    settings: Settings,
    group: str,
    arguments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GROUP_ID_NOT_FOUND, with the name that was meant; nothing is made of the typo."""
    alter_group_configs(database, group, {"share.auto.offset.reset": "earliest"})
    said = refused(settings, monkeypatch, *(word.format(f"{group}s") for word in arguments))
    assert GroupIdNotFound.name in said
    assert f"Did you mean {group}" in said
    assert f"{group}s" not in all_group_names(database)


def test_a_topic_that_is_not_there(
    settings: Settings, group: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UNKNOWN_TOPIC_OR_PARTITION, with the name that was meant."""
    topic = make_topic(1)
    reset = ("offsets", "reset", "--group", group, "--create-group", "--to-earliest", "--topic")
    for arguments in ((*reset, f"{topic}s"), ("dlq", "redrive", f"{topic}s"), ("dlq", "list", f"{topic}s")):
        said = refused(settings, monkeypatch, *arguments)
        assert UnknownTopicOrPartition.name in said
        assert f"Did you mean {topic}" in said
    said = refused(settings, monkeypatch, *reset[:-1], "--all-topics")
    assert "has no offsets yet" in said


def test_letters_of_a_group_or_a_topic_that_is_not_there(
    given_up: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A selection by a name that no letter has, and nobody knows, is refused; by a known name it finds nothing."""
    case = given_up(copy=True)
    case.produce(2)
    case.reject()
    case.writer().write()
    for arguments in (("--group", f"{case.group}s"), ("--source-topic", f"{case.topic}s")):
        for act in ("list", "redrive", "discard"):
            said = refused(case.settings, monkeypatch, "dlq", act, case.dead_letter_topic, *arguments)
            assert "Did you mean" in said
    other = case.renamed(f"{case.group}-other")
    plan = Redrive(case.settings, case.database, case.dead_letter_topic, Selection(group=other.group)).plan()
    assert plan == RedrivePlan(groups=frozenset({case.group}), topic_ids=plan.topic_ids)
