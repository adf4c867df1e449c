"""Find the records of a group whose dead letters were put back into its topics.

The group gets such a record again, at a new offset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sharequeue.deadletters.letters import DeadLetter
from sharequeue.deadletters.redrive.batches import RedriveBatches
from sharequeue.kafka.reading import RecordReader
from sharequeue.kafka.topics import Topics
from sharequeue.state import State
from sharequeue.words.offsets import OffsetSet
from sharequeue.words.settings import Settings


def redriven_records(
    settings: Settings,
    state: State,
    topics: Topics,
    group: str,
    dead_letter_topic: str,
    sources: Collection[str],
) -> Mapping[tuple[str, int], OffsetSet]:
    """Return the offsets of the group's records that were put back into one of `sources`, by topic and partition.

    A record whose letter retention has removed from the dead-letter topic is left out. Raises BrokerNotAvailable.
    """
    info = topics.describe([dead_letter_topic]).get(dead_letter_topic)
    if info is None:
        return {}
    sent = RedriveBatches(state.database, dead_letter_topic, info.topic_id).put_back(group, sources)
    found: dict[tuple[str, int], list[int]] = {}
    with RecordReader(settings) as reader:
        for partition, offsets in sent.items():
            for message in reader.read(dead_letter_topic, partition, offsets):
                letter = DeadLetter.of(message)
                topic, at, offset = letter.source_topic, letter.source_partition, letter.source_offset
                if letter.group != group or topic is None or at is None or offset is None:
                    continue
                if topic in sources:
                    found.setdefault((topic, at), []).append(offset)
    return {place: OffsetSet.from_offsets(some) for place, some in found.items()}
