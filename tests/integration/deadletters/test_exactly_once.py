"""Each dead letter exactly once: writers that fail, lose their marker, or meet another writer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from sharequeue.database import Database
from sharequeue.deadletters.batches import marker_group
from sharequeue.deadletters.outbox import BatchStep
from sharequeue.deadletters.topic import CannotWrite, DeadLetterRules, DeadLetterTopic, TopicKeeper
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.kafka import transactions
from sharequeue.kafka.clients import client_config
from sharequeue.state import State
from tests.fixtures.deadletters import GivenUp, Stop, stop_at
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S, wait_until

Make = Callable[..., GivenUp]


@pytest.mark.rule("R-DL-9", "R-IN-9")
@pytest.mark.parametrize(
    "step", ["initialised", "opened", "begun", "producing", "marked", "committed", "closed"]
)
def test_a_writer_that_fails_at_any_step_is_resumed(given_up: Make, step: BatchStep) -> None:
    """The next writer in the same process writes what is not written and closes what is."""
    case = given_up(partitions=2)
    case.produce(60, partitions=2)
    case.reject()
    with pytest.raises(Stop):
        case.writer(on_step=stop_at(step, 2), batch_records=10).write()
    case.writer(batch_records=10).write()
    case.assert_each_exactly_once()


def test_a_lost_marker_is_made_up_for_by_reading_the_letters(given_up: Make, settings: Settings) -> None:
    """The marker's group is deleted between the commit and the closing of a batch: nothing is written twice."""
    case = given_up()
    case.produce(30)
    case.reject()
    with pytest.raises(Stop):
        case.writer(on_step=stop_at("committed", 2), batch_records=10).write()
    admin = AdminClient(client_config(settings))
    deleted = admin.delete_consumer_groups([marker_group(case.group)])
    deleted[marker_group(case.group)].result(PATIENCE_S)
    report = case.writer(batch_records=10).write()
    assert (report.written, report.resumed) == (10, 10)
    case.assert_each_exactly_once()


def test_the_marker_of_another_life_of_the_group_hides_nothing(
    given_up: Make, private_database: Database
) -> None:
    """A group made anew counts its batches from 1 again, below the marker that its earlier life left."""
    case = given_up()
    case.produce(30)
    case.reject({0: OffsetSet.of((0, 15))})
    case.writer(batch_records=5).write()
    anew = replace(case, database=private_database, expected=type(case.expected)())
    anew.configure(errors_deadletterqueue_topic_name=case.dead_letter_topic)
    anew.reject({0: OffsetSet.of((15, 30))})
    assert anew.writer(batch_records=5).write().written == 15
    assert sorted(letter.source_offset or 0 for letter in case.letters()) == list(range(30))


def test_of_two_writers_one_is_fenced_and_gives_way(given_up: Make) -> None:
    """The second fences the first in the middle of its transaction; the first looks again, and all is there once."""
    case = given_up()
    case.produce(200)
    case.reject()
    reached, other_done = threading.Event(), threading.Event()

    def wait_once(step: BatchStep, source: SharePartition) -> None:
        if step == "producing" and not reached.is_set():
            reached.set()
            assert other_done.wait(PATIENCE_S)

    first = case.writer(on_step=wait_once, batch_records=50)
    reports = []
    thread = threading.Thread(target=lambda: reports.append(first.write()))
    thread.start()
    assert reached.wait(PATIENCE_S)
    second = case.writer(batch_records=50).write()
    other_done.set()
    thread.join(PATIENCE_S)
    assert second.written == 200
    assert (reports[0].written, reports[0].held) == (0, ())
    assert [partition.takeovers for partition in reports[0].partitions] == [1]
    case.assert_each_exactly_once()


class Refused(Exception):
    """What a producer's error was."""

    def __init__(self, error: KafkaException) -> None:
        self.code: int = error.args[0].code()


def test_a_producer_that_is_fenced_while_it_produces_says_so(
    settings: Settings, make_topic: MakeTopic, group: str
) -> None:
    """The client only says that the producer is done for ("Local: Fatal error"). Taken for a missing permission it
    would last, and letters could be dropped."""
    topic = make_topic(1)
    client = client_config(settings)

    def produce_on(producer: transactions.MarkedProducer) -> bool:
        producer.produce(topic, 0, None, b"after", [])
        return False

    with (
        transactions.MarkerGroup(client, group) as markers,
        transactions.MarkedProducer(client, group, markers, Refused) as first,
    ):
        first.begin()
        first.produce(topic, 0, None, b"before", [])
        with (
            transactions.MarkedProducer(client, group, markers, Refused),
            pytest.raises(Refused) as refused,
        ):
            wait_until(lambda: produce_on(first))
    assert refused.value.code in transactions.FENCED


