"""Redriven dead letters: each once, whatever dies when, and never in a loop."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import get_args

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from sharequeue.cli import command
from sharequeue.deadletters.outbox import BatchStep
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import (
    REDRIVE_BATCH,
    REDRIVE_COUNT,
    REDRIVE_FROM,
    RedriveRefused,
    Selection,
)
from sharequeue.domain.offsets import OffsetSet
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.headers import headers_of
from tests.fixtures.deadletters import GivenUp, Stop, execute
from tests.fixtures.logs import delete_before
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S

Make = Callable[..., GivenUp]


def redrive(case: GivenUp, selection: Selection | None = None, **options: object) -> Redrive:
    return Redrive(
        case.settings,
        case.database,
        case.dead_letter_topic,
        selection or Selection(),
        **options,  # type: ignore[arg-type]
    )


def committed(case: GivenUp, topic: str) -> list[Message]:
    """The records of a topic, read committed: what was written is seen a moment later."""
    case.topics.settle([topic], 60)
    logs = case.topics.offsets(topic)
    config = {"group_id": "tests", "enable_auto_commit": False, "isolation_level": "read_committed"}
    consumer = Consumer(
        client_config(case.settings, **config, enable_partition_eof=True, fetch_wait_max_ms=20)
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in logs])
    found: list[Message] = []
    left = set(logs)
    while left:
        for message in consumer.consume(1000, 0.05):
            if message.error() is not None:
                left.discard(message.partition() or 0)
            else:
                found.append(message)
    consumer.close()
    return found


def put_back(case: GivenUp, topic: str | None = None) -> Counter[str]:
    """How often each letter was put back, by the header that says where a record comes from."""
    origins = Counter[str]()
    for message in committed(case, topic or case.topic):
        for name, value in headers_of(message):
            if name == REDRIVE_FROM and value is not None:
                origins[value.decode()] += 1
    return origins


def places(case: GivenUp) -> set[str]:
    return {f"{case.dead_letter_topic}:{letter.partition}:{letter.offset}" for letter in case.letters()}


@pytest.mark.parametrize("copy", [True, False])
def test_letters_come_back_as_the_records_they_were(given_up: Make, copy: bool) -> None:
    """Key, value and headers, from the copy in the letter or, without one, from the source; a second redrive finds
    that all were sent."""
    case = given_up(partitions=2, copy=copy)
    case.produce(20, partitions=2, headers=[("kind", b"refund"), ("kind", None)])
    case.reject({0: OffsetSet.of((2, 5)), 1: OffsetSet.of((0, 2))})
    case.writer().write()
    assert redrive(case).plan().letters == 5
    report = execute(redrive(case))
    assert (report.sent, report.gone) == (5, 0)
    back = [message for message in committed(case, case.topic) if len(headers_of(message)) > 2]
    assert sorted(message.value() or b"" for message in back) == [b"value %d" % n for n in (1, 3, 4, 6, 8)]
    for message in back:
        headers = headers_of(message)
        assert headers[:2] == (("kind", b"refund"), ("kind", None))
        assert (REDRIVE_COUNT, b"1") in headers
        assert message.key() == (message.value() or b"").replace(b"value", b"key")
    assert put_back(case) == Counter(places(case))
    again = redrive(case).plan()
    assert (again.letters, again.sent_before) == (0, 5)
    assert execute(redrive(case)).sent == 0


def test_offsets_and_partitions_that_there_are_not(given_up: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redrive, list and show name what is missing; no letters without an error would look like a success."""
    case = given_up(copy=True)
    case.produce(3)
    case.reject()
    case.writer().write()
    monkeypatch.setenv("SHAREQUEUE_HOME", str(case.settings.home))
    name = case.dead_letter_topic
    for arguments, message in (
        (("redrive", name, "--offsets", "9:1"), f"{name} has no partition 9: it has 2."),
        (
            ("redrive", name, "--offsets", "0:0", "--offsets", "9:1", "--execute", "--yes"),
            "has no partition 9",
        ),
        (("redrive", name, "--offsets", "0:900"), f"{name}-0 ends at offset 4: there is no letter at 900."),
        (("redrive", name, "--source-partition", "9"), f"'{name}' has no letter of source partition 9"),
        (("list", name, "--offsets", "0:0", "--offsets", "9:1"), f"{name} has no partition 9: it has 2."),
        (("list", name, "--source-partition", "9"), f"{case.topic} has 1"),
        (("show", name, "9", "1"), f"{name} has no partition 9: it has 2."),
        (("show", name, "0", "900"), "ends at offset 4"),
    ):
        result = CliRunner().invoke(command, ["dlq", *arguments])
        assert result.exit_code != 0, arguments
        assert message in result.output
    assert put_back(case) == Counter()


