"""The markers of held results that an operator may not read."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from sharequeue.domain.errors import BrokerNotAvailable, GroupAuthorizationFailed, ShareError
from sharequeue.domain.settings import Settings
from sharequeue.spark.sinks.kafka import resuming
from sharequeue.spark.sinks.kafka.resuming import HeldResults
from sharequeue.spark.sinks.kafka.sending import Names


class Refusing:
    """A broker that refuses to return markers."""

    def __init__(self, code: int) -> None:
        self.code = code

    def __enter__(self) -> Refusing:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def committed_of(self, places: object) -> None:
        raise KafkaException(KafkaError(self.code))


@pytest.mark.parametrize(
    ("code", "expected", "said"),
    [
        (
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            GroupAuthorizationFailed,
            "grant READ on this group, and on",
        ),
        (KafkaError._TIMED_OUT, BrokerNotAvailable, "try again"),
        (KafkaError.INVALID_GROUP_ID, ShareError, "see the broker's log"),
    ],
)
def test_markers_that_cannot_be_read_are_an_error_for_operators(
    monkeypatch: pytest.MonkeyPatch, code: int, expected: type[ShareError], said: str
) -> None:
    """With the right to grant, and not the client's own exception, which a command does not expect."""
    monkeypatch.setattr(resuming, "MarkerGroup", lambda client, group: Refusing(code))
    held = HeldResults.__new__(HeldResults)
    held._settings, held._names = Settings({"bootstrap_servers": "broker:9092"}), Names("g", "s", "state")
    with pytest.raises(expected, match=f"sharequeue.results.g.s.state cannot be read .*: {said}"):
        held._found({("source", 0): 5})
