"""The log of Kafka's clients: one logger, and a broker that is away is one line."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import TopicPartition

from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import LIBRDKAFKA, FewRepeats, client_config
from sharequeue.kafka.reading import open_consumer
from tests.servers.ports import free_port


def passed(log: FewRepeats, *lines: str) -> list[str]:
    return [line for line in lines if log.filter(logging.makeLogRecord({"msg": line}))]


def test_a_connection_s_error_is_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the client is called and however long it took; other connections and other kinds have their own."""
    log, now = FewRepeats(), 0.0
    monkeypatch.setattr("sharequeue.kafka.clients.time.monotonic", lambda: now)
    first = "FAIL [rdkafka#consumer-1] [thrd:h:1/bootstrap]: refused (after 0ms in state CONNECT)"
    again = "FAIL [rdkafka#consumer-2] [thrd:h:1/bootstrap]: refused (after 7ms in state CONNECT)"
    other = "FAIL [rdkafka#consumer-2] [thrd:h:2/2]: refused (after 7ms in state CONNECT)"
    kind = "ERROR [rdkafka#consumer-2] [thrd:h:1/bootstrap]: 1/1 brokers are down"
    config = "CONFWARN [rdkafka#consumer-2] of no connection"
    assert passed(log, first, again, other, kind, again, config, config) == [
        *(first, other, kind, config, config)
    ]
    now = 59.0
    assert passed(log, again) == []
    now = 60.0
    assert passed(log, again) == [again]


def test_a_wrong_address_of_the_broker_is_one_line_in_the_log_and_none_on_stderr(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka itself would write each attempt to stderr."""
    monkeypatch.setattr(LIBRDKAFKA, "filters", [FewRepeats()])
    address = f"127.0.0.1:{free_port()}"
    settings = Settings({"bootstrap_servers": address})
    consumer = open_consumer(client_config(settings, reconnect_backoff_ms=10, reconnect_backoff_max_ms=10))
    consumer.assign([TopicPartition("t", 0, 0)])
    for _ in range(20):
        consumer.consume(1, 0.05)
    consumer.close()
    (line,) = [each for each in caplog.messages if each.startswith("FAIL")]
    assert f"{address}/bootstrap: Connect to" in line
    assert capfd.readouterr().err == ""