@pytest.mark.parametrize("step", get_args(BatchStep))
def test_a_redrive_that_dies_at_any_step_is_carried_on(given_up: Make, step: BatchStep) -> None:
    """The next one closes or sends the batch that the dead one had open, and goes on: every letter once."""
    case = given_up(copy=True)
    case.produce(30)
    case.reject()
    case.writer().write()
    left = [1 if step == "initialised" else 2]

    def die(reached: BatchStep) -> None:
        left[0] -= reached == step
        if reached == step and left[0] == 0:
            raise Stop(step)

    with pytest.raises(Stop):
        execute(redrive(case, batch_records=10, on_step=die))
    report = execute(redrive(case, batch_records=10))
    assert put_back(case) == Counter(places(case))
    assert report.sent + report.resumed == {"initialised": 30, "producing": 30, "closed": 10}.get(step, 20)
    assert report.resumed == (10 if step == "committed" else 0)


def test_two_redrives_at_once_send_each_letter_once(given_up: Make) -> None:
    """One fences the other, which says so; together they have sent everything, nothing twice."""
    case = given_up(copy=True)
    case.produce(60)
    case.reject()
    case.writer().write()
    both = threading.Barrier(2)
    refused: list[str] = []

    def work() -> None:
        one = redrive(case, batch_records=5)
        both.wait(PATIENCE_S)
        try:
            execute(one)
        except RedriveRefused as error:
            refused.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) <= 1
    assert all("another redrive of" in reason for reason in refused)
    assert put_back(case) == Counter(places(case))


def test_a_record_that_keeps_coming_back_is_held(given_up: Make) -> None:
    """Rejected again after each redrive, it is put back three times and no more, unless the guard is moved."""
    case = given_up(copy=True)
    case.produce(1)
    # Between two of its places in the source lies the marker of a transaction, which nobody rejects.
    for at in (0, 1, 3):
        case.reject({0: OffsetSet.of((at, at + 1))})
        case.writer().write()
        assert execute(redrive(case)).sent == 1
    case.reject({0: OffsetSet.of((5, 6))})
    case.writer().write()
    plan = redrive(case).plan()
    assert (plan.letters, plan.sent_before, plan.looping) == (0, 3, 1)
    assert redrive(case, max_redrives=4).plan().letters == 1


def test_an_original_that_is_gone_is_reported_and_stays_a_letter(given_up: Make) -> None:
    """Without a copy, and with the source's record deleted, there is nothing to send: the plan says so, and a redrive
    of such letters alone makes no batch."""
    case = given_up()
    case.produce(4)
    case.reject()
    case.writer().write()
    delete_before(case.settings, case.topic, 2)
    plan = redrive(case).plan()
    assert (plan.letters, plan.gone, plan.targets, plan.causes.total()) == (2, 2, Counter({case.topic: 2}), 2)
    report = execute(redrive(case))
    assert (report.sent, report.gone) == (2, 2)
    again = redrive(case).plan()
    assert (again.letters, again.gone, again.sent_before, again.targets) == (0, 2, 2, Counter())
    batches = sa.text("select sequence from sharequeue.redrive_batches where dead_letter_topic = :topic")
    before = case.database.rows(batches, topic=case.dead_letter_topic)
    report = execute(redrive(case))
    assert (report.sent, report.gone) == (0, 2)
    assert case.database.rows(batches, topic=case.dead_letter_topic) == before


