"""Records of producers in other languages, whose header names are not UTF-8: each has an outcome of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from sharequeue import DeserializingShareConsumer
from sharequeue.cli import command
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.headers import REMARK, UNDECODABLE, headers_of
from tests.fixtures.deadletters import GivenUp, execute
from tests.fixtures.raw_records import NOT_UTF8, RawRecord, produce_raw
from tests.integration.consumer.share_group import poll_some, work_on
from tests.waiting import wait_until

Make = Callable[..., GivenUp]
BAD = RawRecord(b"bad", [(b"kind", b"a"), NOT_UTF8])

_READ_AGAIN_AND_AGAIN = """
import sys
from confluent_kafka import Consumer, TopicPartition
from sharequeue.kafka.headers import headers_of

consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "x"})
consumer.assign([TopicPartition(sys.argv[2], 0, 0)])
messages = []
while len(messages) < 2:
    messages += consumer.consume(2, 0.5)
for _ in range(1000):
    found = [headers_of(message) for message in messages]
print(found, [message.headers() for message in messages])
"""


def test_headers_are_read_as_often_as_one_likes(given_up: Make) -> None:
    """The failure stays with its message: no second call meets the NULL that ends a process."""
    case = given_up()
    produce_raw(case.settings, case.topic, [BAD, RawRecord(b"good", [(b"kind", b"b")])])
    words = (case.settings.bootstrap_servers, case.topic)
    process = subprocess.run(
        [sys.executable, "-c", _READ_AGAIN_AND_AGAIN, *words], capture_output=True, text=True, check=False
    )
    expected = [REMARK, (("kind", b"b"),)]
    assert process.stdout == f"{expected} {[list(each) for each in expected]}\n", process.stderr


@pytest.mark.usefixtures("patient_failures")
def test_a_program_gets_the_readable_records(given_up: Make) -> None:
    """With a delivery limit of 2, ten of eleven are accepted; the eleventh comes with an error and its value, and
    becomes a dead letter with the reason and what can be copied."""
    case = given_up(copy=True)
    produce_raw(case.settings, case.topic, [RawRecord(b"%d" % each) for each in range(5)] + [BAD])
    produce_raw(case.settings, case.topic, [RawRecord(b"%d" % each) for each in range(5, 10)])
    accepted: set[bytes | str | None] = set()
    failed: list[Message] = []
    with (
        work_on(case.settings, case.database, case.group, share_delivery_count_limit=2) as work,
        DeserializingShareConsumer(work.config()) as consumer,
    ):
        consumer.subscribe([case.topic])
        while len(accepted) < 10 or len(failed) < 2:
            for message in poll_some(consumer):
                (accepted.add(message.value()) if message.error() is None else failed.append(message))
        consumer.commit_sync()
        wait_until(lambda: work.status()[0].archiving == 1)
    assert accepted == {b"%d" % each for each in range(10)}
    errors = [(each.offset(), each.value(), each.headers(), each.error()) for each in failed]
    code = KafkaError._VALUE_DESERIALIZATION
    assert [(at, value, headers, error and error.code()) for at, value, headers, error in errors] == [
        (5, b"bad", list(REMARK), code)
    ] * 2
    case.writer().write()
    [letter] = case.letters()
    assert (letter.source_offset, letter.cause, letter.value) == (5, "exhausted", b"bad")
    assert letter.header(UNDECODABLE) == "true"
    assert "not UTF-8" in (letter.exception_message or "")
    # What is sent back has no headers of its own, and says so.
    assert execute(Redrive(case.settings, case.database, case.dead_letter_topic, Selection())).sent == 1
    sent = _record(case, 11)
    assert (sent.value(), dict(headers_of(sent))[UNDECODABLE]) == (b"bad", b"true")


def test_commands_go_on_past_such_a_record(given_up: Make) -> None:
    """`consume` prints it, with the remark; `dlq list` and `dlq redrive` name it, and go on with the letters."""
    case = given_up(dlq_partitions=1)
    produce_raw(case.settings, case.topic, [RawRecord(b"good"), BAD])
    case.reject()
    produce_raw(case.settings, case.dead_letter_topic, [BAD])
    case.writer().write()
    assert len(case.letters()) == 2
    url = case.database.engine.url.render_as_string(hide_password=False)
    where = ("--database-url", url, "--home", str(case.settings.home))

    def run(*words: str) -> Result:
        result = CliRunner().invoke(command, [*words, *where])
        assert result.exit_code == 0, (result.output, result.exception)
        return result

    listed = run("dlq", "list", case.dead_letter_topic)
    shown = run("dlq", "redrive", case.dead_letter_topic)
    for result in (listed, shown):
        assert "1 record of" in result.stderr
        assert "0:0: the name of a header is not UTF-8" in result.stderr
    assert len(listed.stdout.splitlines()) == 2 + 2
    assert UNDECODABLE in run("dlq", "show", case.dead_letter_topic, "0", "0").stdout
    with work_on(case.settings, case.database, f"{case.group}-2"):
        asked = ("--group", f"{case.group}-2", "--topic", case.topic, "--property", "print.headers=true")
        printed = run("consume", *asked, "--max-messages", "2", "--timeout-ms", "60000")
    assert printed.stdout.splitlines() == ["NO_HEADERS\tgood", f"{UNDECODABLE}:true\tbad"]
    assert f"{case.topic}-0 at offset 1: the name of a header is not UTF-8" in printed.stderr


def _record(case: GivenUp, offset: int) -> Message:
    consumer = Consumer(client_config(case.settings, group_id="raw"))
    consumer.assign([TopicPartition(case.topic, 0, offset)])
    found: list[Message] = []
    while not found:
        found = consumer.consume(1, 0.1)
    consumer.close()
    return found[0]
