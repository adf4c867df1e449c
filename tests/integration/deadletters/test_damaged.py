"""Log batches whose checksum is wrong, as after a fault of a disk: no byte of them is delivered as good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaError, Producer

from sharequeue import State
from sharequeue.cli import command
from sharequeue.deadletters.letters import RECORD_DAMAGED
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import READ_UNCOMMITTED
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.reading import RecordReader, scan
from tests.fixtures.deadletters import GivenUp, execute
from tests.fixtures.raw_records import RawRecord, damage, produce_raw
from tests.integration.consumer.share_group import poll_some, work_on
from tests.waiting import PATIENCE_S, wait_until

Make = Callable[..., GivenUp]


def log_dirs(case: GivenUp, topic: str) -> Path:
    """The folder of the broker's logs."""
    return next(Path(case.settings.home).rglob(f"{topic}-0")).parent


def spoil(case: GivenUp, topic: str, batches: int = 4, records: int = 3) -> None:
    """Write batches, and damage the second one."""
    for batch in range(batches):
        produce_raw(case.settings, topic, [RawRecord(b"[%d of %d]" % (at, batch)) for at in range(records)])
    damage(log_dirs(case, topic), topic, b"[1 of 1]")


def run(case: GivenUp, *words: str) -> Result:
    url = case.database.engine.url.render_as_string(hide_password=False)
    where = ("--database-url", url, "--home", str(case.settings.home))
    result = CliRunner().invoke(command, [*words, *where])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.mark.parametrize(("batches", "records"), [(4, 3), (2, 700)])
def test_each_record_of_a_damaged_batch_is_named(given_up: Make, batches: int, records: int) -> None:
    """A scan and a read by offsets return them with an error, without content, and go on; also at the log's end."""
    case = given_up()
    spoil(case, case.topic, batches, records)
    count, first, end = batches * records, records, 2 * records
    places = {(case.topic, 0): 0}
    with RecordReader(case.settings) as reader:
        for found in (
            list(scan(case.settings, READ_UNCOMMITTED, places)),
            list(reader.read(case.topic, 0, OffsetSet.of((0, count)))),
        ):
            assert [each.offset() for each in found] == list(range(count))
            wrong = [each for each in found if each.error() is not None]
            assert [each.offset() for each in wrong] == list(range(first, end))
            assert {error.code() for each in wrong if (error := each.error())} == {KafkaError._BAD_MSG}
        # From within the batch, and to within it.
        some = list(reader.read(case.topic, 0, OffsetSet.of((first + 1, first + 2))))
        assert [(each.offset(), each.error() is not None) for each in some] == [(first + 1, True)]


@pytest.mark.usefixtures("patient_failures")
def test_a_program_gets_the_records_around_it(given_up: Make) -> None:
    """Nine are accepted; the three of the batch come with an error, are rejected, and become letters with it."""
    case = given_up(copy=True)
    spoil(case, case.topic)
    accepted: list[object] = []
    failed: list[int | None] = []
    with work_on(case.settings, case.database, case.group) as work, work.consumer(case.topic) as consumer:
        while len(accepted) < 9 or len(failed) < 3:
            for message in poll_some(consumer):
                if message.error() is None:
                    accepted.append(message.value())
                else:
                    failed.append(message.offset())
        consumer.commit_sync()
        wait_until(lambda: work.status()[0].archiving == 3)
    assert sorted(accepted) == sorted(b"[%d of %d]" % (at, batch) for batch in (0, 2, 3) for at in range(3))  # type: ignore[type-var]
    assert sorted(failed) == [3, 4, 5]  # type: ignore[type-var]
    case.writer().write()
    for letter in case.letters():
        assert (letter.cause, letter.value, letter.header(RECORD_DAMAGED)) == ("rejected", None, "true")
        assert "failed CRC32C check" in (letter.exception_message or "")
    assert len(case.letters()) == 3
    assert execute(Redrive(case.settings, case.database, case.dead_letter_topic, Selection())).sent == 0
    assert State(case.database).figures.verify(case.group) == []


