"""Kafka's own Java clients on a real broker.

The stage of `live_broker` with the Java share consumer for the steps of an ordinary client, RENEW included, and the
Java admin client for what operators do. They run in one JVM that py4j drives.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from tests.conformance.live_broker import LiveBroker
from tests.conformance.live_log import Step
from tests.conformance.live_members import RELEASED_S, LostFetch

LONGEST_MS = 10_000
"""How long a poll waits for records that must come."""


class Long(int):
    """A number that goes to Java as a long: py4j sends as an int what is at most the largest int."""

    def __le__(self, other: object) -> bool:
        return False


class JavaClients:
    """Kafka's classes in a JVM, on one broker."""

    def __init__(self, gateway: JavaGateway, bootstrap_servers: str) -> None:
        self.kafka, self.java = gateway.jvm.org.apache.kafka, gateway.jvm.java
        self._servers = bootstrap_servers
        self.admin = self.kafka.clients.admin.AdminClient.create(self.properties())

    def properties(self, **configs: object) -> Any:
        """The configuration of a client; underscores stand for dots."""
        found = self.java.util.Properties()
        for name, value in {"bootstrap_servers": self._servers, **configs}.items():
            found.put(name.replace("_", "."), str(value))
        return found

    def every(self, into: Any, values: Iterable[object]) -> Any:
        """A Java collection with these values in it."""
        for value in values:
            into.add(value)
        return into

    def at(self, topic: str, partition: int) -> Any:
        """A TopicPartition."""
        return self.kafka.common.TopicPartition(topic, partition)

    def name_of(self, error: Any) -> str:
        """Kafka's name of an exception."""
        errors = self.kafka.common.protocol.Errors
        return str(errors.forException(errors.maybeUnwrapException(error)).name())

    def done(self, future: Any) -> tuple[str, Any]:
        """What a future came to: the error's name, and the value if there is none."""
        try:
            return "NONE", future.get()
        except Py4JJavaError as failure:
            return self.name_of(failure.java_exception), None


class _Noted:
    """A client's commit callback: which offsets, and the error, in the words of the recorded scenarios."""

    def __init__(self, clients: JavaClients, prefix: str) -> None:
        self._clients, self._prefix = clients, prefix
        self.told: list[str] = []

    def onComplete(self, offsets: Any, error: Any) -> None:  # noqa: N802 - Java's name
        name = "NONE" if error is None else self._clients.name_of(error)
        for at in offsets:
            topic = at.topic().removeprefix(self._prefix)
            self.told.append(f"{topic}-{at.partition()} {sorted(offsets[at])} {name}")

    class Java:
        """What it is to Java."""

        implements = ["org.apache.kafka.clients.consumer.AcknowledgementCommitCallback"]  # noqa: RUF012


