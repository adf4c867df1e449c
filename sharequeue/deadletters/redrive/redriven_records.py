"""Find the records of a group whose dead letters were put back into its topics.

The group gets such a record again, at a new offset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from sharequeue.deadletters.letters import DeadLetter
from sharequeue.domain.offsets import OffsetSet, sets_of
from sharequeue.domain.settings import Settings
from sharequeue.kafka.reading import RecordReader
from sharequeue.kafka.topics import Topics, is_same
from sharequeue.state import State

_PUT_BACK = sa.text(
    "select b.dead_letter_topic, b.topic_id, b.partition, cast(range_agg(o.part) as text) as offsets"
    " from sharequeue.redrive_batches b join sharequeue.redrives r using (redrive_id), unnest(b.offsets) as o (part)"
    " where (r.target_topic is null or r.target_topic = any(cast(:topics as text[])))"
    " and (r.only_group is null or r.only_group = :group)"
    " group by b.dead_letter_topic, b.topic_id, b.partition"
)
"""The letters that were sent, or are being sent, and that the group does not pass over."""


def find_redriven_records(
    settings: Settings, state: State, topics: Topics, group: str, sources: Collection[str]
) -> Mapping[tuple[str, int], OffsetSet]:
    """Return the offsets of the group's records that were put back into one of `sources`, by topic and partition.

    A record whose letter is no longer in its dead-letter topic is not found. Raises BrokerNotAvailable.
    """
    sent = state.database.rows(_PUT_BACK, topics=sorted(sources), group=group)
    there = topics.describe({*(row["dead_letter_topic"] for row in sent), *sources})
    found: dict[tuple[str, int], list[int]] = {}
    with RecordReader(settings) as reader:
        for row in sent:
            topic = row["dead_letter_topic"]
            if not is_same(there, topic, row["topic_id"]):
                continue
            letters = map(
                DeadLetter.of, reader.read(topic, row["partition"], OffsetSet.parse(row["offsets"]))
            )
            named = list[tuple[tuple[str, int], int]]()
            for letter in letters:
                source, partition, offset = letter.source_topic, letter.source_partition, letter.source_offset
                if source is None or partition is None or offset is None:
                    continue
                topic_id = letter.source_topic_id
                if topic_id is not None and not is_same(there, source, topic_id):
                    continue  # another record, of a topic that was created again
                if letter.group == group and source in sources:
                    named.append(((source, partition), offset))
            # What was read counts if the topic was not created again meanwhile.
            if is_same(topics.describe({topic}), topic, row["topic_id"]):
                for place, offset in named:
                    found.setdefault(place, []).append(offset)
    return sets_of(found)
