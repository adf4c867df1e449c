"""A letter that cannot be sent stops no other: it is left out, counted and named; the next redrive tries it again."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from confluent_kafka import Message, Producer
from confluent_kafka.admin import ResourceType  # type: ignore[attr-defined]

from sharequeue.cli import command
from sharequeue.deadletters.letters import RECORD_OVERSIZED
from sharequeue.deadletters.outbox import BatchStep
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import REDRIVE_FROM, Selection
from sharequeue.domain.offsets import OffsetSet
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.headers import headers_of
from tests.fixtures.deadletters import GivenUp, Stop, alter_configs, execute
from tests.fixtures.logs import delete_before
from tests.fixtures.stack import MakeTopic
from tests.integration.deadletters.redrive.test_redrive import committed
from tests.waiting import PATIENCE_S

Make = Callable[..., GivenUp]


def redrive(case: GivenUp, **options: object) -> Redrive:
    return Redrive(case.settings, case.database, case.dead_letter_topic, Selection(), **options)  # type: ignore[arg-type]


def put_back(case: GivenUp, topic: str | None = None) -> list[Message]:
    """The records that were put back into a topic, in their order."""
    return [
        message
        for message in committed(case, topic or case.topic)
        if any(name == REDRIVE_FROM for name, _ in headers_of(message))
    ]


def values(case: GivenUp, topic: str | None = None) -> list[bytes]:
    return [message.value() or b"" for message in put_back(case, topic)]


def incompressible(number: int, size: int) -> bytes:
    return b"%d " % number + os.urandom(size)


def test_a_copy_that_was_dropped_for_its_size_is_read_in_the_source(given_up: Make) -> None:
    """Key, value and headers; the letters beside it come from their copies, all in the order of the source."""
    case = given_up(copy=True, max_message_bytes="2000")
    large = os.urandom(5000)
    case.produce(
        3, value=lambda number: large if number == 1 else b"value %d" % number, headers=[("kind", b"sale")]
    )
    case.reject()
    case.writer().write()
    assert [letter.header(RECORD_OVERSIZED) for letter in case.letters()] == [None, "true", None]
    report = execute(redrive(case))
    assert (report.sent, report.gone, report.refused) == (3, 0, [])
    back = put_back(case)
    assert [message.value() for message in back] == [b"value 0", large, b"value 2"]
    assert [message.key() for message in back] == [b"key 0", b"key 1", b"key 2"]
    assert all(headers_of(message)[0] == ("kind", b"sale") for message in back)


def test_a_copy_that_was_dropped_for_its_size_may_be_gone_in_the_source(
    given_up: Make, make_topic: MakeTopic
) -> None:
    """Then nothing is sent for it, and it is counted; it stays a letter."""
    case = given_up(copy=True, max_message_bytes="2000")
    case.produce(3, value=lambda number: b"x" * (100 if number else 5000))
    case.reject()
    case.writer().write()
    delete_before(case.settings, case.topic, 1)
    plan = redrive(case).plan()
    assert (plan.letters, plan.gone) == (2, 1)
    elsewhere = make_topic(1)
    report = execute(redrive(case, target=elsewhere))
    assert (report.sent, report.gone) == (2, 1)
    assert [len(value) for value in values(case, elsewhere)] == [100, 100]


def test_a_record_that_its_producer_compressed_comes_back(given_up: Make) -> None:
    """3 MB of text in a topic with the default limit: too large for a letter, and sent back compressed."""
    case = given_up(copy=True)
    text = b'{"amount": 12.5, "currency": "EUR"}' * 90_000
    case.produce(
        1,
        value=lambda _: text,
        compression_type="lz4",
        message_max_bytes="10000000",
        transactional_id=f"t-{case.topic}",
    )
    case.reject({0: OffsetSet.of((0, 1))})
    case.writer().write()
    assert [letter.header(RECORD_OVERSIZED) for letter in case.letters()] == ["true"]
    assert execute(redrive(case)).sent == 1
    assert values(case) == [text]


def test_a_letter_larger_than_the_clients_default_is_sent(given_up: Make) -> None:
    """1,020,000 bytes fit into a topic by default; the client's own default is lower."""
    case = given_up(copy=True, max_message_bytes="2000000")
    large = os.urandom(1_020_000)
    case.produce(
        2,
        value=lambda number: large if number else b"small",
        message_max_bytes="2000000",
        transactional_id=f"t-{case.topic}",
    )
    case.reject({0: OffsetSet.of((0, 2))})
    case.writer().write()
    report = execute(redrive(case))
    assert (report.sent, report.refused) == (2, [])
    assert values(case) == [b"small", large]


def test_small_letters_fit_into_a_topic_with_a_small_limit(given_up: Make, make_topic: MakeTopic) -> None:
    """Though together they are larger than it."""
    case = given_up(copy=True)
    case.produce(50, value=lambda number: b"%d " % number + b"x" * 500)
    case.reject()
    case.writer().write()
    small = make_topic(1, max_message_bytes="2000", compression_type="uncompressed")
    report = execute(redrive(case, target=small))
    assert (report.sent, report.refused) == (50, [])
    assert [int(value.split()[0]) for value in values(case, small)] == list(range(50))


