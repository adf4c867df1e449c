"""What the command prints for programs has its columns, on a group that was worked on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
import pytest
from click.testing import CliRunner

from sharequeue.cli import command
from sharequeue.cli.output import WIDTH
from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.state import State
from tests import single

GROUP = ("--group", "flight-delays")
READING: Sequence[tuple[str, ...]] = (
    ("groups", "list"),
    ("groups", "describe", *GROUP),
    ("groups", "list", "--state", "empty"),
    ("groups", "describe", *GROUP, "--members"),
    ("groups", "describe", *GROUP, "--state"),
    ("groups", "delete", "--all-groups"),
    ("audit",),
    ("configs", "describe", *GROUP, "--all"),
    ("configs", "describe", "--service", "--all"),
    ("configs", "alter", *GROUP, "--set", "share.delivery.count.limit=8", "--dry-run"),
    ("groups", "describe", *GROUP, "--topic", "flights:0"),
    ("state", "show", *GROUP),
    ("state", "release", *GROUP, "--topic", "flights:0", "--offsets", "7"),
    ("state", "raise-epochs"),
    ("state", "extend-locks", "--by", "PT10M"),
    ("journal", "changes", *GROUP, "--topic", "flights:0"),
    ("journal", "days", *GROUP),
    ("journal", "verify", *GROUP),
    ("journal", "keep"),
    ("trace", "flights", "0", "4"),
    ("trace", "flights", "0", "6", *GROUP),
    ("offsets", "delete", *GROUP, "--topic", "flights"),
    ("acls", "list"),
    ("tokens", "list"),
    ("verify",),
    ("migrate", "--dry-run"),
    ("dlq", "write", *GROUP),
    ("groups", "pause", *GROUP, "--reason", "why"),
    ("groups", "resume", *GROUP),
)


@pytest.mark.usefixtures("standing_clock")
def test_json_has_the_columns(private_database: Database, settings: Settings) -> None:
    """A list of objects with all columns; `jsonl` has the same objects, a line each; text fits its width."""
    state, at = State(private_database), SharePartition("flight-delays", "flights", 0)
    alter_group_configs(private_database, at.group_id, {})
    state.initialize(at, "id", 0, 1)
    single.observe(state, at, "id", 0, 100_000, 100_000)
    lease = single.acquire(state, at, "member-with-a-name-of-36-characters-", None, 10)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: OffsetSet.of((0, 2), (4, 5), (8, 9))})
    url = private_database.engine.url.render_as_string(hide_password=False)
    where = ("--database-url", url, "--home", str(settings.home))
    for words in READING:
        found = json.loads(invoke(*words, *where, "-o", "json"))
        check(found if isinstance(found, list) else [found], words)
        lines = [json.loads(line) for line in invoke(*words, *where, "-o", "jsonl").splitlines()]
        assert len(lines) == (len(found) if isinstance(found, list) else 1)
        text = invoke(*words, *where)
        assert text
        assert [line for line in text.splitlines() if len(line) > WIDTH] == [], words


def check(rows: list[dict[str, Any]], words: Sequence[str]) -> None:
    """Compare objects with the columns that the command declares."""
    found: click.Command = command
    while isinstance(found, click.Group):
        name, *words = words
        found = found.commands[name]
    views = found.callback.columns  # type: ignore[union-attr]
    columns = views[next((each for each in words if each in views), "")]
    kinds = {"text": str, "number": int | float, "flag": bool, "moment": int, "age": int | float}
    for row in rows:
        assert list(row) == [each.key for each in columns]
        for each in columns:
            value = row[each.key]
            assert value is None or isinstance(value, kinds.get(each.kind, object)), (each.name, value)


def invoke(*words: str) -> str:
    """Run the command; return what it prints on stdout."""
    result = CliRunner().invoke(command, list(words))
    assert result.exit_code == 0, f"{words}: {result.output} {result.exception}"
    return result.stdout
