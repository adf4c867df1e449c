"""The marker that tells which batch was written, asked of a broker that is not ready yet."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sharequeue.deadletters.topic import CannotWrite
from sharequeue.deadletters.transactions import Markers
from sharequeue.settings import Settings
from sharequeue.values import SharePartition

SOURCE = SharePartition("g", "t", 0)


class Coordinator:
    """A group's coordinator that refuses with these errors, one a request, and then answers."""

    def __init__(self, *refusals: int) -> None:
        self.refusals = list(refusals)

    def committed(self, at: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if self.refusals:
            raise KafkaException(KafkaError(self.refusals.pop(0)))
        return [TopicPartition(at[0].topic, at[0].partition, 7, metadata="batch topic id 3")]

    def close(self) -> None:
        """Nothing to close."""


def markers(monkeypatch: pytest.MonkeyPatch, coordinator: Coordinator) -> Markers:
    def consumer(*_: Any, **__: Any) -> Coordinator:
        return coordinator

    monkeypatch.setattr("sharequeue.kafka.transactions.Consumer", consumer)
    return Markers(Settings.load(bootstrap_servers="127.0.0.1:1"), "g")


def test_a_coordinator_that_is_still_elected_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first group of a new broker finds no coordinator for a moment: that holds no dead letters."""
    coordinator = Coordinator(KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    marker = markers(monkeypatch, coordinator).of(SOURCE)
    assert marker is not None
    assert marker.sequence == 7


def test_a_refusal_that_needs_somebody_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing rights do not pass by waiting: the records are held at once, with what to grant."""
    coordinator = Coordinator(KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.NOT_COORDINATOR)
    with pytest.raises(CannotWrite, match="grant READ on group") as held:
        markers(monkeypatch, coordinator).of(SOURCE)
    assert held.value.lasting
    assert coordinator.refusals == [KafkaError.NOT_COORDINATOR]
