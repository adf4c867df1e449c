"""The topics that a run leases from: their log offsets and their records.

It has three queries, in the order of a lease: the log ends, before anything is leased; the leased records; and, for
offsets without an outcome, whether the log is still the same, and where it starts (`outcomes/outcomes.py` derives
their outcome).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sharequeue.domain.errors import (
    BrokerNotAvailable,
    InvalidTimestamp,
    OffsetOutOfRange,
    ShareError,
    UnknownTopicId,
)
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import READ_COMMITTED, Lease, LogSeen, SharePartition
from sharequeue.kafka.clients import spark_options
from sharequeue.kafka.topics import LogOffsets, TopicInfo, Topics, is_same
from sharequeue.spark.reading.frame import (
    leased_records,
    not_for_others,
    scan_records,
    segments_by_offset,
)
from sharequeue.spark.reading.options import ISOLATION, ReaderOptions
from sharequeue.spark.reading.plan import Scan, TopicPartition
from sharequeue.spark.session import refuse_without_connector
from sharequeue.state import State

_T = TypeVar("_T")
_TIMED_OUT = re.compile(
    # Of the connector, of Java's client, and of the tasks that read by offset (`offset_reader.py`).
    r"Cannot fetch record for offset \d+ in \d+ milliseconds"
    r"|org\.apache\.kafka\.common\.errors\.(TimeoutException|DisconnectException)[^\n]*"
    r"|no record of \S+ from offset -?\d+ on arrived within [\d.]+ s"
)
_OVERFLOW = re.compile(r"ArithmeticException: long overflow(?s:.){,4000}?\.KafkaRecordToRowConverter\.")
"""Spark's connector counts microseconds in 64 bits: it cannot represent a timestamp in nanoseconds."""
_LACKS_CLIENT = re.compile("lacks confluent-kafka|No module named '(confluent_kafka|pyarrow)'")
MOST_NAMED = 5
"""The most partitions that a message names."""


def words_of_leaderless(partitions: Iterable[TopicPartition]) -> str:
    """Return the message on partitions without a leader."""
    found = sorted(partitions)
    named = ", ".join(f"{topic}-{partition}" for topic, partition in found[:MOST_NAMED])
    more = ", …" if len(found) > MOST_NAMED else ""
    one = len(found) == 1
    return (
        f"{named}{more} {'has' if one else 'have'} no leader, so {'its' if one else 'their'} records cannot be read "
        f"and {'its' if one else 'their'} lag is not known: nothing was leased from {'it' if one else 'them'}, or it "
        "was given back without a delivery. The other partitions are not affected. Start the brokers that have "
        f"{'it' if one else 'them'}; the next run continues"
    )


def cannot_be_scanned(error: BaseException) -> bool:
    """Return whether an error of Spark is one of its connector about a timestamp. Such a record is read by offset."""
    return _OVERFLOW.search(str(error)) is not None


def refuse_without_client(error: Exception) -> None:
    """Raise InvalidTimestamp if an error of Spark says that executors which should read by offset cannot."""
    if _LACKS_CLIENT.search(str(error)) is not None:
        raise InvalidTimestamp(
            "A record has a timestamp after the year 294247, which Spark's connector cannot represent, and the "
            "executors cannot read it by offset: they lack confluent-kafka or pyarrow. Nothing was acknowledged, and "
            "no delivery is counted. Install both on the executors, and correct the producer, which perhaps writes "
            "nanoseconds; Kafka's timestamps are milliseconds."
        ) from error


def by_scan_or_offset(read: Callable[[bool], _T]) -> _T:
    """Return the result of a function that reads records: by scans, or by offset if these fail because Spark's
    connector cannot represent a record.

    It is called with False, then perhaps with True. Raises InvalidTimestamp if the executors cannot read by offset.
    """
    try:
        return read(False)
    except (PySparkException, Py4JError) as error:
        if not cannot_be_scanned(error):
            raise
    try:
        return read(True)
    except (PySparkException, Py4JError) as error:
        refuse_without_client(error)
        raise


@dataclass(frozen=True, slots=True)
class ObservedTopics:
    """The topics of some share-partitions, and which of these can be read."""

    infos: Mapping[str, TopicInfo]
    led: list[SharePartition]
    """The share-partitions to lease from, in the order in which they were given."""
    leaderless: frozenset[TopicPartition]
    """The partitions of the topics, assigned or not, that have no leader."""


