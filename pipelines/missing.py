"""What became of the leased offsets that have no outcome?

The log is asked again, about those alone: what it has was dropped by the handler; what it does not have is a
gap, or was taken by retention, or is no gap at all because the topic is another one by now, or was truncated.
Only gaps may be acknowledged as gaps, so the topic's id and the log's ends are asked before anything is
answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from pipelines.job import ShareGroupJob
from pipelines.outcomes import Answer, Seen, answer, missing, present
from pipelines.plan import TopicPartition
from sharequeue.errors import BrokerNotAvailable, OffsetOutOfRange, UnknownTopicId
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.settings import Settings
from sharequeue.state import Lease, State
from sharequeue.topics import TopicInfo, Topics


@dataclass(frozen=True, slots=True)
class Logs:
    """What is asked about missing offsets, and how."""

    settings: Settings
    state: State
    topics: Topics
    spark: SparkSession
    job: ShareGroupJob
    isolation_level: str

    def answers(
        self, leases: Sequence[Lease], seen: Mapping[int, Seen], infos: Mapping[str, TopicInfo]
    ) -> dict[int, Answer]:
        """The answer of each lease, by its id. `infos` are the topics as they were when the leases were taken.

        Raises HandlerError for outcomes of offsets that were not leased, UnknownTopicId, OffsetOutOfRange and
        BrokerNotAvailable where what is missing is no gap, or not known to be one.
        """
        wanted: dict[TopicPartition, OffsetSet] = {}
        for lease in leases:
            if silent := missing(lease, seen.get(lease.lease_id)):
                at = _at(lease)
                wanted[at] = wanted.get(at, EMPTY) | silent
        in_log: dict[TopicPartition, OffsetSet] = {}
        starts: dict[TopicPartition, int] = {}
        if wanted:
            # Before the log is asked: it may be another one by now, and offsets past its end are waited for.
            self._log_starts(wanted, leases, infos)
            in_log = present(
                self.spark,
                self.settings,
                wanted,
                isolation_level=self.isolation_level,
                options=self.job.reader_options,
            )
            # Asked after the reading: what was absent because of retention lies below this log start.
            starts = self._log_starts(wanted, leases, infos)
        return {
            lease.lease_id: answer(
                lease,
                seen.get(lease.lease_id),
                in_log.get(_at(lease), EMPTY),
                starts.get(_at(lease), 0),
                self.job.dropped,
            )
            for lease in leases
        }

    def _log_starts(
        self,
        wanted: Mapping[TopicPartition, OffsetSet],
        leases: Sequence[Lease],
        infos: Mapping[str, TopicInfo],
    ) -> dict[TopicPartition, int]:
        """Where the logs of missing offsets start now, which the state is told; refuses what is no gap."""
        names = {topic for topic, _ in wanted}
        now = self.topics.describe(names)
        for name in names:
            if name not in now or now[name].topic_id != infos[name].topic_id:
                raise UnknownTopicId(
                    f"Topic {name!r} was deleted, or made again, while its records were read: what is "
                    "missing was not acknowledged. See what became of the topic; the records are delivered again."
                )
        offsets = self.topics.offsets_of({name: now[name].partitions for name in names})
        starts: dict[TopicPartition, int] = {}
        for sp in {lease.share_partition for lease in leases}:
            at = (sp.topic, sp.partition)
            if at not in wanted:
                continue
            seen = offsets.get(at)
            if seen is None:
                raise BrokerNotAvailable(
                    f"{sp} has no leader: whether its missing records are gaps is not known."
                )
            if wanted[at].end > seen.log_end:
                last = wanted[at].end - 1
                raise OffsetOutOfRange(
                    f"The log of {sp} ends at {seen.log_end}, before leased offset {last}: it was truncated. What is "
                    "missing was not acknowledged; reset the group's offsets once the cause is known."
                )
            starts[at] = seen.log_start
            topic_id = now[sp.topic].topic_id
            self.state.observe(sp, topic_id, seen.log_start, seen.log_end, seen.last_stable_offset)
        return starts


def _at(lease: Lease) -> TopicPartition:
    return (lease.share_partition.topic, lease.share_partition.partition)
