"""How long the leases of many partitions wait to be read."""

from __future__ import annotations

from sharequeue import Database, Settings
from tests.fixtures.stack import MakeTopic
from tests.integration.consumer.share_group import poll_some, work_on

PARTITIONS = 60
LOCK_MS = 3000
"""Shorter than the reading would take if the partitions came one by one: a fetch at a log's end is held for 0.1 s."""


def test_leases_of_many_partitions_are_read_together(
    settings: Settings, database: Database, group: str, make_topic: MakeTopic
) -> None:
    """No lock lapses before its record is polled: each record comes once."""
    topic = make_topic(PARTITIONS)
    with work_on(settings, database, group, share_record_lock_duration_ms=LOCK_MS) as work:
        for partition in range(PARTITIONS):
            work.produce(topic, 1, partition)
        with work.consumer(topic) as consumer:
            messages = poll_some(consumer, PARTITIONS)
            consumer.commit_sync()
    assert [message.delivery_count() for message in messages] == [1] * PARTITIONS
