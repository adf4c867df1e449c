"""What a program gets that keeps a record which it was given as an object."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError

from sharequeue import DeserializingShareConsumer
from sharequeue.domain.values import AcknowledgeType
from tests.unit.consumer.stub import consumer_of, put

RENEW = AcknowledgeType.RENEW


def number(value: Any, _: object) -> int:
    assert isinstance(value, bytes), "decoded twice"
    return 10 // int(value)


def test_a_renewed_record_is_decoded_once() -> None:
    """It comes as it was; one that cannot be decoded is released unless the program says so, and not rejected."""
    with consumer_of(DeserializingShareConsumer, share_acknowledgement_mode="explicit") as consumer:
        consumer._value_deserializer = number
        first = put(consumer, 0, 2)
        messages = consumer.poll(0)
        for message in messages:
            consumer.acknowledge(message, RENEW)
        [(_, taken)] = consumer._handover.outcomes_of([first], implicit=False).taken
        consumer._in_hand = []
        renewed = put(consumer, 0, 2)
        renewed.ready, renewed.renewed = list(taken.renewed), True
        again = consumer.poll(0)
        wrong = KafkaError._VALUE_DESERIALIZATION
        found = [(each.value(), each.error() and each.error().code()) for each in again]
        assert found == [(b"0", wrong), (10, None)]
        assert renewed.handed[0] == AcknowledgeType.RELEASE


def test_an_error_may_quote_any_byte() -> None:
    """What a deserializer says may contain NUL and halves of characters: the other records are returned."""

    def fussy(value: Any, _: object) -> object:
        if value == b"0":
            raise ValueError("\0 and \ud800")
        return value

    with consumer_of(DeserializingShareConsumer) as consumer:
        consumer._value_deserializer = fussy
        holding = put(consumer, 0, 2)
        errors = [each.error() and each.error().str() for each in consumer.poll(0)]
        assert errors == ["\\x00 and \\ud800", None]
        assert holding.errors == {0: "ValueError: \\x00 and \\ud800"}
