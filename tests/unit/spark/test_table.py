"""How results look when they are printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sharequeue.domain.results.runs import RoundReport, RunReport, WrittenAtEnd, total
from sharequeue.domain.results.table import MOST_ROWS, Removed, Table


def a_round(number: int, **changes: int) -> RoundReport:
    figures = {"leased": 1200, "accepted": 1100, "released": 100, "rejected": 0, "gaps": 0, "exhausted": 0}
    figures |= {"without_row": 0, "lost": 0, "lag": 1500, **changes}
    return RoundReport(number=number, lease_ids=(1,), stage_seconds={"write": 2.0}, **figures)


def test_numbers_are_aligned_to_the_right() -> None:
    """Text is aligned; a missing value is a dash, as in the command's tables."""
    shown = Table("title", ("name", "records"), [("a", 1_000_000), ("bcd", None)], ("a remark", None))
    assert shown.text() == "title\nNAME    RECORDS\na     1,000,000\nbcd           -\na remark"


def test_a_long_table_ends_with_the_last_rows() -> None:
    """It says how many rows are not shown."""
    lines = Table("t", ("n",), [(at,) for at in range(MOST_ROWS + 3)]).text().splitlines()
    assert (lines[2].strip(), lines[-2].strip()) == ("3", str(MOST_ROWS + 2))
    assert lines[-1] == "(3 rows before these are not shown)"


def test_the_table_of_a_run_has_a_row_for_each_round() -> None:
    """What is rare has a column only where there is some; what is to be known stands below."""
    rounds = (a_round(1), a_round(2, lost=7))
    figures: dict[str, Any] = {**total(rounds), "lost": 0}
    report = RunReport(
        group="g",
        rounds=rounds,
        lag=1500,
        seconds=4.5,
        start_seconds=0.5,
        remark="5 records are held",
        dead_letters=WrittenAtEnd(2, warning="3 dead letters wait"),
        **figures,
    )
    assert str(report).splitlines() == [
        "run of group g: 2,400 records leased in 4.0 s (600/s) after a start of 0.5 s, 2,200 accepted, lag 1,500",
        "ROUND  LEASED  ACCEPTED  RELEASED  REJECTED  LOST    LAG  SECONDS",
        "    1   1,200     1,100       100         0     0  1,500      2.0",
        "    2   1,200     1,100       100         0     7  1,500      2.0",
        "5 records are held",
        "dead letters: 2 written",
        "3 dead letters wait",
    ]
    assert "LOST" not in str(report.rounds[0])


def test_a_drained_run_says_what_other_members_hold() -> None:
    """A run that has nothing more to lease, while other members hold records, says how many."""
    ended = RunReport(group="g", drained=True, seconds=1.0)
    assert str(ended).splitlines()[0].endswith("accepted, drained")
    assert str(replace(ended, lag=3)).splitlines()[0].endswith("accepted, lag 3")


def test_the_result_of_a_sweep_is_a_list_that_prints_as_a_table() -> None:
    """It is compared and walked over as lists."""
    removed = Removed(["a", "b"], dry_run=True)
    assert removed == ["a", "b"]
    assert str(removed) == "would remove 2 outputs\nOUTPUT\na\nb"
