"""Letters deleted from their topic: shown first, written down, and only whole beginnings of partitions."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from sharequeue.cli import command
from sharequeue.offsets import OffsetSet
from sharequeue.redrive.redrive import Redrive
from sharequeue.redrive.selection import Selection
from tests.fix_deadletters import GivenUp

Dlq = Callable[..., Result]


@pytest.fixture
def case(given_up: Callable[..., GivenUp]) -> GivenUp:
    """Give eight letters in two partitions, of which the first of partition 0 was put back."""
    made = given_up(2, copy=True)
    made.produce(8, partitions=2)
    made.reject()
    made.writer().drain()
    first = min(letter.offset for letter in made.letters() if letter.partition == 0)
    chosen = Selection(offsets={0: OffsetSet.of((first, first + 1))})
    Redrive(made.settings, made.database, made.dead_letter_topic, chosen).run(lambda line: None)
    return made


@pytest.fixture
def dlq(case: GivenUp, monkeypatch: pytest.MonkeyPatch) -> Dlq:
    """Give a function that runs `sharequeue dlq`."""
    monkeypatch.setenv("SHAREQUEUE_HOME", str(case.settings.home))
    return lambda *arguments: CliRunner().invoke(command, ["dlq", *arguments])


def purges(case: GivenUp) -> list[tuple[int, int, int]]:
    """Partition, new start and letters of every purge of the topic in the audit log."""
    rows = case.database.rows(
        sa.text(
            "select before, after from sharequeue.audit_trail where act = 'purge_dead_letters'"
            " and before ->> 'topic' = :topic order by audit_id"
        ),
        topic=case.dead_letter_topic,
    )
    return [(row["before"]["partition"], row["after"]["log_start"], row["after"]["letters"]) for row in rows]


def test_a_purge_shows_what_goes_and_does_it_with_execute(case: GivenUp, dlq: Dlq) -> None:
    """Up to an offset of one partition; then by time, which is all there is. Nothing else is taken."""
    letters = {p: [x.offset for x in case.letters() if x.partition == p] for p in (0, 1)}
    wanted = ["purge", case.dead_letter_topic, "--before", f"0:{letters[0][2]}"]
    shown = json.loads(dlq(*wanted, "--output", "json").stdout)
    assert [(row["letters"], row["not_put_back"], row["groups"]) for row in shown] == [
        (2, 1, f"{case.group} (2)")
    ]
    assert (len(case.letters()), purges(case)) == (8, [])
    assert "deleted" in dlq(*wanted, "--execute").stdout
    assert [x.offset for x in case.letters() if x.partition == 0] == letters[0][2:]
    assert purges(case) == [(0, letters[0][2], 2)]
    assert dlq("purge", case.dead_letter_topic, "--until", "2020-01-01", "--execute").exit_code == 0
    assert len(case.letters()) == 6
    assert dlq("purge", case.dead_letter_topic, "--until", "2100-01-01", "--execute").exit_code == 0
    assert case.letters() == []
    assert sorted(purges(case)[1:]) == [
        (p, log.log_end, count)
        for (p, log), count in zip(
            sorted(case.topics.offsets(case.dead_letter_topic).items()), (2, 4), strict=True
        )
    ]


REFUSED: dict[str, tuple[str, ...]] = {
    "give --before or --until": (),
    "give --before or --until, one of them": ("--before", "0:1", "--until", "2020-01-01"),
    "expected PARTITION:OFFSET": ("--before", "0"),
    "has no partition 7: it has 2": ("--before", "7:1"),
    "is committed up to offset": ("--before", "0:1000"),
}


def test_what_cannot_be_purged_is_refused(case: GivenUp, dlq: Dlq) -> None:
    """The message says what is wrong, and nothing is deleted."""
    for message, arguments in REFUSED.items():
        result = dlq("purge", case.dead_letter_topic, *arguments, "--execute")
        assert result.exit_code != 0, arguments
        assert message in result.output + str(result.exception)
    assert len(case.letters()) == 8
    assert purges(case) == []


def test_forgetting_a_record_says_what_goes_with_it_and_what_is_left(case: GivenUp, dlq: Dlq) -> None:
    """Its letter goes with all before it; the source, where it was put back, and other files are named."""
    letters = [letter for letter in case.letters() if letter.partition == 0]
    record = [case.topic, "0", str(letters[1].source_offset)]
    result = dlq("forget", case.dead_letter_topic, *record, "--output", "json")
    (row,) = json.loads(result.stdout)
    assert (row["partition"], row["before"], row["letters"]) == (0, letters[1].offset + 1, 2)
    assert f"{case.topic}-0 still has offset {record[2]}" in result.stderr
    assert "put back" not in result.stderr
    assert "Parquet files <sink>-exceptions" in result.stderr
    first = [case.topic, "0", str(letters[0].source_offset)]
    result = dlq("forget", case.dead_letter_topic, *first, "--execute")
    assert f"put back into {case.topic}: look for the header" in result.stderr
    assert [x.offset for x in case.letters() if x.partition == 0] == [x.offset for x in letters[1:]]
    assert json.loads(dlq("forget", case.dead_letter_topic, *first, "--output", "json").stdout) == []
