"""Find what a first run of a share group would process, in topics of which the group has no state yet.

The state of a share-partition begins when a member first subscribes to its topic. Before that the views have no row
and no lag, although records may wait. Here the offsets are read from the broker, by the group's reset policy.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.settings import Settings
from sharequeue.kafka.offset_resets import first_offsets_in
from sharequeue.kafka.topics import Topics

__all__ = ["NO_STATE", "first_run_statuses"]

NO_STATE = "no state yet"
"""The status of a share-partition that the first run initialises."""
TIMEOUT_SECONDS = 5.0
"""The longest wait for one response of the broker."""


def first_run_statuses(
    settings: Settings,
    group_id: str,
    topics: Collection[str],
    policy: str,
    back: timedelta | None,
    now: datetime,
) -> list[SharePartitionStatus]:
    """Return the share-partitions of these topics as a first run at `now` would initialise them.

    `policy` and `back` are those of `first_offsets`. With `by_duration`, a partition without a recent record begins
    at the next one, so it has no lag. Topics that do not exist, and partitions without a leader, are left out. Raises
    BrokerNotAvailable, and the broker's error if it refuses to show all of the topics.
    """
    if not topics:
        return []
    found: list[SharePartitionStatus] = []
    with Topics(settings, timeout=TIMEOUT_SECONDS) as broker:
        asked = broker.ask(topics)
        known = asked.known
        if not known and asked.refused:
            raise next(iter(asked.refused.values()))
        logs = broker.offsets_of({topic: info.led for topic, info in known.items()}, refused={})
        for topic, info in sorted(known.items()):
            of_topic = {partition: log for (name, partition), log in logs.items() if name == topic}
            if back is None:
                starts = first_offsets_in(of_topic, policy)
            else:
                since = int((now - back).timestamp() * 1000)
                starts = dict(broker.offsets_for_times(topic, since))
            for partition, log in sorted(of_topic.items()):
                start = starts.get(partition)
                start = log.log_end if start is None else start
                found.append(
                    SharePartitionStatus(
                        group_id,
                        topic,
                        partition,
                        spso=start,
                        speo=start,
                        log_start=log.log_start,
                        log_end=log.log_end,
                        lag=max(0, log.log_end - start),
                        oldest_offset=start if start < log.log_end else None,
                        status=NO_STATE,
                        topic_id=info.topic_id,
                        last_stable_offset=log.last_stable_offset,
                    )
                )
    return found