@dataclass(frozen=True, slots=True)
class TopicSource:
    """The topics of one run. `reader_options` override our own.

    Each lease is read at its own isolation level.
    """

    settings: Settings
    state: State
    topics: Topics
    spark: SparkSession
    reader_options: ReaderOptions = field(default_factory=lambda: ReaderOptions({}))
    headers: bool = True

    def __post_init__(self) -> None:
        """Raise SparkNotReady, before anything is leased, when Spark cannot read topics; SettingMissing for settings
        that its client does not have.
        """
        refuse_without_connector(self.spark)
        spark_options(self.settings)

    def observe(
        self, share_partitions: Sequence[SharePartition], topics: Iterable[str] = ()
    ) -> ObservedTopics:
        """Write the current log ends to the state, which leases nothing beyond them. Return the topics that exist,
        `topics` included, and what may be leased from: a partition without a leader cannot be read.
        """
        infos, logs = self._logs({*topics, *(sp.topic for sp in share_partitions)})
        self._observed(infos, {sp: logs.get(_at(sp)) for sp in share_partitions})
        led = [sp for sp in share_partitions if sp.topic not in infos or _at(sp) in logs]
        every = {(topic, partition) for topic, info in infos.items() for partition in range(info.partitions)}
        return ObservedTopics(infos, led, frozenset(every.difference(logs)))

    def unread(
        self, errors: Sequence[Exception], share_partitions: Iterable[SharePartition]
    ) -> frozenset[SharePartition]:
        """Return the partitions among these that have no leader now, after errors of Spark jobs that read them.

        Raises BrokerNotAvailable if no broker responds, and if an error is a timeout of Kafka's client although all
        have leaders.
        """
        wanted = frozenset(share_partitions)
        infos, logs = self._logs({sp.topic for sp in wanted})
        if away := frozenset(sp for sp in wanted if sp.topic in infos and _at(sp) not in logs):
            return away
        for error in errors:
            if late := _TIMED_OUT.search(str(error)):
                raise BrokerNotAvailable(
                    f"Leased records did not arrive from Kafka in time ({late[0]}), although their partitions have "
                    "leaders. They were given back without a delivery. Check that the driver and the executors of "
                    "Spark reach every broker; the next run leases them again."
                ) from error
        return frozenset()

    @contextmanager
    def outages_are_named(self, leases: Sequence[Lease]) -> Iterator[None]:
        """Raise BrokerNotAvailable in place of Spark's error of the block if leased partitions cannot be read, and
        InvalidTimestamp if a record cannot be scanned.
        """
        try:
            yield
        except (PySparkException, Py4JError) as error:
            if cannot_be_scanned(error):
                raise InvalidTimestamp(
                    "A record has a timestamp after the year 294247, which Spark's connector cannot represent: "
                    "perhaps its producer writes nanoseconds; Kafka's timestamps are milliseconds. Process these "
                    "records with a pipeline, whose runs read them by offset, and correct the producer."
                ) from error
            away = self.unread([error], (lease.share_partition for lease in leases))
            if not away:
                raise
            raise BrokerNotAvailable(words_of_leaderless(map(_at, away))) from error

    def records(self, leases: Sequence[Lease], *, by_offset: bool = False) -> DataFrame:
        """Return the records of these leases, with delivery count and lease id (`frame.leased_records`). With
        `by_offset` none is scanned.
        """
        return leased_records(
            self.spark,
            self.settings,
            leases,
            options=self.reader_options.given,
            headers=self.headers,
            pass_over=self.passes_over(leases),
            by_offset=by_offset,
        )

    def scanned(
        self, scan: Scan, isolation_level: str, only_for: str | None = None, *, by_offset: bool = False
    ) -> DataFrame:
        """Return the rows that are in the log at the offsets of one scan. Records redriven for a share group other
        than `only_for` are left out. With `by_offset` nothing is scanned.

        What is absent may count as a gap, so a user's option counts only if it says how to connect.
        """
        options = {
            **self.reader_options.connecting,
            ISOLATION: isolation_level,
            **({"includeHeaders": "true"} if only_for else {}),
        }
        if by_offset:
            headers = only_for is not None
            records = segments_by_offset(self.spark, self.settings, scan, options, headers=headers)
        else:
            records = scan_records(self.spark, self.settings, [scan], options)
        return not_for_others(records, only_for) if only_for else records

    def passes_over(self, leases: Sequence[Lease]) -> bool:
        """Return whether a topic of these leases has records redriven for another share group only.

        Call this after the lease: its records were written before, and a redrive is recorded in the state before it
        sends.
        """
        if not leases:
            return False
        topics = {lease.share_partition.topic for lease in leases}
        return bool(
            topics & self.state.dead_letters.topics_redriven_for_others(leases[0].share_partition.group_id)
        )

    def log_starts(
        self, missing: Iterable[tuple[Lease, OffsetSet]], infos: Mapping[str, TopicInfo]
    ) -> dict[SharePartition, int]:
        """Return the current log starts of the partitions with missing offsets, and write them to the state.

        `infos` are the topics as they were before the lease. Raises UnknownTopicId, OffsetOutOfRange or
        BrokerNotAvailable if an absent offset may not be a gap, also for an offset that a reader at the lease's
        isolation level cannot see yet.
        """
        missing = list(missing)
        names = {lease.share_partition.topic for lease, _ in missing}
        now = self.same_topics(names, infos)
        offsets = self._offsets(now)
        logs: dict[SharePartition, LogOffsets] = {}
        for lease, absent in missing:
            sp = lease.share_partition
            seen = offsets.get(_at(sp))
            if seen is None:
                raise BrokerNotAvailable(
                    f"{sp} has no leader: whether its missing records are gaps is not known."
                )
            last = absent.end - 1
            if last >= seen.log_end:
                raise OffsetOutOfRange(
                    f"The log of {sp} ends at {seen.log_end}, before leased offset {last}: it was truncated. The "
                    "missing records were not acknowledged; reset the group's offsets once the cause is known."
                )
            if lease.isolation_level == READ_COMMITTED and last >= seen.last_stable_offset:
                raise OffsetOutOfRange(
                    f"Leased offset {last} of {sp} is past the last stable offset, {seen.last_stable_offset}: it may "
                    "be a record of an open transaction, so it does not count as a gap. Nothing of this round was "
                    "acknowledged; the records are delivered again. Run again when the transaction has ended."
                )
            logs[sp] = seen
        self._observed(now, logs)
        return {sp: seen.log_start for sp, seen in logs.items()}

    def same_topics(self, names: Iterable[str], infos: Mapping[str, TopicInfo]) -> dict[str, TopicInfo]:
        """Return these topics as they are now. Raises UnknownTopicId if one differs from `infos`: the records read
        may be of another topic.
        """
        now = self.topics.describe(names)
        for name in names:
            if not is_same(now, name, infos[name].topic_id):
                raise UnknownTopicId(
                    f"Topic {name!r} was deleted or recreated while its records were read: nothing was acknowledged. "
                    "Check the topic. Its records are not delivered again; those of other topics are."
                )
        return now

    @contextmanager
    def changed_topics_are_named(
        self, names: Iterable[str], infos: Mapping[str, TopicInfo]
    ) -> Iterator[None]:
        """Raise UnknownTopicId in place of an error of the block if a topic is no longer the one in `infos`."""
        try:
            yield
        except Exception:
            with suppress(BrokerNotAvailable):
                self.same_topics(names, infos)
            raise

    def _logs(self, names: Iterable[str]) -> tuple[dict[str, TopicInfo], dict[TopicPartition, LogOffsets]]:
        infos = self.topics.describe(names)
        return infos, self._offsets(infos)

    def _offsets(self, infos: Mapping[str, TopicInfo]) -> dict[TopicPartition, LogOffsets]:
        """Return the log offsets of the partitions that have a leader. Raises the error of the first topic that the
        broker refuses.
        """
        refused: dict[str, ShareError] = {}
        found = self.topics.offsets_of({topic: info.led for topic, info in infos.items()}, refused)
        for error in refused.values():
            raise error
        return found

    def _observed(
        self, infos: Mapping[str, TopicInfo], logs: Mapping[SharePartition, LogOffsets | None]
    ) -> None:
        self.state.observe(
            [
                LogSeen(sp, infos[sp.topic].topic_id, log.log_start, log.log_end, log.last_stable_offset)
                for sp, log in logs.items()
                if log is not None
            ]
        )


def _at(sp: SharePartition) -> TopicPartition:
    return sp.topic, sp.partition
