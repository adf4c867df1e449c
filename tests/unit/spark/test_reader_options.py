"""Nothing that a user passes to the reader changes which records are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sharequeue.spark import lease, pipeline
from sharequeue.spark.reading.options import ReaderOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@pytest.mark.parametrize(
    "name",
    [
        *("assign", "subscribe", "subscribePattern", "topic", "path"),
        *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
        *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "ENDINGTIMESTAMP"),
        *("startingOffsetsByTimestampStrategy", "failOnDataLoss", "includeHeaders"),
        *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
        *("kafka.bootstrap.servers", "kafka.auto.offset.reset", "kafka.enable.auto.commit"),
        "kafka.group.id",
        *("kafka.key.deserializer", "kafka.value.deserializer", "kafka.interceptor.classes"),
        *("kafka.check.crcs", "kafka.exclude.internal.topics", "kafka.allow.auto.create.topics"),
        *("kafka.", "minPartition", "sharequeue.seek", ""),
    ],
)
def test_an_option_that_may_change_which_records_are_read_is_refused_by_name(name: str) -> None:
    """Where a job is defined and where a lease is made: long before anything is leased."""

    def handler(records: DataFrame) -> DataFrame:
        return records

    with pytest.raises(ValueError, match=f"the reader's option {name} is not supported"):
        pipeline(group="g", topics=["t"], reader_options={name: "1"})(handler)
    with pytest.raises(ValueError, match=f"the reader's option {name} is not supported"):
        lease("g", ["t"], reader_options={name: "1"})


@pytest.mark.rule("R-IL-1")
def test_the_isolation_level_is_refused_in_any_case() -> None:
    """To the connector upper and lower case are the same. The error says where the level is set."""
    with pytest.raises(
        ValueError, match=r"KAFKA\.isolation\.level is not supported.*share\.isolation\.level"
    ):
        ReaderOptions.of({"KAFKA.isolation.level": "read_uncommitted"})


def test_options_of_fetches_security_and_timeouts_pass_under_their_documented_names() -> None:
    """A name in other case replaces our own option, and does not stand beside it."""
    given = {
        "MINPARTITIONS": 8,
        "kafka.Max.Poll.Records": "10",
        "kafkaconsumer.polltimeoutms": "1000",
        "kafka.SSL.truststore.location": "/a",
    }
    assert ReaderOptions.of(given).given == {
        "minPartitions": "8",
        "kafka.max.poll.records": "10",
        "kafkaConsumer.pollTimeoutMs": "1000",
        "kafka.ssl.truststore.location": "/a",
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"minPartitions": "many"}, "minPartitions is 'many': expected a whole number from 1 on"),
        ({"kafka.max.poll.records": 0}, r"kafka\.max\.poll\.records is 0: expected a whole number from 1 on"),
        ({"minPartitions": 1, "minpartitions": 2}, "minPartitions is set twice"),
    ],
)
def test_an_invalid_value_is_refused_before_anything_is_leased(
    given: dict[str, object], message: str
) -> None:
    """A task would fail on it later, which costs its records a delivery."""
    with pytest.raises(ValueError, match=message):
        ReaderOptions.of(given)


def test_the_search_for_gaps_uses_only_connection_options() -> None:
    """Fetches and tasks are those of the library."""
    connecting = {
        "kafka.security.protocol": "SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.request.timeout.ms": "1000",
        "kafka.client.dns.lookup": "use_all_dns_ips",
        "groupIdPrefix": "orders",
    }
    others = {"minPartitions": "8", "kafka.fetch.min.bytes": "1", "kafka.client.rack": "a"}
    assert ReaderOptions.of({**connecting, **others}).connecting == connecting
