"""Dead letters on the real broker: what is written, where, when it is held, and that it is written once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from confluent_kafka import AcknowledgeType as BrokerAcknowledgeType
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ResourceType,
)

from sharequeue.deadletters import outbox, writer
from sharequeue.deadletters import topic as deadletter_topic
from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.deadletters.outbox import BatchStep
from sharequeue.domain.errors import UnknownTopicOrPartition
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.headers import Headers, headers_of
from sharequeue.kafka.topics import Topics
from tests.fixtures.deadletters import GivenUp, Stop, alter_configs, stop_at
from tests.fixtures.logs import delete_before
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S

Make = Callable[..., GivenUp]


# What is written ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["k\u00f6ln \u6ce8\u6587 \U0001f600", "<b>\"'&/..%2F?#\\"])
def test_a_group_of_any_name_has_dead_letters(given_up: Make, name: str) -> None:
    """Each once, also when the writer comes again; the header has the name as it is."""
    case = given_up()
    case = case.renamed(f"{case.group} {name}")
    case.produce(3)
    case.reject()
    case.writer().write()
    case.writer().write()
    written = _raw(case.settings, case.dead_letter_topic, 3)
    assert {dict(headers)["__dlq.errors.group"] for _, _, headers, _ in written} == {case.group.encode()}
    assert case.state.dead_letters.held(case.group) == []


@pytest.mark.parametrize("copy", [False, True])
def test_letters_equal_those_of_the_brokers_own_share_group(
    given_up: Make, make_topic: MakeTopic, settings: Settings, group: str, copy: bool
) -> None:
    """Key, value, timestamp type and the six headers are byte for byte what Kafka 4.4 writes for the same rejects."""
    ours = given_up(copy=copy, dlq_partitions=1)
    ours.produce(3, headers=[("h", b"x")])
    theirs = make_topic(1, name=f"dlq.broker-{ours.topic}", errors_deadletterqueue_group_enable="true")
    alter_configs(
        settings,
        ResourceType.GROUP,
        group,
        errors_deadletterqueue_topic_name=theirs,
        share_auto_offset_reset="earliest",
        errors_deadletterqueue_copy_record_enable=str(copy).lower(),
    )
    _reject_in_broker(settings, group, ours.topic, 3)
    ours.reject()
    ours.writer().write()

    expected = _raw(settings, theirs, 3)
    written = _raw(settings, ours.dead_letter_topic, 3)
    for (our_key, our_value, our_headers, our_type), broker in zip(written, expected, strict=True):
        assert (our_key, our_value, our_headers[:6], our_type) == broker
        assert all(name.startswith("sharequeue.") for name, _ in our_headers[6:])


def _reject_in_broker(settings: Settings, group: str, topic: str, count: int) -> None:
    config = client_config(settings, group_id=group)
    config["share.acknowledgement.mode"] = "explicit"
    consumer = ShareConsumer(config)
    consumer.subscribe([topic])
    patience = time.monotonic() + PATIENCE_S
    while count and time.monotonic() < patience:
        for message in consumer.poll(1.0) or []:
            if message.error() is None:
                consumer.acknowledge(message, BrokerAcknowledgeType.REJECT)
                count -= 1
        consumer.commit_sync()
    consumer.close()
    assert count == 0


Raw = tuple[object, object, Headers, int]


def _raw(settings: Settings, topic: str, count: int) -> list[Raw]:
    consumer = Consumer(client_config(settings, group_id="raw", enable_auto_commit=False))
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Raw] = []
    patience = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < patience:
        found += [
            (message.key(), message.value(), headers_of(message), message.timestamp()[0])
            for message in consumer.consume(count, 0.1)
        ]
    consumer.close()
    return found


def test_letters_go_to_the_source_partition_modulo_and_tell_their_coordinates(given_up: Make) -> None:
    """Five source partitions on two: 0, 2, 4 to the first and 1, 3 to the second; each rejected record once."""
    case = given_up(partitions=5, dlq_partitions=2)
    case.produce(100, partitions=5)
    case.reject()
    report = case.writer().write()
    assert (report.written, report.resumed, report.dropped, report.held) == (100, 0, 0, ())
    assert {letter.partition == (letter.source_partition or 0) % 2 for letter in case.letters()} == {True}
    assert {letter.key for letter in case.letters()} == {None}
    assert {letter.value for letter in case.letters()} == {None}
    assert [partition.written for partition in report.partitions] == [20] * 5
    case.assert_each_exactly_once()


def test_only_what_was_rejected_becomes_a_letter_in_its_order(given_up: Make) -> None:
    """Accepted neighbours leave no letter; letters of a partition lie in the order of their offsets."""
    case = given_up()
    case.produce(50)
    case.reject({0: OffsetSet.of((3, 5), (10, 11), (40, 50))})
    case.writer(batch_records=4).write()
    assert [letter.source_offset for letter in case.letters()] == [3, 4, 10, *range(40, 50)]
    case.assert_each_exactly_once()


def test_a_copy_is_key_value_headers_and_timestamp(given_up: Make) -> None:
    """Doubled, null and binary headers are copied in order under our prefix; null values stay null."""
    case = given_up(copy=True)
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", b"2"), ("n", None), ("b", b"\xff\x00")]
    case.produce(4, headers=headers, value=lambda number: None if number == 2 else b"\x00\xfe" * number)
    case.reject()
    case.writer().write()
    letters = case.letters()
    assert [letter.value for letter in letters] == [b"", b"\x00\xfe", None, b"\x00\xfe" * 3]
    assert [letter.key for letter in letters] == [b"key %d" % number for number in range(4)]
    for letter in letters:
        ours = [
            header for header in letter.headers[6:] if header[0].startswith("sharequeue.original.header.")
        ]
        assert ours == [("sharequeue.original.header." + name, value) for name, value in headers]
        assert abs(int(letter.header("sharequeue.original.timestamp") or 0) / 1000 - time.time()) < 600


@pytest.mark.rule("R-DL-5")
def test_a_record_gone_from_the_log_is_a_letter_without_a_value(given_up: Make, settings: Settings) -> None:
    """Deleted before the copy was made: the letter is there, empty, and says that its record is missing."""
    case = given_up(copy=True)
    case.produce(10)
    case.reject()
    delete_before(settings, case.topic, 6)
    case.writer().write()
    letters = case.letters()
    assert [letter.header("sharequeue.record.missing") for letter in letters] == ["true"] * 6 + [None] * 4
    assert [letter.value for letter in letters] == [None] * 6 + [
        b"value %d" % number for number in range(6, 10)
    ]
    case.assert_each_exactly_once()


def test_a_topic_made_again_is_not_taken_for_the_original(given_up: Make, make_topic: MakeTopic) -> None:
    """Records of another topic under the same name are not copied into the letters."""
    case = given_up(copy=True)
    case.produce(3)
    case.reject()
    case.topics.delete(case.topic)
    make_topic(1, name=case.topic)
    case.produce(3, value=lambda number: b"somebody else's")
    case.writer().write()
    assert [letter.value for letter in case.letters()] == [None] * 3
    assert {letter.header("sharequeue.record.missing") for letter in case.letters()} == {"true"}


def test_a_topic_made_again_while_it_is_copied_is_not_taken_for_the_original(given_up: Make) -> None:
    """The batch that was copied from it is not committed; the letters are written without a copy."""
    case = given_up(copy=True)
    case.produce(4)
    case.reject()
    left = [2]

    def on_step(reached: BatchStep, source: SharePartition) -> None:
        left[0] -= reached == "opened"
        if (reached, left[0]) == ("opened", 0):
            left[0] -= 1
            case.topics.delete(case.topic)
            case.topics.create(case.topic, 1)
            case.produce(4, value=lambda number: b"somebody else's")

    report = case.writer(on_step=on_step, batch_records=2).write()
    assert (report.written, report.held) == (4, ())
    assert [letter.value for letter in case.letters()] == [b"value 0", b"value 1", None, None]


def test_letters_of_a_deleted_source_topic_are_written_once(given_up: Make) -> None:
    """Without the topic there is no place for the marker: the letters themselves are asked after a failure."""
    case = given_up(copy=True)
    case.produce(10)
    case.reject()
    case.topics.delete(case.topic)
    with pytest.raises(Stop):
        case.writer(on_step=stop_at("committed", 2), batch_records=4).write()
    report = case.writer(batch_records=4).write()
    assert (report.written, report.resumed) == (2, 4)
    assert sorted(letter.source_offset or 0 for letter in case.letters()) == list(range(10))


def test_what_is_too_large_for_the_topic_becomes_headers_only(given_up: Make) -> None:
    """A copy above `max.message.bytes` loses its content and says so; its neighbours keep theirs."""
    case = given_up(copy=True, max_message_bytes="2000")
    case.produce(6, value=lambda number: b"x" * (5000 if number % 2 else 100))
    case.reject()
    report = case.writer().write()
    assert report.held == ()
    letters = case.letters()
    assert [len(letter.value or b"") for letter in letters] == [100, 0, 100, 0, 100, 0]
    assert [letter.header("sharequeue.record.oversized") for letter in letters] == [None, "true"] * 3


def test_copies_just_below_the_limit_are_written_whole(given_up: Make) -> None:
    """Whatever we let pass as small enough, the broker takes."""
    case = given_up(copy=True, max_message_bytes="2000")
    case.produce(400, value=lambda number: b"x" * (1200 + number))
    case.reject()
    report = case.writer().write()
    assert (report.written, report.held) == (400, ())
    sizes = [len(letter.value) for letter in case.letters() if letter.value is not None]
    assert sizes == list(range(1200, 1200 + len(sizes)))
    assert 0 < len(sizes) < 400


def _numbered(transaction: int, record: int) -> bytes:
    return b"%d-%d" % (transaction, record)


def test_scattered_originals_of_transactions_are_found(given_up: Make) -> None:
    """Offsets taken by transaction markers lie between the records; each letter has its own record's value."""
    case = given_up(copy=True)
    for number in range(5):
        case.produce(3, value=partial(_numbered, number), transactional_id=f"t-{case.topic}")
    wanted = OffsetSet.of((0, 2), (5, 7), (18, 19))
    case.reject({0: wanted})
    case.writer().write()
    assert [(letter.source_offset, letter.value) for letter in case.letters()] == [
        (0, b"0-0"),
        (1, b"0-1"),
        (5, b"1-1"),
        (6, b"1-2"),
        (18, b"4-2"),
    ]