def test_a_batch_too_large_for_a_client_is_sound(given_up: Make) -> None:
    """120 MB of one letter are 11 kB of zstd in the log: they are delivered. A client with a lower limit releases
    them, and the error names its setting; the batch before is delivered."""
    case = given_up()
    case.produce(2)
    large = {"batch_size": 2**31 - 1, "linger_ms": 10_000, "message_max_bytes": 10**9}
    producer = Producer(client_config(case.settings, compression_type="zstd", **large))
    for _ in range(240):
        producer.produce(case.topic, b"a" * 500_000, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    with work_on(case.settings, case.database, f"{case.group}-2") as work:
        with work.consumer(case.topic, receive_message_max_bytes=60_000_000) as consumer:
            messages = poll_some(consumer, 242)
            assert [message.offset() for message in messages if message.error() is None] == [0, 1]
            errors = [error for message in messages if (error := message.error()) is not None]
            assert {error.code() for error in errors} == {KafkaError._BAD_COMPRESSION}
            assert "raise `receive.message.max.bytes` of the consumer" in errors[0].str()
            consumer.commit_sync()
        assert (work.status()[0].accepted, work.status()[0].rejected) == (2, 0)
    with (
        work_on(case.settings, case.database, f"{case.group}-3") as work,
        work.consumer(case.topic) as consumer,
    ):
        sizes = [len(message) for message in poll_some(consumer, 242) if message.error() is None]
        assert sizes[2:] == [500_000] * 240


def test_commands_go_on_past_a_damaged_batch(given_up: Make) -> None:
    """`dlq list` and `dlq redrive` name its records, and read the letters behind it; `consume` rejects them."""
    case = given_up(dlq_partitions=1)
    spoil(case, case.dead_letter_topic, 2)
    case.produce(2)
    case.reject()
    case.writer().write()
    for words in (("dlq", "list"), ("dlq", "redrive")):
        result = run(case, *words, case.dead_letter_topic)
        assert "3 records of" in result.stderr
        assert "0:4: MessageSet at offset 3" in result.stderr
    spoil(case, case.topic, 2)
    group = f"{case.group}-2"
    with work_on(case.settings, case.database, group) as work:
        asked = ("--group", group, "--topic", case.topic, "--max-messages", "8", "--timeout-ms", "60000")
        printed = run(case, "consume", *asked)
        wait_until(lambda: not work.status()[0].lag)
    assert printed.stdout.splitlines() == ["value 0", "value 1", *(f"[{at} of 0]" for at in range(3))]
    assert printed.stderr.count("failed CRC32C check") == 3
    assert (work.status()[0].accepted, work.status()[0].rejected) == (5, 3)


def test_times_without_a_year_of_python(given_up: Make) -> None:
    """A producer that writes microseconds: its records are read, listed and sent back; their times stay numbers."""
    late = {"message_timestamp_after_max_ms": str(2**62)}
    case = given_up(dlq_partitions=1, **late)
    source = f"{case.topic}-micros"
    case.topics.create(source, 1, {"message.timestamp.after.max.ms": str(2**62)})
    micros = 1_796_000_000_000_000
    produce_raw(case.settings, source, [RawRecord(b"late", timestamp=micros)])
    headers = {"__dlq.errors.topic": source, "__dlq.errors.partition": "0", "__dlq.errors.offset": "0"}
    named = [
        (name.encode(), value.encode()) for name, value in {**headers, "__dlq.errors.group": "g"}.items()
    ]
    produce_raw(case.settings, case.dead_letter_topic, [RawRecord(b"late", named, micros)])
    listed = run(
        case, "dlq", "list", case.dead_letter_topic, "--since", "2026-05-01T00:00:00Z", "-o", "jsonl"
    )
    assert f'"written_at": {micros}' in listed.stdout
    assert f"{micros} ms" in run(case, "dlq", "list", case.dead_letter_topic, "--verbose").stdout
    sent = run(case, "dlq", "redrive", case.dead_letter_topic, "--execute", "--yes", "-o", "json")
    assert '"sent": 1' in sent.stdout
    group = f"{case.group}-3"
    with work_on(case.settings, case.database, group):
        asked = ("--group", group, "--topic", source, "--max-messages", "1", "--timeout-ms", "60000")
        printed = run(case, "consume", *asked, "--property", "print.timestamp=true")
    assert printed.stdout == f"CreateTime:{micros}\tlate\n"
    case.topics.delete(source)
