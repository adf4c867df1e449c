"""Find the records that an open transaction hides from readers of committed records.

Such a reader ends at the last stable offset, the first record of the oldest open transaction, also if later records
are committed. The client cannot ask a broker for the producer of a transaction. So the first hidden record is read
uncommitted: its timestamp and its headers show since when the transaction is open, and whose it is.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from confluent_kafka import KafkaException

from sharequeue.deadletters.letters import BATCH, DeadLetter, read_dead_letters
from sharequeue.deadletters.redrive.selection import REDRIVE_FROM
from sharequeue.domain.errors import BrokerNotAvailable
from sharequeue.domain.moments import milliseconds_of, moment_of
from sharequeue.domain.names import plural
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.kafka.reading import RecordReader
from sharequeue.kafka.topics import LogOffsets, Topics

SETTLED_WITHIN_SECONDS = 10.0
CLOCKS_APART = timedelta(days=1)
"""How much the clocks of the database, a writer and the broker may differ; a large value only costs time."""


@dataclass(frozen=True, slots=True)
class HiddenRecords:
    """Records of one partition that an open transaction hides."""

    topic: str
    partition: int
    offset: int
    """The first of them, with which the transaction begins."""
    offsets: int
    """The offsets from there to the log's end."""
    first: DeadLetter | None
    """The first record; None if it could not be read."""

    def __str__(self) -> str:
        """Return how many there are, since when, whose, and what to do."""
        first = self.first
        written = None if first is None or first.written_ms is None else moment_of(first.written_ms)
        since = "" if written is None else f" since {written:%Y-%m-%d %H:%M:%S} UTC"
        return (
            f"{plural(self.offsets, 'offset')} of {self.topic}-{self.partition} from {self.offset} on are behind a "
            f"transaction that {_writer(first)} has open{since}, and cannot be read until it ends: a living writer "
            "ends it, and that of a dead one is aborted after its transaction.timeout.ms, 1 min by default. If it "
            f"stays, `kafka-transactions.sh describe-producers --topic {self.topic} --partition {self.partition}` "
            "shows its producer, and `kafka-transactions.sh abort` ends it"
        )


def _writer(first: DeadLetter | None) -> str:
    """Return the writer of the first record of a transaction, by its headers."""
    if first is None:
        return "an unknown producer"
    if origin := first.header(REDRIVE_FROM):
        return f"a redrive of {origin.rsplit(':', 2)[0]}"
    if first.header(BATCH) and first.group is not None:
        return f"the writer of group {first.group}'s dead letters"
    return "another program" if first.foreign else f"a writer of group {first.group}'s dead letters"


def hidden_records(settings: Settings, topic: str, logs: Mapping[int, LogOffsets]) -> list[HiddenRecords]:
    """Return what open transactions hide in a topic with these logs, by partition. Raises nothing of the broker."""
    found: list[HiddenRecords] = []
    with RecordReader(settings) as reader:
        for partition, log in sorted(logs.items()):
            at, count = log.last_stable_offset, log.log_end - log.last_stable_offset
            if count > 0:
                found.append(HiddenRecords(topic, partition, at, count, _first(reader, topic, partition, at)))
    return found


def _first(reader: RecordReader, topic: str, partition: int, offset: int) -> DeadLetter | None:
    try:
        messages = list(reader.read(topic, partition, OffsetSet.of((offset, offset + 1))))
    except (KafkaException, BrokerNotAvailable):
        return None
    return DeadLetter.of(messages[0]) if messages else None


def read_settled(
    settings: Settings, topic: str, first: Mapping[int, int] | datetime | None = None
) -> Generator[DeadLetter, None, None]:
    """Yield the committed records of a topic, none hidden, from the first offset of each partition, or from a time.

    From a time are the records whose timestamp is at most a day before it. Raises `BrokerNotAvailable` while an
    open transaction hides some of them, and as `read_dead_letters`.
    """
    with Topics(settings) as topics:
        logs = topics.offsets(topic)
        if not topics.settle([topic], SETTLED_WITHIN_SECONDS):
            hidden = hidden_records(settings, topic, topics.offsets(topic))
            raise BrokerNotAvailable(
                f"What is written in {topic} cannot be known: {'; '.join(map(str, hidden))}. Then try again."
            )
        if isinstance(first, datetime):
            since = min(first, datetime.now(UTC)) - CLOCKS_APART
            starts = topics.offsets_for_times(topic, milliseconds_of(since))
            first = {
                at: log.log_end if (start := starts.get(at)) is None else start for at, log in logs.items()
            }
    settled = {at: LogOffsets(log.log_start, log.log_end, log.log_end) for at, log in logs.items()}
    yield from read_dead_letters(settings, topic, first or {}, settled)
