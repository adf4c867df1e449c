"""The errors of a share consumer, with the classes that a program written for confluent-kafka expects."""

import operator
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from sharequeue.domain.errors import ShareError


class WakeupException(KafkaException):
    """``wakeup`` was called: the waiting poll or commit ends, and nothing is lost. As in Kafka's Java client."""

    def __init__(self) -> None:
        super().__init__(KafkaError(KafkaError._INTR, "the consumer was woken up"))


def kafka_exception(error: ShareError) -> KafkaException:
    """Return an error of ours as the exception that confluent raises."""
    return KafkaException(KafkaError(error.code, error.message))


def real_number(value: Any) -> float:
    """Return the number. Raises TypeError, as confluent does, if it is not a number."""
    if isinstance(value, int | float):
        return value
    raise TypeError(f"must be real number, not {type(value).__name__}")


integer = operator.index
"""The same for integers."""
