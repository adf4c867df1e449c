"""Read exactly the records of leased offsets from Kafka.

This uses confluent-kafka's ordinary Consumer, assigned by hand: it joins no group and commits nothing. It reads ahead
up to a limit, and keeps these records until they are leased. An offset counts as a gap (a control record, a hole of
compaction, an aborted transaction) only when reading has passed it: a later record of the same partition arrived, or
the broker reported the end of the log behind it. Silence never makes a gap.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config, credentials
from sharequeue.kafka.damage import is_unreadable
from sharequeue.kafka.reading import LIMIT, READING, open_consumer, passes, unreadable_records

_log = logging.getLogger(__name__)

Key = tuple[str, int]
"""Topic and partition."""

AT_ONCE = 1000
PARTITION_BYTES = 1 << 18
"""Bytes of one partition in one fetch. Records of the others are kept until they are leased, and keeping many is
slow: Python's garbage collector scans them."""
NEAR_BYTES = 4 << 20
"""Up to this distance the next lease is reached by reading on: a seek discards what the client has fetched."""
AHEAD_RECORDS = 50_000
"""Maximum number of unleased records that are kept, over all partitions. A partition that has its part of them is
paused, which discards what the client has fetched of it: so a fetch of one megabyte of small records must fit in."""
FETCH_WAIT_MS = 100
"""How long the broker holds a fetch at the log's end. The end is reported after it, and a seek waits for it."""
SLICE_S = 0.05


@dataclass(slots=True)
class _Log:
    """The progress of reading in one partition."""

    position: int
    """Everything below it has been passed."""
    ahead: list[Message] = field(default_factory=list)
    """Messages that arrived and were not requested yet, ascending."""
    paused: bool = False
    error: KafkaError | None = None
    end: int = 0
    """The end of the log as the broker reported it: everything below it has arrived."""
    seen_end: int = 0
    """One past the last record that arrived, whether leased or not."""

    def drop_first(self, count: int) -> None:
        """Drop the first `count` records of those ahead: they have been passed."""
        if count > 0:
            self.position = _offset(self.ahead[count - 1]) + 1
            del self.ahead[:count]


@dataclass(slots=True)
class ReadRecords:
    """The result of reading leased offsets: the records, and the passed offsets, with a record or without."""

    messages: list[Message]
    passed: OffsetSet
    error: KafkaError | None = None


