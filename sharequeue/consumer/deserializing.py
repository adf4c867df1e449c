"""Deserialize keys and values, and release or reject records that cannot be deserialized.

As ``confluent_kafka.DeserializingShareConsumer``: a record that cannot be decoded is returned with its raw bytes
and an error. It is released unless the program acknowledges it otherwise (KIP-932). So it is delivered again until
its deliveries are used up, and then becomes a dead letter. confluent's class accepts it in implicit mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, Message, Messages
from confluent_kafka.serialization import MessageField, SerializationContext

from sharequeue.consumer.failures import printable
from sharequeue.consumer.share_consumer import ShareConsumer
from sharequeue.domain.values import AcknowledgeType
from sharequeue.kafka.headers import headers_of

Deserializer = Callable[[bytes | None, SerializationContext], Any]


class DeserializingShareConsumer(ShareConsumer):
    """A share consumer with ``key.deserializer`` and ``value.deserializer`` in its config."""

    def __init__(self, conf: Mapping[str, Any], **kwargs: Any) -> None:
        given = {**conf, **kwargs}
        self._key_deserializer: Deserializer | None = given.pop("key.deserializer", None)
        self._value_deserializer: Deserializer | None = given.pop("value.deserializer", None)
        super().__init__(given)

    def poll(self, timeout: float = -1) -> Messages:
        """As ``ShareConsumer.poll``; keys and values are objects.

        A record that could not be decoded has its bytes and an ``error()`` of code _KEY_DESERIALIZATION or
        _VALUE_DESERIALIZATION, and is released unless it is acknowledged otherwise.
        """
        messages = super().poll(timeout)
        for message in messages:
            # A renewed record is returned as it was before.
            if message.error() is None and not self._renewed(message):
                self._decode(message)
        return messages

    def _decode(self, message: Message) -> None:
        context = SerializationContext(str(message.topic()), MessageField.KEY, list(headers_of(message)))
        code = KafkaError._KEY_DESERIALIZATION
        try:
            key: Any = message.key()
            if self._key_deserializer is not None:
                key = self._key_deserializer(key, context)
            code = KafkaError._VALUE_DESERIALIZATION
            value: Any = message.value()
            if self._value_deserializer is not None:
                context.field = MessageField.VALUE
                value = self._value_deserializer(value, context)
        except Exception as error:
            message.set_error(KafkaError(code, printable(error)))
            self._preset(message, AcknowledgeType.RELEASE, error)
            return
        message.set_key(key)
        message.set_value(value)
