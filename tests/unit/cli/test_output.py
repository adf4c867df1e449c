"""What a result looks like: for people, and for programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import click
import pytest

from sharequeue.cli import command
from sharequeue.cli.failures import print_failure
from sharequeue.cli.output import (
    WIDTH,
    Column,
    Output,
    age,
    answers,
    flag,
    moment,
    nested,
    number,
    text,
)

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
COLUMNS = (
    text("GROUP"),
    number("START-OFFSET"),
    moment("SINCE"),
    age("OLDEST"),
    flag("OK"),
    nested("VALUES"),
    text("ERROR", cut=True),
    text("LOG", wide=True),
)
ROW = {
    "group": "g",
    "start_offset": 7,
    "since": NOW - timedelta(minutes=5),
    "oldest": timedelta(seconds=90),
    "ok": True,
    "values": {"a": 1},
    "error": "e" * 200,
}


def test_people_get_a_table_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """Ages and times are in words, long texts are cut, missing values are `-`, and a row has 100 characters."""
    Output(COLUMNS).rows([ROW, {"group": "h"}], now=NOW)
    head, _, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["GROUP", "START-OFFSET", "SINCE", "OLDEST", "OK", "VALUES", "ERROR"]
    assert "5 min ago" in first
    assert "90 s" in first
    assert "yes" in first
    assert first.endswith("e…")
    assert len(first) == WIDTH
    assert second.split() == ["h", *"------"]


USUAL = {
    "group": "flight-delays",
    "topic": "flights",
    "source_topic": "flights",
    "host": "192.168.100.101",
    "client_id": "dagster-run-6b1f4a60-2f25-4b7a-8b1e-0d6f8a1c2b3d",
    "run": "6b1f4a60-2f25-4b7a-8b1e-0d6f8a1c2b3d",
    "consumer_id": "6b1f4a60-2f25-4b7a-8b1e-0d6f8a1c2b3d",
    "state": "acknowledged",
    "principal": "User:sharequeue_service",
    "act": "allow_everyone_if_no_acl_found",
    "before": {"start_offset": 100_000, "state_epoch": 1},
    "after": {"start_offset": 100_000, "state_epoch": 1},
    "assignment": "flights:0,1,2,3,4,5,6,7,8,9",
    "offsets": "100000-100999,101005-102000",
    "error": "ValueError: " + "e" * 100,
}


@pytest.mark.parametrize(
    ("name", "view"),
    [("groups describe", "--members"), ("state show", ""), ("dlq list", ""), ("audit", "")],
)
def test_usual_names_fit(name: str, view: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Groups, members, runs and hosts as they are called in practice."""
    group: click.Command = command
    for word in name.split():
        assert isinstance(group, click.Group)
        group = group.commands[word]
    columns: tuple[Column, ...] = group.callback.columns[view]  # type: ignore[union-attr]
    kinds = {"number": 100_000, "moment": NOW + timedelta(minutes=59), "text": "x"}
    row = {each.key: USUAL.get(each.key, kinds.get(each.kind)) for each in columns}
    Output(columns).rows([row], now=NOW)
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= WIDTH


def test_control_characters_are_escaped_in_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """What a value has of newlines and escapes for terminals is shown, not obeyed; JSON has it as it is."""
    Output((text("A"),)).rows([{"a": "x\ny\x1b[2Jé"}])
    assert capsys.readouterr().out.splitlines()[2:] == [r"x\ny\x1b[2Jé"]
    Output((text("A"),), format="json").rows([{"a": "x\ny"}])
    assert json.loads(capsys.readouterr().out) == [{"a": "x\ny"}]


def test_verbose_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Every column, whole texts, exact times."""
    Output(COLUMNS, verbose=True).rows([ROW], now=NOW)
    head, _, first = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "LOG"
    assert "e" * 200 in first
    assert "2026-01-02T11:55:00+00:00" in first


@pytest.mark.parametrize(("format", "verbose"), [("json", False), ("jsonl", True)])
def test_programs_get_every_column_as_numbers(
    format: str, verbose: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys are the columns' names in snake case, also of wide ones and missing values; times are numbers."""
    Output(COLUMNS, format=format, verbose=verbose).rows([ROW])
    out = capsys.readouterr().out
    (row,) = json.loads(out) if format == "json" else [json.loads(line) for line in out.splitlines()]
    assert row == {
        **ROW,
        "since": round((NOW - timedelta(minutes=5)).timestamp() * 1000),
        "oldest": 90.0,
        "log": None,
    }
    assert list(row) == [each.key for each in COLUMNS]


def test_progress_and_warnings_leave_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Under json, stdout has the result only; notes for people are left out."""
    output = Output(COLUMNS, format="json")
    output.say("working")
    output.warn("look")
    output.note("for people")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "working\nwarning: look\n"
    Output(COLUMNS).say("working")
    assert capsys.readouterr().out == "working\n"


def test_two_columns_of_one_name_are_refused() -> None:
    """They would be one key in JSON."""
    with pytest.raises(ValueError, match="GROUP"):
        answers(text("GROUP"), number("GROUP"))


def test_an_error_has_its_code_and_what_to_look_at(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and a list where it helps."""
    print_failure("NON_EMPTY_GROUP", "Group g has 2 members.")
    first, second, *points = capsys.readouterr().err.splitlines()
    assert first == "Error: NON_EMPTY_GROUP: Group g has 2 members."
    assert second == "Make sure that"
    assert points
    assert all(each.startswith("  - ") for each in points)
    print_failure("", "stopped")
    assert capsys.readouterr().err == "Error: stopped\n"