class LeaseReader:
    """Reads leased offsets of many partitions. For one thread."""

    def __init__(
        self, settings: Settings, given: Mapping[str, Any], isolation_level: str, ahead_bytes: int
    ) -> None:
        config = {
            **client_config(settings),
            "client.id": "sharequeue",
            "max.partition.fetch.bytes": PARTITION_BYTES,
            **given,
            **READING,
            LIMIT: given.get(LIMIT, READING[LIMIT]),
            "group.id": "sharequeue.share-consumer",
            "isolation.level": isolation_level,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "queued.min.messages": AHEAD_RECORDS,
            # A full queue is empty again in milliseconds; by default the client would wait a second.
            "fetch.queue.backoff.ms": 10,
            "queued.max.messages.kbytes": min(max(1, ahead_bytes // 1024), 65_536),
        }
        config.setdefault("reconnect.backoff.max.ms", 1000)
        self._settings, self._credentials = settings, credentials(settings)
        self.isolation_level = isolation_level
        self._ahead_bytes = ahead_bytes
        self._config = config
        self._consumer = open_consumer(config)
        self._logs: dict[Key, _Log] = {}
        self._fetched_again: set[Key] = set()
        """Partitions with an unreadable batch in the current poll: what follows it in the poll is fetched again."""
        self.mean_bytes: dict[str, float] = {}
        """Mean size of the recent records of each topic."""

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Set new credentials for the next time that the reader authenticates."""
        self._config = {**self._config, "sasl.username": username, "sasl.password": password}
        self._consumer.set_sasl_credentials(username, password)

    @property
    def outdated(self) -> bool:
        """Whether a file with the password, the key or the certificates has changed since the client was made."""
        return credentials(self._settings) != self._credentials

    def watch(self, key: Key, position: int) -> None:
        """Start to read a partition at this position, unless it is being read already."""
        if key not in self._logs:
            self._consumer.incremental_assign([TopicPartition(*key, position)])
            self._logs[key] = _Log(position, seen_end=position)

    def keep_only(self, keys: Collection[Key]) -> None:
        """Stop reading all other partitions."""
        for key in [key for key in self._logs if key not in keys]:
            self._drop(key)

    def leave(self, key: Key) -> None:
        """Stop reading a partition, and forget what was read of it."""
        if key in self._logs:
            self._drop(key)

    def seen_ends(self) -> dict[Key, int]:
        """Return one past the last record that arrived, by partition."""
        return {key: log.seen_end for key, log in self._logs.items()}

    def wait(self, seconds: float) -> None:
        """Poll; wait for the first record for up to `seconds`."""
        if not self._logs:
            time.sleep(seconds)
            return
        self._pump(1, seconds)
        self._pump(AT_ONCE, 0)

    def move_to(self, positions: Mapping[Key, int]) -> None:
        """Move to all these positions before waiting for the first record.

        The broker holds a fetch at the log's end: if partitions were moved one by one, they would wait one by one.
        """
        for key, position in positions.items():
            self._move_to(key, position)

    def read(
        self, key: Key, wanted: OffsetSet, max_bytes: int, patience: float, stop: Callable[[], bool]
    ) -> ReadRecords:
        """Read these offsets, in order.

        It stops before the end when ``max_bytes`` are read, when nothing has arrived for ``patience`` seconds, or
        when ``stop`` returns true.
        """
        messages: list[Message] = []
        read_bytes = 0
        done = wanted.first
        for first, end in passes(wanted):
            log = self._move_to(key, first)
            of_pass = wanted & OffsetSet.of((first, end))
            heard = time.monotonic()
            while log.position < end:
                if log.ahead:
                    below = _index(log.ahead, end)
                    passed = below < len(log.ahead)  # a later record: below the end all is there
                    found = _of(log.ahead, of_pass)
                    sizes = list(accumulate(map(len, found), initial=read_bytes))
                    if sizes[-1] >= max_bytes:
                        found = found[: bisect_left(sizes, max_bytes)]
                        log.drop_first(_index(log.ahead, _offset(found[-1]) + 1))
                        return ReadRecords(messages + found, _below(wanted, log.position))
                    messages += found
                    read_bytes = sizes[-1]
                    log.drop_first(below)
                    if passed:
                        log.position = end
                    continue
                if log.end > log.position:
                    log.position = log.end
                    continue
                if log.error is not None:
                    error = log.error
                    self._drop(key)
                    return ReadRecords(messages, _below(wanted, max(done, min(log.position, end))), error)
                if stop() or time.monotonic() - heard > patience:
                    return ReadRecords(messages, _below(wanted, log.position))
                if log.paused:
                    self._consumer.resume([TopicPartition(*key)])
                    log.paused = False
                before = len(log.ahead), log.end
                mean = self.mean_bytes.get(key[0], 1024.0)
                few = max(1, int((max_bytes - read_bytes) / mean))
                self._pump(min(end - log.position, AT_ONCE, few), SLICE_S, key)
                if before != (len(log.ahead), log.end):
                    heard = time.monotonic()
            done = end
        return ReadRecords(messages, wanted)

    def log_start(self, key: Key, timeout: float) -> int | None:
        """Return the start of the partition's log from the broker; None if it does not respond in time."""
        try:
            start, _ = self._consumer.get_watermark_offsets(TopicPartition(*key), timeout=timeout)
        except KafkaException:
            return None
        return int(start)

    def _move_to(self, key: Key, offset: int) -> _Log:
        log = self._logs.get(key)
        if log is None:
            self.watch(key, offset)
            return self._logs[key]
        log.drop_first(_index(log.ahead, offset))
        near = NEAR_BYTES / self.mean_bytes.get(key[0], 1024.0)
        if log.position <= offset and (log.ahead or offset - log.position <= near):
            return log
        try:
            self._consumer.seek(TopicPartition(*key, offset))
        except KafkaException as error:
            _log.debug("seek of %s to %d failed, assigning the partition again: %s", key, offset, error)
            self._drop(key)
            self.watch(key, offset)
            return self._logs[key]
        log.ahead.clear()
        log.position, log.end = offset, 0
        return log

    def _drop(self, key: Key) -> None:
        del self._logs[key]
        self._consumer.incremental_unassign([TopicPartition(*key)])

    def _pump(self, most: int, seconds: float, wanted: Key | None = None) -> None:
        """Add the messages that the client has read; pause partitions that have enough and are not wanted now."""
        self._fetched_again.clear()
        # Grouped by partition, then by topic, so that no line of Python runs for each record.
        for partition, of_partitions in groupby(self._consumer.consume(most, seconds), Message.partition):
            for topic, messages in groupby(of_partitions, Message.topic):
                key: Any = topic, partition
                log = self._logs.get(key)
                if log is not None and key not in self._fetched_again:
                    self._take_in(str(topic), log, list(messages))
        for key, log in self._logs.items():
            if key != wanted and not log.paused and len(log.ahead) >= self._ahead_bound(key[0]):
                self._consumer.pause([TopicPartition(*key)])
                log.paused = True

    def _take_in(self, topic: str, log: _Log, messages: list[Message]) -> None:
        """Add messages of one partition to those read ahead, and note what the broker reports of its log."""
        if any(map(Message.error, messages)):
            records: list[Message] = []
            for message in messages:
                error = message.error()
                if error is None:
                    records.append(message)
                elif is_unreadable(message):
                    records += self._unreadable(message, log, [*log.ahead[-1:], *records])
                    break
                elif error.code() == KafkaError._PARTITION_EOF:
                    log.end = max(log.end, _offset(message))
                else:
                    log.error = error
            messages = records
        messages = messages[_index(messages, log.position) :]
        if messages:
            log.ahead += messages
            log.seen_end = max(log.seen_end, _offset(messages[-1]) + 1)
            mean = sum(map(len, messages)) / len(messages)
            weight = 0.95 ** len(messages)
            self.mean_bytes[topic] = max(1.0, weight * self.mean_bytes.get(topic, mean) + (1 - weight) * mean)

    def _unreadable(self, report: Message, log: _Log, before: Sequence[Message]) -> list[Message]:
        """Return a message for each record of an unreadable batch, and read on behind it."""
        position = _offset(before[-1]) + 1 if before else log.position
        records = unreadable_records(self._config, report, position)
        key: Key = report.topic(), report.partition()  # type: ignore[assignment]
        self._consumer.incremental_unassign([TopicPartition(*key)])
        self._consumer.incremental_assign([TopicPartition(*key, _offset(records[-1]) + 1)])
        log.paused = False
        self._fetched_again.add(key)
        return records

    def _ahead_bound(self, topic: str) -> int:
        most = min(AHEAD_RECORDS, int(self._ahead_bytes / self.mean_bytes.get(topic, 1024.0)))
        return max(1, most // max(1, len(self._logs)))


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None  # noqa: S101  (every message of a consumer has one)
    return offset


def _index(messages: Sequence[Message], offset: int) -> int:
    """Return how many messages of an ascending list are below an offset."""
    return bisect_left(messages, offset, key=_offset)


def _of(messages: list[Message], wanted: OffsetSet) -> list[Message]:
    """Return the wanted messages of an ascending list."""
    found: list[Message] = []
    for first, end in wanted.ranges:
        found += messages[_index(messages, first) : _index(messages, end)]
    return found


def _below(wanted: OffsetSet, offset: int) -> OffsetSet:
    return wanted & OffsetSet.of((0, offset)) if offset > 0 else OffsetSet()
