"""Read the ages of records that wait, by their timestamps.

The state has offsets and no timestamps: its views count from the first report that had a record in the log. Here the
records themselves are read from their topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaException

from sharequeue.domain.errors import ShareError
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.settings import SettingMissing, Settings
from sharequeue.kafka.reading import first_records

__all__ = ["Ages", "read_ages", "with_a_record"]

Ages = Mapping[tuple[str, int], float]
"""Seconds, by topic and partition. Share-partitions whose age is not known are left out."""

MOST_READ = 500
"""Share-partitions that are read, those with the most lag."""
READ_SECONDS = 3.0
"""The longest time for reading all of them."""
_NOT_THERE = ("topic_deleted", "topic_recreated")


def read_ages(settings: Settings, statuses: Iterable[SharePartitionStatus], now: datetime) -> Ages:
    """Return the age at `now` of the oldest unfinished record of each share-partition, by its timestamp.

    A share-partition is left out if nothing waits, or if its record cannot be read: the topic was deleted, or the
    broker is away or refuses.
    """
    waiting = sorted(with_a_record(statuses), key=lambda each: -each.lag)
    starts = {(each.topic, each.partition): each.oldest_offset or 0 for each in waiting[:MOST_READ]}
    try:
        found = first_records(settings, starts, READ_SECONDS)
    except (KafkaException, ShareError, SettingMissing):
        return {}
    times = {at: message.timestamp() for at, message in found.items()}
    return {
        at: max(0.0, now.timestamp() - milliseconds / 1000)
        for at, (kind, milliseconds) in times.items()
        if kind != TIMESTAMP_NOT_AVAILABLE
    }


def with_a_record(statuses: Iterable[SharePartitionStatus]) -> list[SharePartitionStatus]:
    """Return the share-partitions that have an unfinished record in a topic that still exists."""
    return [
        each
        for each in statuses
        if each.lag and each.oldest_offset is not None and each.status not in _NOT_THERE
    ]
