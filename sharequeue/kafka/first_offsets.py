"""Find the offsets at which a share group begins with a topic, by its reset policy (`share.auto.offset.reset`).

The service initialises share-partitions with them. Before that, they show what a first run would find. Nothing is
changed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from sharequeue.kafka.topics import LogOffsets, Topics

__all__ = ["first_offsets", "first_offsets_in"]


def first_offsets(
    topics: Topics, topic: str, policy: str, back: timedelta | None, now: float, patience: float | None = None
) -> Mapping[int, int | None]:
    """Return the offset of each partition of a topic at which a group begins (R-OR-2).

    `policy` is the value of `share.auto.offset.reset`; `back` is how far back `by_duration` reaches from `now` (Unix
    seconds), None for the other policies. None as an offset: no record is recent enough yet. `patience` and errors
    as `Topics.offsets`.
    """
    if back is not None:
        return topics.offsets_for_times(topic, int((now - back.total_seconds()) * 1000), patience)
    return first_offsets_in(topics.offsets(topic, patience), policy)


def first_offsets_in(logs: Mapping[int, LogOffsets], policy: str) -> dict[int, int | None]:
    """Return the offsets at which a group with the policy `earliest` or `latest` begins in these logs."""
    return {
        partition: log.log_start if policy == "earliest" else log.log_end for partition, log in logs.items()
    }
