"""Which errors of Spark's jobs are an outage of a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sharequeue.domain.errors import BrokerNotAvailable
from sharequeue.domain.values import SharePartition
from sharequeue.kafka.topics import LogOffsets, TopicInfo
from sharequeue.spark.reading.source import TopicSource

AT = SharePartition("g", "t", 0)


def source(leaderless: frozenset[int]) -> TopicSource:
    """Return a source whose topic `t` has one partition."""
    info = TopicInfo("id", 1, leaderless)
    topics: Any = SimpleNamespace(
        describe=lambda names: {"t": info},
        offsets_of=lambda asked, refused: {("t", p): LogOffsets(0, 5, 5) for p in asked["t"]},
    )
    made = object.__new__(TopicSource)
    object.__setattr__(made, "topics", topics)
    return made


@pytest.mark.parametrize(
    "error",
    [
        "(h executor driver): java.util.concurrent.TimeoutException: Cannot fetch record for offset 7 in 30000 "
        "milliseconds",
        "(h executor driver): org.apache.kafka.common.errors.TimeoutException: Timeout of 30000ms expired before the "
        "position for partition t-0 could be determined",
        "TimeoutError: no record of t-0 from offset 3 on arrived within 30 s: the broker does not answer",
    ],
)
def test_a_timeout_of_the_client_is_an_outage_also_if_all_have_leaders_again(error: str) -> None:
    """No handler has seen the records: the error gives their deliveries back, and it is worth another try."""
    with pytest.raises(BrokerNotAvailable, match="did not arrive from Kafka in time"):
        source(frozenset()).unread([RuntimeError(error)], [AT])


def test_an_error_is_an_outage_only_without_a_leader() -> None:
    """A record that kills its worker is still found where the brokers are up."""
    error = RuntimeError("Python worker exited unexpectedly")
    assert source(frozenset({0})).unread([error], [AT]) == {AT}
    assert source(frozenset()).unread([error], [AT]) == frozenset()