def test_copies_larger_than_a_transaction_go_in_several(
    given_up: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch, committed piece by piece; failing in the middle, the rest is written and nothing twice."""
    monkeypatch.setattr(outbox, "TRANSACTION_BYTES", 5000)
    case = given_up(copy=True)
    case.produce(40, value=lambda number: b"x" * 1000)
    case.reject()
    with pytest.raises(Stop):
        case.writer(on_step=stop_at("committed", 3)).write()
    before = len(case.letters())
    assert 0 < before < 40
    report = case.writer().write()
    assert (report.written, report.resumed) == (40 - before, before)
    case.assert_each_exactly_once()


# Which topic ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("R-DL-7")
@pytest.mark.parametrize("ours", [True, False])
def test_a_missing_topic_is_made_as_kafka_makes_it(given_up: Make, settings: Settings, ours: bool) -> None:
    """The broker's default partitions, opted in, CreateTime; also where only the broker's own config says so, as the
    one of the tests does."""
    case = given_up(dlq_partitions=0)
    case.produce(3)
    case.reject()
    assert case.writer(auto_create=ours).write().written == 3
    found = deadletter_topic.TopicKeeper(settings).find(case.dead_letter_topic)
    assert found is not None
    assert found.configs["errors.deadletterqueue.group.enable"] == "true"
    assert found.configs["message.timestamp.type"] == "CreateTime"
    Topics(settings).delete(case.dead_letter_topic)


@pytest.mark.rule("R-DL-4")
def test_without_auto_create_the_records_are_held(given_up: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, and the report names what to set."""
    monkeypatch.setattr(deadletter_topic.TopicKeeper, "_broker_creates", lambda keeper: False)
    case = given_up(dlq_partitions=0)
    case.produce(3)
    case.reject()
    report = case.writer().write()
    assert [(held.records, report.written) for held in report.held] == [(3, 0)]
    assert "SHAREQUEUE_ERRORS_DEADLETTERQUEUE_AUTO_CREATE_TOPICS_ENABLE" in report.held[0].reason
    assert [status.archiving for status in case.state.figures.describe(case.group)] == [3]


def test_held_records_are_written_once_the_topic_is_opted_in(given_up: Make, settings: Settings) -> None:
    """A topic that did not opt in holds its records; after the opt-in the next writer writes them."""
    case = given_up(partitions=2, errors_deadletterqueue_group_enable="false")
    case.produce(10, partitions=2)
    case.reject()
    report = case.writer().write()
    assert [(held.share_partition.partition, held.records) for held in report.held] == [(0, 5), (1, 5)]
    assert "set its config `errors.deadletterqueue.group.enable=true`" in report.held[0].reason
    assert case.letters() == []
    alter_configs(
        settings, ResourceType.TOPIC, case.dead_letter_topic, errors_deadletterqueue_group_enable="true"
    )
    assert case.writer().write().written == 10
    case.assert_each_exactly_once()


def test_where_dropping_is_allowed_records_are_closed_without_letters(given_up: Make) -> None:
    """Kafka's way: the window goes on, the report and the state count what was dropped."""
    case = given_up(partitions=2, errors_deadletterqueue_group_enable="false")
    case.configure(sharequeue_dead_letter_drop_enable="true")
    case.produce(10, partitions=2)
    case.reject()
    report = case.writer(batch_records=3).write()
    assert (report.written, report.dropped, report.held) == (0, 10, ())
    assert [(status.spso, status.archiving) for status in case.state.figures.describe(case.group)] == [
        (5, 0),
        (5, 0),
    ]
    assert {run.dropped for run in case.state.dead_letters.written(case.group)} == {True}
    assert case.letters() == []


def test_dropping_does_not_take_a_written_batch_for_dropped(given_up: Make, settings: Settings) -> None:
    """Written before a failure, then the topic was closed to letters: the batch counts as found, not dropped."""
    case = given_up()
    case.produce(10)
    case.reject()
    with pytest.raises(Stop):
        case.writer(on_step=stop_at("committed"), batch_records=6).write()
    case.configure(sharequeue_dead_letter_drop_enable="true")
    alter_configs(
        settings, ResourceType.TOPIC, case.dead_letter_topic, errors_deadletterqueue_group_enable="false"
    )
    report = case.writer(batch_records=6).write()
    assert (report.resumed, report.dropped) == (6, 4)


@pytest.mark.rule("R-DL-10")
def test_a_silent_broker_holds_and_never_drops(
    given_up: Make, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropping is for a topic that somebody has to repair; an outage passes, and the records wait for it."""
    case = given_up()
    case.configure(sharequeue_dead_letter_drop_enable="true")
    case.produce(4)
    case.reject()
    monkeypatch.setattr(writer, "TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(writer, "TopicKeeper", partial(deadletter_topic.TopicKeeper, timeout_seconds=0.5))
    away = replace(case, settings=settings.replace(bootstrap_servers="127.0.0.1:1"))
    report = away.writer(try_again_seconds=0).write()
    assert [held.records for held in report.held] == [4]
    assert "does not answer" in report.held[0].reason
    assert case.writer().write().written == 4
    case.assert_each_exactly_once()


def test_nothing_waiting_costs_nothing(given_up: Make) -> None:
    """A writer with nothing to do asks no broker."""
    case = given_up()
    away = replace(case, settings=case.settings.replace(bootstrap_servers="127.0.0.1:1"))
    assert away.writer().write().partitions == ()


# Reading --------------------------------------------------------------------------------------------------------


def test_reading_ends_before_an_open_transaction(given_up: Make, settings: Settings) -> None:
    """Letters of a transaction not yet committed are neither read nor waited for; those of an aborted one never."""
    case = given_up(dlq_partitions=1)
    case.produce(5)
    case.reject()
    case.writer().write()
    open_producer = Producer(client_config(settings, transactional_id=f"open-{case.topic}"))
    open_producer.init_transactions(PATIENCE_S)
    open_producer.begin_transaction()
    open_producer.produce(case.dead_letter_topic, value=b"not yet", partition=0)
    open_producer.flush(PATIENCE_S)
    assert len(list(read_dead_letters(settings, case.dead_letter_topic))) == 5
    open_producer.abort_transaction(PATIENCE_S)
    assert len(list(read_dead_letters(settings, case.dead_letter_topic))) == 5


def test_reading_takes_anybodys_records(given_up: Make, settings: Settings) -> None:
    """A record without our headers, or with broken ones, is read with empty fields."""
    case = given_up(dlq_partitions=3)
    stranger = Producer(client_config(settings))
    stranger.produce(case.dead_letter_topic, key=b"k", value=b"v", partition=2)
    stranger.flush(PATIENCE_S)
    (letter,) = read_dead_letters(settings, case.dead_letter_topic)
    assert (letter.partition, letter.key, letter.value, letter.headers) == (2, b"k", b"v", ())
    assert (letter.source_topic, letter.group, letter.delivery_count) == (None, None, None)


def test_reading_a_topic_that_is_not_there_says_so(settings: Settings) -> None:
    """An error by Kafka's name, at the first letter asked for."""
    with pytest.raises(UnknownTopicOrPartition):
        next(read_dead_letters(settings, "dlq.nowhere"))
