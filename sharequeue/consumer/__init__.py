"""A share consumer for programs without Spark.

``ShareConsumer`` has the interface of ``confluent_kafka.ShareConsumer``. Membership, leases and acknowledgements
are this project's. The records are read from Kafka with confluent-kafka's ordinary Consumer. Read
``share_consumer`` first, then ``handover``, ``fetcher`` and ``acknowledgement_sender`` (the work behind the calls),
``held_leases``, ``key_order``, ``lease_queue``, ``acknowledgements``, ``reader``, ``log_ends``, ``member``,
``configs``.
"""

from sharequeue.consumer.deserializing import DeserializingShareConsumer
from sharequeue.consumer.errors import WakeupException
from sharequeue.consumer.share_consumer import ShareConsumer

__all__ = ["DeserializingShareConsumer", "ShareConsumer", "WakeupException"]