def test_what_cannot_be_sent_is_a_warning(given_up: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a dry run and when it is done; and a topic without letters is not taken for one whose letters were sent."""
    case = given_up()
    case.produce(4)
    case.reject()
    case.writer().write()
    delete_before(case.settings, case.topic, 4)
    monkeypatch.setenv("SHAREQUEUE_HOME", str(case.settings.home))
    for options in ((), ("--execute", "--yes")):
        result = CliRunner().invoke(command, ["dlq", "redrive", case.dead_letter_topic, *options])
        assert result.exit_code == 0, result.output
        assert (
            "warning: 4 dead letters have no copy of their record, and the record is no longer"
            in result.stderr
        )
        assert "has no dead letters" not in result.stderr
        result = CliRunner().invoke(command, ["dlq", "redrive", case.topic, *options])
        assert result.exit_code == 0, result.output
        assert f"warning: {case.topic} has no dead letters: check the topic's name" in result.stderr


def test_letters_behind_an_open_transaction_are_said_to_be_there(
    given_up: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """List, show and redrive name since when it is open, and whose it is, and do not doubt the topic's name."""
    case = given_up()
    case.produce(2)
    case.reject()
    other = Producer(client_config(case.settings, transactional_id=f"other-{case.topic}"))
    other.init_transactions(PATIENCE_S)
    other.begin_transaction()
    other.produce(case.dead_letter_topic, b"open", b"key", 0)
    other.flush(PATIENCE_S)
    case.writer().write()
    monkeypatch.setenv("SHAREQUEUE_HOME", str(case.settings.home))
    name = case.dead_letter_topic
    for arguments in (("list", name), ("show", name, "0", "1"), ("redrive", name)):
        result = CliRunner().invoke(command, ["dlq", *arguments])
        assert f"offsets of {name}-0 from 0 on are behind a transaction that another program has open" in (
            result.stderr
        ), arguments
        assert f"open since {datetime.now(UTC):%Y-}" in result.stderr
        assert "check the topic's name" not in result.stderr
    other.abort_transaction(PATIENCE_S)
    case.topics.settle([name], 60)
    listed = CliRunner().invoke(command, ["dlq", "list", name, "-o", "json"])
    assert len(json.loads(listed.stdout)) == 2
    assert "transaction" not in listed.stderr


def test_a_letter_that_comes_back_from_a_further_dead_letter_topic_is_a_letter(
    given_up: Make, make_topic: MakeTopic
) -> None:
    """A second group reads the first one's letters and gives one up. Sent back, it has all headers of a letter, and
    from there the record goes to its own topic."""
    first = given_up(copy=True)
    first.produce(1, headers=[("kind", b"refund")])
    first.reject()
    first.writer().write()
    further = make_topic(1, name=f"dlq.{first.dead_letter_topic}", errors_deadletterqueue_group_enable="true")
    second = GivenUp(first.settings, first.database, f"{first.group}-2", first.dead_letter_topic, further)
    second.configure(
        errors_deadletterqueue_topic_name=further,
        errors_deadletterqueue_copy_record_enable="true",
        share_auto_offset_reset="earliest",
    )
    second.reject({0: OffsetSet.of((0, 1))})
    second.writer().write()
    assert execute(redrive(second)).sent == 1
    letter, returned = first.letters()
    assert returned.headers[: len(letter.headers)] == letter.headers
    assert [name for name, _ in returned.headers[len(letter.headers) :]] == [
        REDRIVE_COUNT,
        REDRIVE_FROM,
        REDRIVE_BATCH,
    ]
    again = redrive(
        first, Selection(offsets={returned.partition: OffsetSet.of((returned.offset, returned.offset + 1))})
    )
    assert execute(again).sent == 1
    (back,) = [message for message in committed(first, first.topic) if len(headers_of(message)) > 1]
    assert (back.key(), back.value()) == (b"key 0", b"value 0")
    assert headers_of(back)[:2] == (("kind", b"refund"), (REDRIVE_COUNT, b"1"))


def test_another_target_and_a_topic_that_is_not_there(given_up: Make, make_topic: MakeTopic) -> None:
    """Letters may go elsewhere; where there is no such topic nothing is sent, and nothing written down."""
    case = given_up(copy=True)
    case.produce(3)
    case.reject()
    case.writer().write()
    work = redrive(case, target="nowhere")
    with pytest.raises(RedriveRefused, match="there is no topic 'nowhere' to send to"):
        work.plan()
    with pytest.raises(RedriveRefused, match="choose another target topic"):
        redrive(case, target=case.dead_letter_topic)
    elsewhere = make_topic(1)
    assert execute(redrive(case, target=elsewhere)).sent == 3
    assert put_back(case, elsewhere) == Counter(places(case))
    assert put_back(case) == Counter()


def test_the_command_shows_first_and_sends_with_execute(
    given_up: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dlq redrive` is a dry run; with --execute it sends, and the audit says who asked for what."""
    case = given_up(copy=True)
    case.produce(3)
    case.reject()
    case.writer().write()
    monkeypatch.setenv("SHAREQUEUE_HOME", str(case.settings.home))

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(command, ["dlq", *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    listed = run(
        "list", case.dead_letter_topic, "--output", "json", "--cause", "rejected", "--offsets", "0:1-2"
    )
    assert [row["offset"] for row in json.loads(listed)] == [1, 2]
    assert {row["cause"] for row in json.loads(listed)} == {"rejected"}
    assert json.loads(run("list", case.dead_letter_topic, "--output", "json", "--cause", "exhausted")) == []
    assert (
        len(json.loads(run("list", case.dead_letter_topic, "-o", "json", "--since", "2013-01-01T00:00:00Z")))
        == 3
    )
    ordinary = CliRunner().invoke(command, ["dlq", "list", case.topic, "-o", "json"])
    assert json.loads(ordinary.stdout) == []
    assert "3 records of" in ordinary.stderr
    assert "are not dead letters" in ordinary.stderr

    wanted = ["redrive", case.dead_letter_topic, "--cause", "rejected", "--offsets", "0:0-1"]
    assert "a dry run: nothing was changed" in run(*wanted)
    assert put_back(case) == Counter()
    run(*wanted, "--execute", "--yes")
    assert sum(put_back(case).values()) == 2
    assert "Offset rejected by client." in run("show", case.dead_letter_topic, "0", "0")
    (audit,) = case.database.rows(
        sa.text(
            "select cause, offsets, since, sent, requested_by, ended_at from sharequeue.redrives"
            " where dead_letter_topic = :topic"
        ),
        topic=case.dead_letter_topic,
    )
    assert (audit["cause"], audit["offsets"], audit["since"]) == ("rejected", {"0": "{[0,2)}"}, None)
    assert audit["sent"] == 2
    assert audit["requested_by"]
    assert audit["ended_at"] is not None
