"""What a broker answers that this project cannot work with, or that is no answer."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid

from sharequeue.domain.errors import BrokerNotAvailable, UnsupportedVersion
from sharequeue.domain.settings import Settings
from sharequeue.kafka import broker_client
from sharequeue.kafka.topics import ASKED_AT_ONCE, LogOffsets, Topics


class OldBroker:
    """A client of a broker before 2.8, which gives its topics no ids."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        """Answer as librdkafka does there."""
        found: Future[Any] = Future()
        found.set_result(SimpleNamespace(topic_id=Uuid(0, 0), partitions=[0, 1]))
        return {"orders": found}


def test_a_broker_without_topic_ids_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that was deleted and made again could not be told from the old one."""
    topics = Topics(Settings({"bootstrap_servers": "127.0.0.1:1"}))
    monkeypatch.setattr(broker_client, "AdminClient", OldBroker)
    with pytest.raises(UnsupportedVersion, match=r"Kafka has them since 2\.8"):
        topics.describe(["orders"])
    assert isinstance(topics.ask(["orders"]).refused["orders"], UnsupportedVersion)


class SilentBroker:
    """A client that is not answered, after its time limit."""

    def __init__(self) -> None:
        self.questions = 0

    def poll(self, timeout: float) -> None:
        """Report nothing."""

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        """Give up at once."""
        self.questions += 1
        found: Future[Any] = Future()
        found.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return {f"missing-{number:04}": found for number in range(ASKED_AT_ONCE)}


def test_a_broker_that_is_silent_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many names there are to ask for."""
    topics, silent = Topics(Settings({"bootstrap_servers": "127.0.0.1:1"})), SilentBroker()
    monkeypatch.setattr(broker_client, "AdminClient", lambda *_, **__: silent)
    with pytest.raises(BrokerNotAvailable):
        topics.ask(f"missing-{number:04}" for number in range(5 * ASKED_AT_ONCE))
    assert silent.questions == 1


def test_a_broker_that_is_away_is_connected_to_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request of a run has no wait, and a proxy without a broker no storm of connections."""
    topics, silent = Topics(Settings({"bootstrap_servers": "127.0.0.1:1"})), SilentBroker()
    backoffs: list[int] = []

    def opened(config: dict[str, Any]) -> SilentBroker:
        backoffs.append(config["reconnect.backoff.ms"])
        return silent

    monkeypatch.setattr(broker_client, "AdminClient", opened)
    for _ in range(3):
        with pytest.raises(BrokerNotAvailable):
            topics.ask(["missing-0000"])
    assert backoffs == [20, 100, 100]


class DyingBroker(SilentBroker):
    """A client whose first request is on its way to a broker that dies."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        """Fail once, as librdkafka does when a connection breaks."""
        self.questions += 1
        found: Future[Any] = Future()
        if self.questions == 1:
            found.set_exception(KafkaException(KafkaError(self.code)))
        else:
            found.set_result(SimpleNamespace(topic_id=Uuid(1, 2), partitions=[]))
        return {"orders": found}


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._DESTROY_BROKER])
def test_another_broker_is_asked_when_one_dies(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A request that was on its way to it is no outage of the cluster."""
    topics, dying = Topics(Settings({"bootstrap_servers": "127.0.0.1:1"})), DyingBroker(code)
    monkeypatch.setattr(broker_client, "AdminClient", lambda *_, **__: dying)
    assert (list(topics.describe(["orders"])), dying.questions) == (["orders"], 2)


def test_a_broker_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason that the client gives."""
    settings = Settings({"bootstrap_servers": "127.0.0.1:1"})
    for ask in (Topics.cluster_id, Topics.names):
        with (
            Topics(settings, timeout=2.0) as topics,
            pytest.raises(
                BrokerNotAvailable, match=r"127\.0\.0\.1:1 does not answer \(.*Connect to .*refused"
            ),
        ):
            ask(topics)


@pytest.mark.parametrize(
    ("start", "end", "stable", "expected"),
    [
        (0, 10, 7, LogOffsets(0, 10, 7)),
        (0, 10, 12, LogOffsets(0, 10, 10)),  # records came between the requests
        (8, 10, 5, LogOffsets(8, 10, 8)),  # retention removed some
        (12, 10, 11, LogOffsets(12, 12, 12)),
    ],
)
def test_the_offsets_of_a_log_are_those_of_one_moment(
    start: int, end: int, stable: int, expected: LogOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The three are asked for at three moments, between which records come and go."""

    class Busy:
        def __init__(self) -> None:
            self.answers = iter((start, end, stable))

        def poll(self, timeout: float) -> None:
            """Report nothing."""

        def list_offsets(self, asked: dict[Any, Any], **_: object) -> dict[Any, Future[Any]]:
            """Return the next of the three."""
            found: Future[Any] = Future()
            found.set_result(SimpleNamespace(offset=next(self.answers)))
            return dict.fromkeys(asked, found)

    monkeypatch.setattr(broker_client, "AdminClient", lambda *_, **__: Busy())
    with Topics(Settings({"bootstrap_servers": "127.0.0.1:1"})) as topics:
        assert topics.offsets_of({"t": [0]}) == {("t", 0): expected}
