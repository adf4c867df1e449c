"""Letters deleted from their topic: shown first, written down, and only whole beginnings of partitions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from sharequeue.cli import command
from sharequeue.deadletters.letters import GROUP, OFFSET, PARTITION, TOPIC
from sharequeue.kafka.clients import client_config
from sharequeue.offsets import OffsetSet
from sharequeue.redrive.redrive import Redrive
from sharequeue.redrive.selection import Selection
from tests.fixtures.deadletters import GivenUp
from tests.fixtures.stack import MakeTopic

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


def said(result: Result) -> str:
    """Everything that a command says that fails."""
    assert result.exit_code != 0, result.output
    return f"{result.output} {result.exception}"


def test_a_source_topic_is_never_purged(case: GivenUp, dlq: Dlq) -> None:
    """`dlq purge payments` for `dlq.payments`: ordinary records stay, whatever the options are."""
    before = case.topics.offsets(case.topic)
    for more in ((), ("--execute",), ("--execute", "--foreign")):
        message = said(dlq("purge", case.topic, "--before", "0:2", *more))
        assert f"is a source topic of share group {case.group}" in message
        assert case.dead_letter_topic in message
        assert "is a source topic" in said(dlq("forget", case.topic, case.topic, "0", "0", *more))
    assert case.topics.offsets(case.topic) == before
    assert purges(case) == []
    # Also when the topic is a group's dead-letter topic, and another group reads it.
    reads = case.renamed(f"{case.group}-reads")
    reads.topic = case.dead_letter_topic
    reads.reject({})
    assert "is a source topic" in said(dlq("purge", case.dead_letter_topic, "--before", "0:2", "--execute"))
    assert len(case.letters()) == 8


def test_only_a_dead_letter_topic_is_purged(case: GivenUp, dlq: Dlq, make_topic: MakeTopic) -> None:
    """A topic of nobody's is refused, with the names most like it; one that a group had before is not."""
    stray = make_topic(1, f"{case.dead_letter_topic}s")
    put(case, stray, 3)
    for more in ((), ("--execute",), ("--execute", "--foreign")):
        message = said(dlq("purge", stray, "--before", "0:2", *more))
        assert "is not the dead-letter topic of any share group" in message
        assert f"Did you mean {case.dead_letter_topic}" in message
    assert case.topics.offsets(stray)[0].log_start == 0
    case.configure(errors_deadletterqueue_topic_name=f"{case.dead_letter_topic}.new")
    assert dlq("purge", case.dead_letter_topic, "--until", "2100-01-01", "--execute").exit_code == 0
    assert case.letters() == []


def test_records_that_are_no_letters_are_purged_only_when_that_is_said(case: GivenUp, dlq: Dlq) -> None:
    """Letters of one of the broker's own share groups are letters; a record without the headers is none."""
    kafkas = [(GROUP, b"kafkas"), (TOPIC, b"theirs"), (PARTITION, b"0"), (OFFSET, b"3")]
    put(case, case.dead_letter_topic, 1, kafkas)
    end = case.topics.offsets(case.dead_letter_topic)[0].log_end
    wanted = ("purge", case.dead_letter_topic, "--before")
    (row,) = json.loads(dlq(*wanted, f"0:{end}", "-o", "json").stdout)
    assert "kafkas (1)" in row["groups"]
    put(case, case.dead_letter_topic, 2)
    for more in ((), ("--execute",)):
        message = said(dlq(*wanted, f"0:{end + 1}", *more))
        assert "1 of the 6 records" in message
        assert "--foreign" in message
    assert (len(case.letters()), purges(case)) == (8, [])
    assert dlq(*wanted, f"0:{end + 1}", "--execute", "--foreign").exit_code == 0
    assert purges(case) == [(0, end + 1, 6)]


def test_forgetting_what_can_have_no_letter_is_refused(case: GivenUp, dlq: Dlq) -> None:
    """A misspelt topic, a partition or an offset that there is not: "nothing is left" would be wrong."""
    forget = ("forget", case.dead_letter_topic)
    for arguments, message in (
        ((case.topic[:-1], "0", "2"), f"Did you mean {case.topic}?"),
        ((case.topic, "9", "2"), f"{case.topic} has no partition 9: it has 0, 1."),
        ((case.topic, "0", "999999"), "there was no record at 999999 yet"),
    ):
        for more in ((), ("--execute",)):
            result = dlq(*forget, *arguments, *more)
            assert message in said(result)
            assert "left:" not in result.stderr
    assert len(case.letters()) == 8


def test_forgetting_a_record_that_has_no_letter_any_more_says_so(case: GivenUp, dlq: Dlq) -> None:
    """Also when the group and all its letters are gone. A record that never had one is told apart."""
    put(case, case.topic, 1)
    forget = ("forget", case.dead_letter_topic, case.topic, "0")
    never = case.topics.offsets(case.topic)[0].log_end - 1
    assert "Postgres has none as written" in dlq(*forget, str(never)).stdout
    assert dlq("purge", case.dead_letter_topic, "--until", "2100-01-01", "--execute").exit_code == 0
    gone = dlq(*forget, "0")
    assert gone.exit_code == 0
    assert "any more: Postgres has one as written at" in gone.stdout
    case.state.administration.delete_group(case.group)
    assert dlq(*forget, "0").exit_code == 0
    assert said(dlq("forget", case.dead_letter_topic, f"{case.topic}s", "0", "0"))


def test_what_else_may_hold_letters_of_the_record_is_named(case: GivenUp, dlq: Dlq) -> None:
    """Another group of the source has a dead-letter topic of its own, and a letter that waits."""
    other = case.renamed(f"{case.group}-other")
    other.configure(errors_deadletterqueue_topic_name=f"{case.dead_letter_topic}.other")
    other.reject()
    left = dlq("forget", case.dead_letter_topic, case.topic, "0", "0").stderr
    assert "left: a letter of it that waits to be written" in left
    assert f"left: letters in {case.dead_letter_topic}.other" in left


def put(case: GivenUp, topic: str, count: int, headers: Sequence[tuple[str, bytes | None]] = ()) -> None:
    """Write records of anybody's into partition 0 of a topic."""
    producer = Producer(client_config(case.settings))
    for _ in range(count):
        producer.produce(topic, value=b"anybody's", partition=0, headers=list(headers))
    producer.flush(30)
