"""Find one record in a topic by its headers, near a time: a dead letter, or a record that was sent back.

The state has the times between which it was written, and not its offset. So only that part of the topic is read, and
not more than `MOST_RECORDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from types import MappingProxyType, TracebackType
from typing import Self

from confluent_kafka import KafkaException

from sharequeue.deadletters.letters import DeadLetter, read_dead_letters
from sharequeue.deadletters.redrive.selection import REDRIVE_FROM
from sharequeue.domain.errors import ShareError
from sharequeue.domain.moments import milliseconds_of
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import SettingMissing, Settings
from sharequeue.domain.traces import HEADER, valid
from sharequeue.domain.values import READ_COMMITTED
from sharequeue.kafka.reading import RecordReader, Scanner
from sharequeue.kafka.topics import LogOffsets, Topics, is_same

CLOCKS_APART = timedelta(minutes=5)
"""How much the clocks of the database, a writer and the broker may differ."""
MOST_RECORDS = 200_000
"""How many records of a topic are read for one."""


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """What Kafka has of a record."""

    topic_id: str | None = None
    """The id that the topic has now; None if it is not known."""
    log: LogOffsets | None = None
    """The start and end of its partition; None if they are not known."""
    produced_ms: int | None = None
    """Its timestamp, in milliseconds since 1970; None if it is not in the log."""
    redriven_from: str | None = None
    """The letter from which it was sent back: topic, partition and offset, joined by colons."""
    traceparent: str | None = None
    remark: str = ""
    """Why it is not known; empty if it is."""


@dataclass(frozen=True, slots=True)
class SearchedRecord:
    """The record that was found, with its place; or why there is none."""

    letter: DeadLetter | None = None
    topic_id: str = ""
    remark: str = ""


class RecordSearch:
    """Looks for records of one Kafka cluster, with the same clients each time. A context manager."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._clients = ExitStack()
        self._topics = self._clients.enter_context(Topics(settings))
        self._reader = self._clients.enter_context(RecordReader(settings))
        self._scanner = self._clients.enter_context(Scanner(settings, READ_COMMITTED))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clients.close()

    def logged(self, topic: str, partition: int, offset: int) -> LoggedRecord:
        """Return what Kafka has of a record. Raises nothing: the remark has the reason."""
        try:
            info = self._topics.describe([topic]).get(topic)
            if info is None:
                return LoggedRecord(remark=f"there is no topic {topic} on the broker")
            if partition >= info.partitions:
                return LoggedRecord(
                    info.topic_id, remark=f"{topic} has no partition {partition} on the broker"
                )
            log = self._topics.offsets(topic)[partition]
            if remark := _outside(log, offset):
                return LoggedRecord(info.topic_id, log, remark=remark)
            found = next(self._reader.read(topic, partition, OffsetSet.of((offset, offset + 1))), None)
        except (ShareError, KafkaException, SettingMissing) as error:
            return LoggedRecord(remark=f"Kafka cannot be asked: {error}")
        if found is None:
            remark = "no record is at this offset: a transaction marker, or compaction has removed the record"
            return LoggedRecord(info.topic_id, log, remark=remark)
        record = DeadLetter.of(found)
        return LoggedRecord(
            info.topic_id,
            log,
            record.written_ms,
            record.header(REDRIVE_FROM),
            valid(record.header(HEADER)),
            record.problem or "",
        )

    def first(
        self,
        topic: str,
        is_it: Callable[[DeadLetter], bool],
        *,
        since: datetime,
        until: datetime,
        topic_id: str | None = None,
        partition: int | None = None,
        first: Mapping[int, int] = MappingProxyType({}),
    ) -> SearchedRecord:
        """Return the first record between two times that `is_it` accepts. Raises nothing: the remark has the reason.

        `topic_id` is the id that the topic must have; `partition` is the only one that is read, if the topic has it;
        `first` has offsets before which the record cannot be.
        """
        try:
            there = self._topics.describe([topic])
            if topic not in there:
                return SearchedRecord(remark=f"there is no topic {topic} on the broker")
            if topic_id is not None and not is_same(there, topic, topic_id):
                return SearchedRecord(remark=f"topic {topic} was created again since")
            logs = self._topics.offsets(topic)
            starts = self._topics.offsets_for_times(topic, milliseconds_of(since - CLOCKS_APART))
            ends = self._topics.offsets_for_times(topic, milliseconds_of(until + CLOCKS_APART))
            wanted = logs if partition not in logs else {partition: logs[partition]}
            begins = {
                at: max(_or(starts.get(at), log.log_end), first.get(at, 0)) for at, log in wanted.items()
            }
            stops = {at: _or(ends.get(at), log.log_end) for at, log in wanted.items()}
            records = read_dead_letters(self._settings, topic, begins, wanted, stops, self._scanner)
            with closing(records):
                found = next(filter(is_it, islice(records, MOST_RECORDS)), None)
        except (ShareError, KafkaException, SettingMissing) as error:
            return SearchedRecord(remark=f"topic {topic} cannot be read: {error}")
        if found is not None:
            return SearchedRecord(found, there[topic].topic_id)
        between = f"{since - CLOCKS_APART:%Y-%m-%d %H:%M:%S} and {until + CLOCKS_APART:%Y-%m-%d %H:%M:%S} UTC"
        return SearchedRecord(remark=f"not found in {topic} among the records of between {between}")


def _outside(log: LogOffsets, offset: int) -> str:
    """Return why a log cannot have a record at an offset; empty if it can."""
    if offset >= log.log_end:
        return f"the offset is beyond the end of the log, {log.log_end}"
    if offset < log.log_start:
        return f"retention has removed the record: the log starts at {log.log_start}"
    return ""


def _or(offset: int | None, otherwise: int) -> int:
    return otherwise if offset is None else offset
