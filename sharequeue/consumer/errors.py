"""What does a share consumer raise, and how do our refusals look to a program that knows confluent's?"""

import operator
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from sharequeue.errors import ShareError


class WakeupException(KafkaException):
    """``wakeup`` was called: the poll or commit that waited ends, and nothing is lost. As in Kafka's Java client."""

    def __init__(self) -> None:
        super().__init__(KafkaError(KafkaError._INTR, "the consumer was woken up"))


def kafka_exception(error: ShareError) -> KafkaException:
    """A refusal of ours as confluent raises it."""
    return KafkaException(KafkaError(error.code, error.message))


def real_number(value: Any) -> float:
    """The number, or the TypeError that confluent raises."""
    if isinstance(value, int | float):
        return value
    raise TypeError(f"must be real number, not {type(value).__name__}")


integer = operator.index
"""The same for whole numbers."""