class JavaBroker(LiveBroker):
    """One scenario of Kafka's Java clients on the broker."""

    def __init__(self, *scenario: Any, clients: JavaClients) -> None:
        super().__init__(*scenario)
        self.clients = clients
        self.consumers: dict[str, Any] = {}
        self.notes: dict[str, _Noted] = {}
        self.records: dict[tuple[str, int, int], Any] = {}
        """What a consumer was given: by member, partition and offset."""

    def __exit__(self, *raised: object) -> None:
        for consumer in self.consumers.values():
            consumer.close()
        super().__exit__(*raised)

    def _cjoin(self, do: Step) -> dict[str, Any]:
        deserializer = "org.apache.kafka.common.serialization.StringDeserializer"
        configs = self.clients.properties(
            client_id=do["member"],
            group_id=self.prefix + "g",
            key_deserializer=deserializer,
            value_deserializer=deserializer,
            share_acknowledgement_mode=do.get("mode", "implicit"),
            share_acquire_mode=do.get("acquire", "batch_optimized"),
            max_poll_records=do.get("max", 500),
        )
        consumer = self.clients.kafka.clients.consumer.KafkaShareConsumer(configs)
        self.notes[do["member"]] = _Noted(self.clients, self.prefix)
        consumer.setAcknowledgementCommitCallback(self.notes[do["member"]])
        consumer.subscribe(self.clients.every(self.clients.java.util.ArrayList(), [self.prefix + "t"]))
        self.consumers[do["member"]] = consumer
        return {"error": "NONE"}

    def _called(self, do: Step) -> dict[str, Any]:
        """What the callback was told since the last look."""
        notes = self.notes[do["member"]]
        told, notes.told = notes.told, []
        return {"callbacks": told} if told else {}

    def _cpoll(self, do: Step) -> dict[str, Any]:
        wait = self.clients.java.time.Duration.ofMillis(Long(do.get("timeoutMs", LONGEST_MS)))
        try:
            found = self.consumers[do["member"]].poll(wait).iterator()
        except Py4JJavaError as failure:
            return {"error": str(failure.java_exception.getClass().getSimpleName())}
        records = []
        while found.hasNext():
            record = found.next()
            at = record.partition(), record.offset()
            self.records[do["member"], *at] = record
            records.append(["t", *at, record.deliveryCount().get()])
        if records:
            self.locked_at = time.monotonic()
        elif "timeoutMs" not in do:
            raise LostFetch
        return {"error": "NONE", "records": records} | self._called(do)

    def _cack(self, do: Step) -> dict[str, Any]:
        results, types = [], self.clients.kafka.clients.consumer.AcknowledgeType
        consumer = self.consumers[do["member"]]
        for partition, offset, kind in do["acks"]:
            record = self.records[do["member"], partition, offset]
            try:
                consumer.acknowledge(record, types.valueOf(kind.upper()))
                results.append("NONE")
            except Py4JJavaError as failure:
                results.append(str(failure.java_exception.getClass().getSimpleName()))
        return {"acks": results}

    def _ccommit(self, do: Step) -> dict[str, Any]:
        told = self.consumers[do["member"]].commitSync()
        results = {
            f"{at.topic().removeprefix(self.prefix)}-{at.partition()}": self.clients.name_of(told[at].get())
            if told[at].isPresent()
            else "NONE"
            for at in told
        }
        return {"error": "NONE", "partitions": results} | self._called(do)

    def _cclose(self, do: Step) -> dict[str, Any]:
        self.consumers.pop(do["member"]).close()
        time.sleep(RELEASED_S)
        return {"error": "NONE"}

    def _group(self, do: Step) -> str:
        return str(self.prefix + do.get("group", "g"))

    def _alter_offsets(self, do: Step) -> dict[str, Any]:
        starts = self.clients.java.util.HashMap()
        for topic, partition, offset in do["offsets"]:
            starts.put(self.clients.at(self.prefix + topic, partition), Long(offset))
        told = self.clients.admin.alterShareGroupOffsets(self._group(do), starts)
        results = {
            f"{topic}-{partition}": self.clients.done(
                told.partitionResult(self.clients.at(self.prefix + topic, partition))
            )[0]
            for topic, partition, _ in do["offsets"]
        }
        return {"error": self.clients.done(told.all())[0], "partitions": results}

    def _delete_offsets(self, do: Step) -> dict[str, Any]:
        names = self.clients.every(self.clients.java.util.HashSet(), [self.prefix + t for t in do["topics"]])
        told = self.clients.admin.deleteShareGroupOffsets(self._group(do), names)
        results = {
            topic: {"error": self.clients.done(told.topicResult(self.prefix + topic))[0]}
            for topic in do["topics"]
        }
        return {"error": self.clients.done(told.all())[0], "topics": results}

    def _describe_offsets(self, do: Step) -> dict[str, Any]:
        spec = self.clients.kafka.clients.admin.ListShareGroupOffsetsSpec()
        if "partitions" in do:
            asked = [self.clients.at(self.prefix + topic, p) for topic, p in do["partitions"]]
            spec.topicPartitions(self.clients.every(self.clients.java.util.ArrayList(), asked))
        specs = self.clients.java.util.HashMap()
        specs.put(self._group(do), spec)
        future = self.clients.admin.listShareGroupOffsets(specs).partitionsToOffsetInfo(self._group(do))
        error, told = self.clients.done(future)
        found: dict[str, Any] = {}
        for at in told or ():
            info = told[at]
            figures = None if info is None else {"startOffset": info.startOffset()}
            if figures is not None and info.lag().isPresent():
                figures["lag"] = info.lag().get()
            found[f"{at.topic().removeprefix(self.prefix)}-{at.partition()}"] = figures
        return {"error": error, "partitions": found}

    def _delete_group(self, do: Step) -> dict[str, Any]:
        names = self.clients.every(self.clients.java.util.ArrayList(), [self._group(do)])
        return {"error": self.clients.done(self.clients.admin.deleteShareGroups(names).all())[0]}

    def _describe_group(self, do: Step) -> dict[str, Any]:
        options = self.clients.kafka.clients.admin.DescribeShareGroupsOptions()
        names = self.clients.every(self.clients.java.util.ArrayList(), [self._group(do)])
        asked = options.includeAuthorizedOperations(True)
        futures = self.clients.admin.describeShareGroups(names, asked).describedGroups()
        error, group = self.clients.done(futures[self._group(do)])
        if group is None:
            return {"error": error}
        members = {
            member.clientId(): {
                "clientId": member.clientId(),
                "memberEpoch": member.memberEpoch(),
                "assignment": sorted(
                    f"{at.topic().removeprefix(self.prefix)}-{at.partition()}"
                    for at in member.assignment().topicPartitions()
                ),
            }
            for member in group.members()
        }
        return {
            "error": "NONE",
            "state": group.groupState().toString(),
            "groupEpoch": group.groupEpoch(),
            "assignmentEpoch": group.targetAssignmentEpoch(),
            "members": members,
            "authorizedOperations": sorted(each.name() for each in group.authorizedOperations()),
        }
