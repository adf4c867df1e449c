"""What does a run ask of the topics it leases from?

Three questions, in the order in which a lease meets them: where the logs end, before anything is leased; the
records of what was leased; and, once their outcomes are known, what became of the offsets that have none. The
last is where losses would hide: topic id and log start are looked at before and after, so that neither a topic
made again nor retention passes for a gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from sharequeue.errors import BrokerNotAvailable, OffsetOutOfRange, UnknownTopicId
from sharequeue.kafka.topics import LogOffsets, TopicInfo, Topics
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.settings import Settings
from sharequeue.spark.outcomes.outcomes import Answer, Seen, answer, missing, present, refuse_unanswered
from sharequeue.spark.reading.frame import leased_records
from sharequeue.spark.reading.plan import MAX_SCANS, TopicPartition
from sharequeue.spark.session import refuse_without_connector
from sharequeue.state import State
from sharequeue.values import Lease, LogSeen, SharePartition


@dataclass(frozen=True, slots=True)
class Source:
    """The topics as one run reads them. `reader_options` are the connector's and win over ours."""

    settings: Settings
    state: State
    topics: Topics
    spark: SparkSession
    isolation_level: str
    reader_options: Mapping[str, str] = field(default_factory=dict)
    headers: bool = True
    max_scans: int = MAX_SCANS

    def __post_init__(self) -> None:
        """Raise SparkNotReady, before anything is leased, when Spark cannot read topics."""
        refuse_without_connector(self.spark)

    def observe(self, share_partitions: Sequence[SharePartition]) -> dict[str, TopicInfo]:
        """Have the state know where the logs end now: it leases nothing beyond. Answers the topics that
        exist.
        """
        infos = self.topics.describe({sp.topic for sp in share_partitions})
        offsets = self.topics.offsets_of({topic: info.partitions for topic, info in infos.items()})
        self._tell(infos, {sp: offsets.get(_place(sp)) for sp in share_partitions})
        return infos

    def records(self, leases: Sequence[Lease]) -> DataFrame:
        """The records of these leases, with delivery count and lease id (`read.leased_records`)."""
        return leased_records(
            self.spark,
            self.settings,
            leases,
            options=self.reader_options,
            isolation_level=self.isolation_level,
            headers=self.headers,
            max_scans=self.max_scans,
            pass_over=self._passes_over(leases),
        )

    def answers(
        self,
        leases: Sequence[Lease],
        seen: Mapping[int, Seen],
        infos: Mapping[str, TopicInfo],
        dropped: str | None,
    ) -> dict[int, Answer]:
        """The answer of each lease; the log is asked again only about offsets that have no outcome.

        `infos` are the topics as they were before the lease; `dropped` is the outcome of a record that the
        log has and nobody answered. Raises HandlerError for offsets that were not leased, for outcomes that are
        unknown, and for records without one where `dropped` is None; UnknownTopicId for a
        topic that is another one now, OffsetOutOfRange for a log that was truncated, BrokerNotAvailable for
        one without a leader: what is missing is then not known to be a gap.
        """
        wanted: dict[TopicPartition, OffsetSet] = {}
        for lease in leases:
            at = _place(lease.share_partition)
            if silent := missing(lease, seen.get(lease.lease_id)):
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
                options=self.reader_options,
                not_for_others_than=(
                    leases[0].share_partition.group_id if self._passes_over(leases) else None
                ),
            )
            # Asked after the reading: what was absent because of retention lies below this log start.
            starts = self._log_starts(wanted, leases, infos)
        left_out = {
            lease.lease_id: missing(lease, seen.get(lease.lease_id))
            & in_log.get(_place(lease.share_partition), EMPTY)
            for lease in leases
            if dropped is None and in_log
        }
        refuse_unanswered(leases, seen, left_out)
        return {
            lease.lease_id: answer(
                lease,
                seen.get(lease.lease_id),
                in_log.get(_place(lease.share_partition), EMPTY),
                starts.get(_place(lease.share_partition), 0),
                dropped,
            )
            for lease in leases
        }

    def _passes_over(self, leases: Sequence[Lease]) -> bool:
        """Whether a topic of these leases has records put back for another share group alone.

        Asked after the lease: what it covers was written before, and a redrive is written down before it sends.
        """
        if not leases:
            return False
        topics = {lease.share_partition.topic for lease in leases}
        return bool(topics & self.state.topics_redriven_for_others(leases[0].share_partition.group_id))

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
        told = [sp for sp in {lease.share_partition for lease in leases} if _place(sp) in wanted]
        for sp in told:
            at = _place(sp)
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
        self._tell(now, {sp: offsets[_place(sp)] for sp in told})
        return starts

    def _tell(self, infos: Mapping[str, TopicInfo], logs: Mapping[SharePartition, LogOffsets | None]) -> None:
        self.state.observe_many(
            [
                LogSeen(sp, infos[sp.topic].topic_id, log.log_start, log.log_end, log.last_stable_offset)
                for sp, log in logs.items()
                if log is not None
            ]
        )


def _place(sp: SharePartition) -> TopicPartition:
    return sp.topic, sp.partition
