"""Records for a topic with a compression of its own."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import KafkaError, Message, Producer

from sharequeue.deadletters.letters import record_bytes
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.transactions import LARGEST_MESSAGE_BYTES, most_uncompressed
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_what_fits_before_compression_fits_after_it(
    settings: Settings, make_topic: MakeTopic, codec: str
) -> None:
    """Bytes that cannot be compressed grow in a broker that compresses them: there is room for it, also with a small
    limit."""
    refused: list[str] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error.str())

    producer = Producer(client_config(settings, message_max_bytes=LARGEST_MESSAGE_BYTES, linger_ms=0))
    for limit in ("1500", "1048588"):
        most = most_uncompressed({"compression.type": codec, "max.message.bytes": limit})
        value = random.Random(1).randbytes(most - record_bytes(None, None, []))  # noqa: S311 - not for secrets
        topic = make_topic(1, compression_type=codec, max_message_bytes=limit)
        producer.produce(topic, value, on_delivery=note)
        assert producer.flush(PATIENCE_S) == 0
    assert refused == []