def test_a_writer_takes_over_from_one_that_stands_still(given_up: Make) -> None:
    """The fenced writer waits for the other only while that makes progress, then finishes the work itself."""
    case = given_up()
    case.produce(100)
    case.reject()
    first_reached, second_reached, first_done = threading.Event(), threading.Event(), threading.Event()

    def first_step(step: BatchStep, source: SharePartition) -> None:
        if step == "producing" and not first_reached.is_set():
            first_reached.set()
            assert second_reached.wait(PATIENCE_S)

    def second_step(step: BatchStep, source: SharePartition) -> None:
        if step == "marked" and not second_reached.is_set():
            second_reached.set()
            assert first_done.wait(PATIENCE_S)

    reports = {}

    def write(name: str, writer: DeadLetterWriter) -> None:
        reports[name] = writer.write()

    first = threading.Thread(target=write, args=("first", case.writer(on_step=first_step)))
    second = threading.Thread(target=write, args=("second", case.writer(on_step=second_step)))
    first.start()
    assert first_reached.wait(PATIENCE_S)
    second.start()
    first.join(PATIENCE_S)
    first_done.set()
    second.join(PATIENCE_S)
    assert (reports["first"].written, reports["second"].written) == (100, 0)
    case.assert_each_exactly_once()


@pytest.mark.parametrize("late", [False, True])
def test_a_commit_that_the_broker_has_no_name_for_is_tried_again(
    given_up: Make, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """A broker answers so while another writer's fence is on its way. Whether the commit was made, the marker tells;
    nothing is held, nothing is dropped although the group drops what cannot be written, and each letter is one."""
    case = given_up()
    case.configure(
        errors_deadletterqueue_topic_name=case.dead_letter_topic, sharequeue_dead_letter_drop_enable="true"
    )
    case.produce(30)
    case.reject()
    commit = Producer.commit_transaction
    met: list[bool] = []

    class Nameless(Producer):
        def commit_transaction(self, *arguments: float) -> None:
            if met or late:
                commit(self, *arguments)
            if not met:
                met.append(True)
                raise KafkaException(KafkaError(KafkaError.UNKNOWN, "EndTxn commit failed"))

    monkeypatch.setattr("confluent_kafka.Producer", Nameless)
    said: list[str] = []
    report = case.writer(batch_records=10).write(said.append)
    assert report.held == ()
    assert (report.written, report.resumed, report.dropped) == ((20, 10, 0) if late else (30, 0, 0))
    assert any("tried again for up to 30 s: the broker returned an unknown error" in line for line in said)
    case.assert_each_exactly_once()


def test_ten_thousand_letters_are_written_once(given_up: Make) -> None:
    """As many as the main job makes, over four partitions."""
    case = given_up(partitions=4, dlq_partitions=4)
    case.produce(9_430, partitions=4)
    case.reject()
    assert case.writer().write().written == 9_430
    case.assert_each_exactly_once()


def test_a_partial_close_leaves_later_letters_waiting(given_up: Make, state: State) -> None:
    """Batches are numbered without gaps per share-partition, and each is in the state's history once."""
    case = given_up()
    case.produce(25)
    case.reject()
    report = case.writer(batch_records=10).write()
    assert [partition.batches for partition in report.partitions] == [3]
    assert [run.sequence for run in state.dead_letters.written(case.group)] == [1, 2, 3]


@pytest.mark.parametrize("silent_at", ["topic", "partition"])
def test_what_passes_by_itself_is_tried_again(
    given_up: Make, monkeypatch: pytest.MonkeyPatch, silent_at: str
) -> None:
    """A writer that meets a broker which is silent for a moment ends when all is written, and not before."""
    case = given_up(partitions=2)
    case.produce(40, partitions=2)
    case.reject()
    ready, silent, said = TopicKeeper.ready, [2], list[str]()

    def answers_late(at: str) -> None:
        if at == silent_at and silent[0]:
            silent[0] -= 1
            raise CannotWrite("the broker does not answer", lasting=False)

    def ask(keeper: TopicKeeper, rules: DeadLetterRules) -> DeadLetterTopic:
        answers_late("topic")
        return ready(keeper, rules)

    def on_step(step: BatchStep, source: SharePartition) -> None:
        if step == "marked" and source.partition == 1:
            answers_late("partition")

    monkeypatch.setattr(TopicKeeper, "ready", ask)
    report = case.writer(on_step=on_step, batch_records=10).write(said.append)
    assert (report.written, report.held, silent) == (40, (), [0])
    assert any("tried again for up to 30 s: the broker does not answer" in line for line in said)
    case.assert_each_exactly_once()
