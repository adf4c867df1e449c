"""How long the leases of many partitions wait to be read."""

from __future__ import annotations

import pytest

from sharequeue import Database, Settings
from sharequeue.consumer import reader
from tests.fixtures.stack import MakeTopic
from tests.integration.consumer.share_group import poll_some, work_on

PARTITIONS = 60
LOCK_MS, FETCH_MS = 120_000, 3000
"""A lock is shorter than the reading would take if the partitions came one by one: a fetch at a log's end is held."""


def test_leases_of_many_partitions_are_read_together(
    settings: Settings,
    database: Database,
    group: str,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No lock lapses before its record is polled: each record comes once."""
    monkeypatch.setattr(reader, "FETCH_WAIT_MS", FETCH_MS)
    topic = make_topic(PARTITIONS)
    with work_on(settings, database, group, share_record_lock_duration_ms=LOCK_MS) as work:
        for partition in range(PARTITIONS):
            work.produce(topic, 1, partition)
        with work.consumer(topic) as consumer:
            messages = poll_some(consumer, PARTITIONS)
            consumer.commit_sync()
    assert [message.delivery_count() for message in messages] == [1] * PARTITIONS
