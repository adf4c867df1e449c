"""The flights as records: a fixed sequence, spread over four partitions as Kafka itself would place the keys."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime

import numpy as np
import pytest

from pipelines.flights.records import FLIGHTS, PARTITIONS, flights, length, murmur2, partitions_of, records_of


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_placed_by_kafkas_own_hash(key: bytes, signed: int) -> None:
    """The values that Kafka's own test of `Utils.murmur2` expects."""
    assert murmur2(key) == signed & 0xFFFFFFFF


def test_the_flights_have_the_counts_that_the_demo_names() -> None:
    """336,776 flights: 8,255 cancelled, 1,175 that left and have no arrival delay, 327,346 others."""
    year = flights()
    cancelled = year["dep_time"].isna()
    assert len(year) == FLIGHTS
    assert int(cancelled.sum()) == 8255
    assert int((~cancelled & year["arr_delay"].isna()).sum()) == 1175


def test_a_record_is_json_without_nan() -> None:
    """Whole numbers stay whole, what is missing is null, and each record can be read by itself."""
    cancelled = np.flatnonzero(flights()["dep_time"].isna())[:1]
    ((value, key, timestamp),) = records_of(0, cancelled)
    flight = json.loads(value)
    assert b"NaN" not in value
    assert b".0" not in value
    assert flight["dep_time"] is None
    assert isinstance(flight["sched_dep_time"], int)
    assert key.decode() == f"{flight['carrier']}{flight['flight']}"
    hour = datetime.fromisoformat(flight["time_hour"])
    assert datetime.fromtimestamp(timestamp / 1000, UTC) == hour.replace(minute=flight["minute"])


def test_records_are_in_the_order_of_their_timestamps() -> None:
    """So offsets for a time, and a start by duration, mean what they say."""
    timestamps = [timestamp for _, _, timestamp in records_of(0, np.arange(20_000))]
    assert timestamps == sorted(timestamps)


def test_keys_spread_over_the_partitions() -> None:
    """No partition has more than a tenth above its share."""
    sizes = Counter(partitions_of(0, FLIGHTS).tolist())
    assert set(sizes) == set(range(PARTITIONS))
    assert max(sizes.values()) < 1.1 * FLIGHTS / PARTITIONS


def test_the_next_year_goes_to_the_same_partitions() -> None:
    """What comes after the last flight is the first one, a year later, under the same key."""
    (first,), (again,) = records_of(0, np.array([0])), records_of(FLIGHTS, np.array([0]))
    assert first[1] == again[1]
    assert json.loads(first[0])["year"] + 1 == json.loads(again[0])["year"]
    assert json.loads(again[0])["time_hour"].startswith("2014-01-01")
    assert partitions_of(0, 1).tolist() == partitions_of(FLIGHTS, 1).tolist()


@pytest.mark.parametrize("count", [0, 1, 7, 5000, FLIGHTS, FLIGHTS + 3, 2 * FLIGHTS + 100])
def test_the_number_of_produced_flights_follows_from_the_log_ends(count: int) -> None:
    """Partitions that hold the first n records say n, also past the end of the year."""
    ends = np.bincount(partitions_of(0, count), minlength=PARTITIONS).tolist()
    assert length(ends) == count
