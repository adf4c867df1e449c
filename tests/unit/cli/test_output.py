"""What a result looks like: for people, and for programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from sharequeue.cli.failures import print_failure
from sharequeue.cli.output import (
    WIDTH,
    Output,
    age,
    answers,
    flag,
    moment,
    nested,
    number,
    response_schema,
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
    schema = response_schema(COLUMNS, "x")["items"]
    assert schema["required"] == list(row)


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
