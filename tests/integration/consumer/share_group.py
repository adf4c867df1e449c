"""What the tests of the consumer begin with: a group with a coordinator at work, a topic with records, a consumer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from confluent_kafka import Message, Producer

from sharequeue import Database, Settings, ShareConsumer, State
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.service.coordinator import Coordinator
from tests.waiting import PATIENCE_S, pass_time, running, wait_until


@dataclass
class Work:
    """A group that starts at the earliest record, in one database."""

    settings: Settings
    database: Database
    group: str

    def config(self, **changes: Any) -> dict[str, Any]:
        """The config of a consumer; names with underscores."""
        config = {
            "group.id": self.group,
            "bootstrap.servers": self.settings.bootstrap_servers,
            "sharequeue.database.url": self.database.engine.url.render_as_string(hide_password=False),
        }
        named = {name if name == "log_level" else name.replace("_", "."): of for name, of in changes.items()}
        return {**config, **named}

    def consumer(self, *topics: str, explicit: bool = False, **changes: Any) -> ShareConsumer:
        """A consumer that is subscribed."""
        mode = "explicit" if explicit else "implicit"
        consumer = ShareConsumer(self.config(**{"share_acknowledgement_mode": mode, **changes}))
        consumer.subscribe(list(topics))
        return consumer

    def configure(self, **configs: str | int | bool) -> None:
        """Set configs of the group; names with underscores."""
        alter_group_configs(
            self.database, self.group, {name.replace("_", "."): value for name, value in configs.items()}
        )

    def produce(self, topic: str, records: int, partition: int = 0) -> None:
        """Append records: their values are their numbers."""
        producer = Producer(client_config(self.settings))
        for number in range(records):
            producer.produce(topic, value=b"%d" % number, partition=partition)
        assert producer.flush(PATIENCE_S) == 0

    def produce_keys(self, topic: str, *keys: bytes | None) -> None:
        """Append a record for each of these keys to partition 0; its value is its number."""
        producer = Producer(client_config(self.settings))
        for number, key in enumerate(keys):
            producer.produce(topic, key=key, value=b"%d" % number, partition=0)
        assert producer.flush(PATIENCE_S) == 0

    def status(self) -> list[SharePartitionStatus]:
        """What the state says of the group's share-partitions."""
        return State(self.database).figures.describe(self.group)

    def done(self) -> bool:
        """Whether everything in the log is finished."""
        rows = self.status()
        return bool(rows) and all(row.observed_at is not None and row.lag == 0 for row in rows)


@contextmanager
def work_on(
    settings: Settings, database: Database, group: str, **configs: str | int | bool
) -> Iterator[Work]:
    """A group with a coordinator at work."""
    work = Work(settings, database, group)
    work.configure(share_auto_offset_reset="earliest", **configs)
    with Topics(settings) as topics, running(Coordinator(database, topics, interval=0.1, watch_interval=0.2)):
        yield work
    assert State(database).figures.verify(group) == []


def let_locks_lapse(work: Work) -> None:
    """Move the clock of a private database past a lock of 30 s, and not past a session: in steps that the coordinator
    does not take for an outage of its own, after which it would extend the locks."""
    beaten = sa.text(
        "select sharequeue.clock() - beat_at < interval '1 s' as just_now from sharequeue.service_beat"
    )
    for _ in range(5):
        pass_time(work.database, 6.5)
        wait_until(lambda: bool(work.database.rows(beaten)[0]["just_now"]))


def poll_some(consumer: ShareConsumer, records: int = 1, seconds: float = PATIENCE_S) -> list[Message]:
    """Poll until so many records have come in one poll, or in several of an implicit consumer."""
    deadline = time.monotonic() + seconds
    found: list[Message] = []
    while len(found) < records:
        assert time.monotonic() < deadline, f"{len(found)} of {records} records came"
        found += consumer.poll(0.5)
    return found


def seen(messages: list[Message]) -> list[tuple[int, int]]:
    """Offset and delivery count of each."""
    return [(message.offset(), message.delivery_count()) for message in messages]  # type: ignore[misc]


__all__ = ["Work", "let_locks_lapse", "poll_some", "seen", "wait_until", "work_on"]
