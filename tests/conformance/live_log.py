"""The topics of a live scenario and the configs of its group.

The first part of `live_broker`: log batches, transactions, deleted records, time, configs, on the test's broker.
"""

from __future__ import annotations

import base64
import math
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from sharequeue.domain.errors import ShareError, error_for
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from tests.conformance import wire
from tests.conformance import wire_apis as apis
from tests.fixtures.logs import add_partitions
from tests.waiting import PATIENCE_S, wait_until

Step = dict[str, Any]
HEARD_S = 0.5
GROUP_RESOURCE = 32
LOCK_MS = "share.record.lock.duration.ms"


def error_name(told: Mapping[str, Any]) -> str:
    """The name of the error in a response, or in a part of one."""
    return error_for(int(told["error"]), None).name if told["error"] else "NONE"


class LiveLog:
    """A scenario's topics and group on the broker. A context: the topics are removed at the end."""

    def __init__(
        self,
        settings: Settings,
        topics: Mapping[str, int],
        groups: Mapping[str, Mapping[str, Any]],
        topic_configs: Mapping[str, Mapping[str, str]],
    ) -> None:
        self.settings = settings
        self.prefix = f"live-{uuid.uuid4().hex[:12]}-"
        self.topics = Topics(settings)
        self.admin = wire.Connection(settings.bootstrap_servers, "operator")
        self.client = AdminClient(client_config(settings))
        self.partitions = dict(topics)
        self.ids: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.producers: dict[str | None, Producer] = {}
        self.in_transaction: dict[str, set[tuple[str, int]]] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.locks: dict[str, int] = {}
        self.locked_at, self.lapses_at = 0.0, math.inf
        for topic, partitions in topics.items():
            info = self.topics.create(self.prefix + topic, partitions, topic_configs.get(topic, {}))
            self.ids[topic] = str(uuid.UUID(bytes=base64.urlsafe_b64decode(info.topic_id + "==")))
            self.names[self.ids[topic]] = topic
        for group, configs in groups.items():
            wait_until(lambda: self._is_coordinated(group), PATIENCE_S)  # noqa: B023  (waited for here)
            self._configure(group, configs)

    def _is_coordinated(self, group: str) -> bool:
        """Whether the broker serves this group: one that has just started makes its topics first."""
        keys = [self.prefix + group]
        (found,) = self.admin.ask(apis.FIND_COORDINATOR, type=0, keys=keys)["coordinators"]
        if found["error"]:
            return False
        (described,) = self.admin.ask(apis.DESCRIBE_GROUPS, groups=keys, operations=False)["groups"]
        return error_name(described) == "GROUP_ID_NOT_FOUND"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.producers.clear()
        self.admin.close()
        for topic in self.ids:
            with suppress(ShareError):
                self.topics.delete(self.prefix + topic)
        self.topics.close()

    def _produce(self, do: Step) -> dict[str, Any]:
        topic, partition, transaction = do.get("topic", "t"), do.get("partition", 0), do.get("txn")
        stamp = int(time.time() * 1000) - do.get("agoMs", 0)
        written: list[list[int]] = []
        keys = iter(do.get("keys", ()))
        for count in do["batches"]:
            offsets: list[int] = []

            def delivered(error: object, message: Message, into: list[int] = offsets) -> None:
                assert error is None, error
                into.append(message.offset() or 0)

            producer = self._producer(transaction)
            for number in range(count):
                producer.produce(
                    self.prefix + topic,
                    f"v{number}",
                    next(keys, None),
                    partition=partition,
                    timestamp=stamp,
                    on_delivery=delivered,
                )
            assert producer.flush(PATIENCE_S) == 0
            written.append([offsets[0], offsets[-1]])
            self.ends[topic, partition] = offsets[-1] + 1
        if transaction is not None:
            self.in_transaction[transaction].add((topic, partition))
        return {"batches": written}

    def _producer(self, transaction: str | None) -> Producer:
        if transaction not in self.producers:
            named = {} if transaction is None else {"transactional_id": self.prefix + transaction}
            # One flush is one log batch: nothing is sent before it.
            self.producers[transaction] = Producer(client_config(self.settings, linger_ms=500, **named))
            if transaction is not None:
                self.producers[transaction].init_transactions(PATIENCE_S)
        return self.producers[transaction]

    def _txn(self, do: Step) -> dict[str, Any]:
        producer = self._producer(do["txn"])
        if do["do"] == "begin":
            producer.begin_transaction()
            self.in_transaction[do["txn"]] = set()
            return {"error": "NONE"}
        if do["do"] == "commit":
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
        for at in self.in_transaction.pop(do["txn"]):
            self.ends[at] += 1
        wait_until(self._markers_are_there, PATIENCE_S)
        return {"error": "NONE"}

    def _markers_are_there(self) -> bool:
        """The broker confirms a commit before the partitions have its markers."""
        topics = {topic: self.topics.offsets(self.prefix + topic) for topic, _ in self.ends}
        return all(topics[topic][partition].log_end >= end for (topic, partition), end in self.ends.items())

    def _delete_records(self, do: Step) -> dict[str, Any]:
        at = TopicPartition(self.prefix + do.get("topic", "t"), do.get("partition", 0), do["before"])
        for future in self.client.delete_records([at]).values():
            future.result(PATIENCE_S)
        return {"error": "NONE"}

    def _wait_compacted(self, do: Step) -> dict[str, Any]:
        wait_until(lambda: self._offsets() == do["left"], PATIENCE_S, self._offsets)
        return {"offsetsLeft": do["left"]}

    def _offsets(self) -> list[int]:
        """Which offsets of partition 0 of topic ``t`` have a record."""
        reading = client_config(self.settings, group_id=self.prefix, enable_partition_eof=True)
        consumer, found = Consumer(reading), []
        consumer.assign([TopicPartition(self.prefix + "t", 0, 0)])
        while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
            found.append(message.offset() or 0)
        consumer.close()
        return found

    def _create_partitions(self, do: Step) -> dict[str, Any]:
        add_partitions(self.topics, self.prefix + do.get("topic", "t"), do["total"])
        self.partitions[do.get("topic", "t")] = do["total"]
        self.producers.clear()  # which know the old number
        return {"error": "NONE"}

    def _sleep(self, do: Step) -> dict[str, Any]:
        time.sleep(do["ms"] / 1000)
        return {"error": "NONE"}

    def _expire(self, do: Step) -> dict[str, Any]:
        until = self.locked_at + self.locks.get(do.get("group", "g"), 30_000) / 1000 + 1.0
        time.sleep(max(0.0, until - time.monotonic()))
        return {"error": "NONE"}

    def _group_config(self, do: Step) -> dict[str, Any]:
        return {"error": self._configure(do.get("group", "g"), do["configs"])}

    def _configure(self, group: str, configs: Mapping[str, Any]) -> str:
        texts = {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in configs.items()}
        if LOCK_MS in texts:
            self.locks[group] = int(texts[LOCK_MS])
        changes = [{"name": name, "operation": 0, "value": value} for name, value in texts.items()]
        resource = {"type": GROUP_RESOURCE, "name": self.prefix + group, "configs": changes}
        told = self.admin.ask(apis.ALTER_CONFIGS, resources=[resource], validate_only=False)
        error = error_name(told["resources"][0])
        if error == "NONE":
            # The controller answers before the broker has heard of it, and that before its groups have.
            wait_until(lambda: texts.items() <= self._configs(group).items(), PATIENCE_S)
            time.sleep(HEARD_S)
        return error

    def _configs(self, group: str) -> dict[str, str | None]:
        resource = ConfigResource(ResourceType.GROUP, self.prefix + group)
        entries = self.client.describe_configs([resource], request_timeout=PATIENCE_S)[resource].result()
        return {name: entry.value for name, entry in entries.items()}
