"""Our dead-letter writer and a real broker in a recorded dead-letter scenario.

The replay of `replay.py` with the log really there: topics of the scenario's own names on the test's broker,
records with the recorded keys, values, headers and transactions, the state in Postgres, and at each `dlq` step the
writer that a job runs, after which the topic is read back.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from confluent_kafka import Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from sharequeue.database import Database
from sharequeue.deadletters.letters import KAFKA_HEADERS, DeadLetter, read_dead_letters
from sharequeue.deadletters.topic import TopicKeeper
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.domain.errors import ShareError
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import GroupConfigs, ServiceConfigs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.state import State
from tests.conformance.postgres_engine import PostgresEngine
from tests.conformance.replay import Replay, Result, judged
from tests.conformance.scenario import DEAD_LETTERS, ENGINE, Scenario, Step
from tests.waiting import PATIENCE_S

DLQ_TOPIC = "errors.deadletterqueue.topic.name"


class BrokerEngine(PostgresEngine):
    """The engine over topics that exist: under their real ids, by which the writer knows the originals."""

    def __init__(self, database: Database, topic_ids: dict[str, str]) -> None:
        super().__init__(database)
        self.topic_ids = topic_ids

    def topic_id(self, at: SharePartition) -> str:
        return self.topic_ids[at.topic]


class BrokerReplay(Replay):
    """One dead-letter scenario on broker, Postgres and writer. A context: the topics are removed at its end."""

    compares = frozenset((ENGINE, DEAD_LETTERS))

    def __init__(self, scenario: Scenario, settings: Settings, database: Database) -> None:
        self.settings = settings
        self.topics = Topics(settings)
        self.producers: dict[str, Producer] = {}
        self.service = ServiceConfigs.of(scenario.broker)
        self.database = database
        self.began = time.time()
        for topic, partitions in scenario.topics.items():
            self._remove(topic)
            self.topics.create(topic, partitions, scenario.topic_configs.get(topic, {}))
        ids = {name: info.topic_id for name, info in self.topics.describe(list(scenario.topics)).items()}
        super().__init__(scenario, BrokerEngine(database, ids))

    def __enter__(self) -> BrokerReplay:
        return self

    def __exit__(self, *raised: object) -> None:
        letters = {str(of[DLQ_TOPIC]) for of in self.scenario.groups.values() if DLQ_TOPIC in of}
        for topic in {*self.scenario.topics, *letters}:
            self._remove(topic)
        self.topics.close()

    def _remove(self, topic: str) -> None:
        with suppress(ShareError):
            self.topics.delete(topic)

    def _do_produce(self, step: Step) -> None:
        super()._do_produce(step)
        transaction = step.do.get("txn")
        producer = self._producer(transaction)
        number = 0
        for count, (first, last) in zip(step.do["batches"], step.got["batches"], strict=True):
            offsets: list[int | None] = []

            def delivered(error: object, message: Message, into: list[int | None] = offsets) -> None:
                assert error is None, error
                into.append(message.offset())

            for _ in range(count):
                producer.produce(
                    step.do.get("topic", "t"),
                    key=_content(step.do.get("key"), number),
                    value=_value(step.do, number),
                    partition=step.do.get("partition", 0),
                    headers=[(name, value.encode()) for name, value in step.do.get("headers", {}).items()],
                    on_delivery=delivered,
                )
                number += 1
            assert producer.flush(PATIENCE_S) == 0
            assert (offsets[0], offsets[-1]) == (first, last)

    def _producer(self, transaction: str | None) -> Producer:
        if transaction is None:
            return Producer(client_config(self.settings))
        return self.producers[transaction]

    def _do_txn(self, step: Step) -> None:
        super()._do_txn(step)
        name = step.do["txn"]
        if step.do["do"] == "begin":
            self.producers[name] = Producer(client_config(self.settings, transactional_id=f"traces-{name}"))
            self.producers[name].init_transactions(PATIENCE_S)
            self.producers[name].begin_transaction()
            return
        if step.do["do"] == "commit":
            self.producers[name].commit_transaction(PATIENCE_S)
        else:
            self.producers[name].abort_transaction(PATIENCE_S)
        self.topics.settle(self.scenario.topics)  # the broker confirms before the partitions have the markers

    def _do_delete_topic(self, step: Step) -> None:
        super()._do_delete_topic(step)
        self.topics.delete(step.do["topic"])

    def carry_out(self, step: Step) -> Result | None:
        """Dead letters are written as soon as there are any."""
        returned = super().carry_out(step)
        if step.op in ("ack", "expire"):
            self._write()
        return returned

    def _write(self) -> None:
        self.engine.sweep()
        configs = GroupConfigs.load(self.database, "g", self.service)
        DeadLetterWriter(self.settings, State(self.database), "g", configs).write()

    def _dead_letters_dlq(self, step: Step) -> Result:
        self._write()
        recorded = [
            {name: value for name, value in record.items() if name != "offset"}
            for record in step.got["records"]
        ]
        broker = {"topicExists": step.got["topicExists"], "records": recorded}
        return judged(broker, self._letters(step.do["topic"]))

    def _letters(self, topic: str) -> dict[str, Any]:
        found = TopicKeeper(self.settings).find(topic)
        if found is None:
            return {"topicExists": False, "records": []}
        kind = found.configs["message.timestamp.type"]
        letters = read_dead_letters(self.settings, topic)
        return {"topicExists": True, "records": [self._told(letter, kind) for letter in letters]}

    def _told(self, letter: DeadLetter, kind: str) -> dict[str, Any]:
        """A letter in the trace's words; its offset is not compared, because markers of transactions take some."""
        kafkas = len(KAFKA_HEADERS)
        assert all(name.startswith("sharequeue.") for name, _ in letter.headers[kafkas:])
        written = (letter.written_ms or 0) / 1000
        return {
            "partition": letter.partition,
            "key": _text(letter.key),
            "value": _text(letter.value),
            "headers": [[name, _text(value)] for name, value in letter.headers[:kafkas]],
            "timestampType": kind,
            "timestampIsWriteTime": self.began - 1 <= written <= time.time() + 1,
        }

    def _dead_letters_describe_topic(self, step: Step) -> Result:
        """What the writer made: the broker's default number of partitions, and exactly two configs."""
        topic = step.do["topic"]
        admin = AdminClient(client_config(self.settings))
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = admin.describe_configs([resource], request_timeout=PATIENCE_S)[resource].result()
        own = {
            name: entry.value
            for name, entry in entries.items()
            if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        }
        partitions = self.topics.describe([topic])[topic].partitions
        probe = f"{topic}-default"
        self.topics.create(probe, -1, {})
        default = self.topics.describe([probe])[probe].partitions
        self._remove(probe)
        broker = {"partitions": "default", "topicConfigs": step.got["topicConfigs"]}
        return judged(
            broker, {"partitions": "default" if partitions == default else partitions, "topicConfigs": own}
        )


def _content(template: str | None, number: int) -> bytes | None:
    return None if template is None else template.replace("{i}", str(number)).encode()


def _value(do: dict[str, Any], number: int) -> bytes | None:
    if "valueBytes" in do:
        return b"x" * int(do["valueBytes"])
    return _content(do.get("value", "v{i}"), number)


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode()
