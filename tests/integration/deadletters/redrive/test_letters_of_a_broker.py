"""Letters that a broker's own share group wrote with a copy: Kafka's six headers, key and value, no header of the
record."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from sharequeue.cli import command
from sharequeue.deadletters.letters import KAFKA_HEADERS
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import REDRIVE_COUNT, Selection
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.headers import headers_of
from tests.fixtures.deadletters import GivenUp, execute
from tests.fixtures.logs import delete_before
from tests.fixtures.stack import MakeTopic
from tests.integration.deadletters.redrive.test_redrive import committed
from tests.waiting import PATIENCE_S

Make = Callable[..., GivenUp]


def write_letters(case: GivenUp, *numbers: int) -> None:
    """Write letters as Kafka 4.4 does for the records of these offsets, which have their number in key and value."""
    producer = Producer(client_config(case.settings))
    for number in numbers:
        texts = (case.topic, "0", str(number), "brokers-own", "1", "Offset rejected by client.")
        headers = [(name, text.encode()) for name, text in zip(KAFKA_HEADERS, texts, strict=True)]
        key, value = b"key %d" % number, b"value %d" % number
        producer.produce(case.dead_letter_topic, value, key, 0, headers=list(headers))
    producer.flush(PATIENCE_S)


def test_a_record_comes_back_with_its_own_headers(
    given_up: Make, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read in its topic. If it is no longer there, the copy's key and value are sent, and a warning says so."""
    case = given_up()
    case.produce(3, headers=[("kind", b"refund")])
    write_letters(case, 0, 1, 2)
    delete_before(case.settings, case.topic, 1)
    plan = Redrive(case.settings, case.database, case.dead_letter_topic, Selection()).plan()
    assert (plan.letters, plan.gone, plan.without_headers) == (3, 0, 1)
    monkeypatch.setenv("SHAREQUEUE_HOME", str(case.settings.home))
    elsewhere = make_topic(1)
    for options in ((), ("--execute", "--yes")):
        arguments = ["dlq", "redrive", case.dead_letter_topic, "--to", elsewhere, *options]
        done = CliRunner().invoke(command, arguments)
        assert done.exit_code == 0, done.output
        assert "warning: 1 dead letter with a copy of key and value only" in done.stderr
    back = {message.value(): headers_of(message)[:1] for message in committed(case, elsewhere)}
    assert back == {
        b"value 0": ((REDRIVE_COUNT, b"1"),),
        b"value 1": (("kind", b"refund"),),
        b"value 2": (("kind", b"refund"),),
    }


def test_the_guard_against_loops_counts_in_the_source(given_up: Make) -> None:
    """The record there has the number of its redrives; the copy does not."""
    case = given_up()
    case.produce(1, headers=[(REDRIVE_COUNT, b"3")])
    write_letters(case, 0)
    work = Redrive(case.settings, case.database, case.dead_letter_topic, Selection())
    report = execute(work)
    assert (report.sent, report.looping, report.without_headers) == (0, 1, 0)