def test_a_letter_that_the_target_refuses_is_named_and_tried_again(
    given_up: Make, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are sent, in their order; once the topic takes it, the next redrive sends that one alone."""
    case = given_up(copy=True)
    case.produce(9, value=lambda number: incompressible(number, 5000 if number in (3, 5) else 100))
    case.reject()
    case.writer().write()
    small = make_topic(1, max_message_bytes="2000")
    monkeypatch.setenv("SHAREQUEUE_HOME", str(case.settings.home))
    arguments = ["dlq", "redrive", case.dead_letter_topic, "--to", small, "--execute", "--yes"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    assert "warning: 2 dead letters could not be sent, and stay in" in result.stderr
    assert f"0:3, 0:5: {small} refuses the record (Broker: Message size too large): raise" in result.stderr
    assert [int(value.split()[0]) for value in values(case, small)] == [0, 1, 2, 4, 6, 7, 8]
    alter_configs(case.settings, ResourceType.TOPIC, small, max_message_bytes="20000")
    report = execute(redrive(case, target=small))
    assert (report.sent, report.refused) == (2, [])
    assert Counter(int(value.split()[0]) for value in values(case, small)) == Counter(range(9))


def test_a_compacted_target_refuses_records_without_a_key(given_up: Make, make_topic: MakeTopic) -> None:
    """Each is named; what has a key is sent."""
    case = given_up(copy=True)
    producer = Producer(client_config(case.settings))
    for number in range(6):
        producer.produce(case.topic, b"value %d" % number, None if number in (1, 4) else b"key", 0)
    producer.flush(PATIENCE_S)
    case.reject()
    case.writer().write()
    compacted = make_topic(1, cleanup_policy="compact")
    report = execute(redrive(case, target=compacted))
    assert (report.sent, [each.offset for each in report.refused]) == (4, [1, 4])
    assert all("a compacted topic takes no record without a key" in each.reason for each in report.refused)


def test_an_open_batch_to_a_topic_that_is_gone_stops_no_other(given_up: Make, make_topic: MakeTopic) -> None:
    """A redrive to another topic was killed, and the topic deleted: its letters are named, the rest is sent."""
    case = given_up(copy=True)
    case.produce(6)
    case.reject()
    case.writer().write()
    elsewhere = make_topic(1)

    def die(reached: BatchStep) -> None:
        if reached == "opened":
            raise Stop(reached)

    with pytest.raises(Stop):
        execute(redrive(case, target=elsewhere, batch_records=2, on_step=die))
    case.topics.delete(elsewhere)
    report = execute(
        Redrive(
            case.settings, case.database, case.dead_letter_topic, Selection(offsets={0: OffsetSet.of((2, 9))})
        )
    )
    assert [(each.partition, each.offset) for each in report.refused] == [(0, 0), (0, 1)]
    assert all(f"there is no topic {elsewhere} any more" in each.reason for each in report.refused)
    assert report.sent == 4
    assert execute(redrive(case)).sent == 2
    assert Counter(values(case)) == Counter(b"value %d" % number for number in range(6))


def test_a_large_batch_is_sent_in_several_transactions(
    given_up: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its bytes, or by its time on a slow connection; killed in the middle, each letter is sent once, in order."""
    case = given_up(copy=True)
    case.produce(40, value=lambda number: b"%d " % number + b"x" * 1000)
    case.reject()
    case.writer().write()
    monkeypatch.setattr("sharequeue.deadletters.outbox.TRANSACTION_BYTES", 5000)
    steps: list[BatchStep] = []

    def die(reached: BatchStep) -> None:
        steps.append(reached)
        if steps.count("committed") == 3:
            raise Stop(reached)

    with pytest.raises(Stop):
        execute(redrive(case, on_step=die))
    monkeypatch.setattr("sharequeue.kafka.transactions.FILLING_SECONDS", 0.0)
    report = execute(redrive(case))
    assert [int(value.split()[0]) for value in values(case)] == list(range(40))
    assert report.resumed > 0
    sequences = case.database.rows(
        sa.text(
            "select count(*) as batches from sharequeue.redrive_batches"
            " where dead_letter_topic = :topic and sent_at is not null"
        ),
        topic=case.dead_letter_topic,
    )
    assert sequences[0]["batches"] > 20


def test_the_guard_against_loops_holds_for_letters_without_a_copy(given_up: Make) -> None:
    """The record in the source says how often it was put back."""
    case = given_up()
    case.produce(1)
    for at in (0, 1, 3):
        case.reject({0: OffsetSet.of((at, at + 1))})
        case.writer().write()
        assert execute(redrive(case)).sent == 1
    case.reject({0: OffsetSet.of((5, 6))})
    case.writer().write()
    report = execute(redrive(case))
    assert (report.sent, report.looping, report.gone) == (0, 1, 0)
    assert execute(redrive(case, max_redrives=4)).sent == 1
