"""The keys of topics in Dagster, and observations of their offsets.

A topic is an external asset with the key `kafka/<topic>`, whichever share groups read or write it; `topic_prefix` of
a group changes the first part. Its spec is in `lineage`. Loading definitions needs no broker: partitions and offsets
are recorded as observations by runs and sensors.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import dagster as dg

from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.tables import table
from sharequeue.domain.figures import SharePartitionStatus

Ends = Mapping[int, tuple[int, int]]
"""The first offset and the end offset of the log, by partition."""
_MOST_ROWS = 200


def observation(key: dg.AssetKey, ends: Ends) -> dg.AssetObservation:
    """Return the observation of a topic: its partitions and their offsets."""
    columns = {"partition": "int", "log_start_offset": "int", "log_end_offset": "int"}
    rows = [(partition, *of_log) for partition, of_log in sorted(ends.items())]
    return dg.AssetObservation(
        key,
        metadata={
            "partitions": len(ends),
            "log_offsets": sum(end - start for start, end in ends.values()),
            "written_offsets": sum(end for _, end in ends.values()),
            "end_offsets": table(columns, rows[:_MOST_ROWS]),
        },
    )


def observed_topics(
    group: ShareGroup, statuses: Sequence[SharePartitionStatus], seen: Mapping[str, int] | None = None
) -> list[dg.AssetObservation]:
    """Return an observation of each topic of a group, from what its state has last seen of the logs.

    A topic that still has the offsets in `seen`, from `written_offsets`, is left out.
    """
    topics: dict[str, dict[int, tuple[int, int]]] = {}
    for status in statuses:
        topics.setdefault(status.topic, {})[status.partition] = (status.log_start, status.log_end)
    now = written_offsets(statuses)
    known = seen or {}
    return [
        observation(group.topic_key(topic), ends)
        for topic, ends in sorted(topics.items())
        if known.get(topic) != now[topic]
    ]


def written_offsets(statuses: Sequence[SharePartitionStatus]) -> dict[str, int]:
    """Return the sum of the end offsets of each topic of a group."""
    written = Counter[str]()
    for status in statuses:
        written[status.topic] += status.log_end
    return dict(written)
