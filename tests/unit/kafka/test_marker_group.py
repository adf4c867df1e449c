"""The marker of a transaction, read from a broker that is not ready yet, and the producer that commits it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sharequeue.kafka import transactions
from sharequeue.kafka.transactions import MarkedProducer, MarkerGroup, is_passing, most_uncompressed


class Coordinator:
    """A group's coordinator that refuses with these errors, one a request, and then answers."""

    def __init__(self, *refusals: int) -> None:
        self.refusals = list(refusals)

    def committed(self, at: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if self.refusals:
            raise KafkaException(KafkaError(self.refusals.pop(0)))
        return [TopicPartition(each.topic, each.partition, 7) for each in at]


def markers(monkeypatch: pytest.MonkeyPatch, coordinator: Coordinator) -> MarkerGroup:
    def consumer(*_: Any, **__: Any) -> Coordinator:
        return coordinator

    monkeypatch.setattr("confluent_kafka.Consumer", consumer)
    return MarkerGroup({"bootstrap.servers": "127.0.0.1:1"}, "g")


def test_a_coordinator_that_is_still_elected_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first group of a new broker finds no coordinator for a moment: that holds no dead letters."""
    coordinator = Coordinator(KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    found = markers(monkeypatch, coordinator).committed_of([("t", 1), ("t", 0)])
    assert [(each.partition, each.offset) for each in found] == [(1, 7), (0, 7)]


def test_a_refusal_that_needs_somebody_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing rights do not pass by waiting."""
    coordinator = Coordinator(KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.NOT_COORDINATOR)
    with pytest.raises(KafkaException) as refused:
        markers(monkeypatch, coordinator).committed("t", 0)
    assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    assert coordinator.refusals == [KafkaError.NOT_COORDINATOR]


def test_no_producer_creates_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is deleted during a transaction does not come back, also where the broker creates topics."""
    made: dict[str, Any] = {}
    monkeypatch.setattr("confluent_kafka.Producer", made.update)
    nothing: Any = None
    MarkedProducer({"bootstrap.servers": "127.0.0.1:1"}, "id", nothing, nothing)
    assert made["allow.auto.create.topics"] is False


class Stuck:
    """A client whose request for the marker does not return, whatever its timeout."""

    def __init__(self, *_: Any) -> None:
        self.goes_on = threading.Event()
        self.aborted = False

    def init_transactions(self, timeout: float) -> None:
        pass

    def begin_transaction(self) -> None:
        pass

    def send_offsets_to_transaction(self, *_: Any) -> None:
        self.goes_on.wait()

    def abort_transaction(self, timeout: float) -> None:
        self.aborted = True

    def commit_transaction(self, timeout: float) -> None:
        pass

    def __len__(self) -> int:
        return 0


def test_a_marker_that_the_client_never_sends_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka waits without end for a coordinator that stood still: the transaction is given up, as one whose
    request has timed out."""
    stuck = Stuck()
    monkeypatch.setattr("confluent_kafka.Producer", lambda _: stuck)
    monkeypatch.setattr(transactions, "TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(transactions, "_RETURNS_WITHIN_SECONDS", 0.01)
    group: Any = SimpleNamespace(membership=None)
    failed = pytest.raises(KafkaException)
    try:
        with failed as found, MarkedProducer({}, "id", group, lambda error: error) as producer:
            producer.begin()
            producer.mark(TopicPartition("t", 0, 7))
    finally:
        stuck.goes_on.set()
    assert is_passing(found.value.args[0])
    # A second call while the first one lasts would be refused.
    assert not stuck.aborted


def test_a_topic_that_compresses_takes_a_little_less() -> None:
    """Its broker checks the limit after its own compression."""
    assert most_uncompressed({"compression.type": "producer"}) == 1_048_588
    assert most_uncompressed({"compression.type": "uncompressed", "max.message.bytes": "2000"}) == 2_000
    assert most_uncompressed({"compression.type": "gzip", "max.message.bytes": "2000"}) == 1_966
    assert most_uncompressed({"compression.type": "gzip", "max.message.bytes": "0"}) == 1
