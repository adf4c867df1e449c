"""Label scanned records with their delivery count and lease id.

If a whole scan is leased, or only few offsets of it, the labels are looked up in a constant map. Otherwise they come
from a broadcast join with the leased ranges. The ranges are cut into buckets of offsets, which makes it an equi-join:
single offsets far apart are found as fast as one range. Scans that are labelled in the same way are read as one
DataFrame: each further column of each scan costs the driver more than the scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from sharequeue.domain.offsets import OffsetSet, RangeBounds
from sharequeue.spark.reading.plan import Scan, Segment, TopicPartition
from sharequeue.spark.sql_texts import select_texts

MOST_CONSTANTS = 32
"""The most topic-partitions, or offsets, that are looked up in a map, one after the other; more use the join."""
FEW_RECORDS = 100_000
"""The most offsets of a scan that looks up by offset: beyond that the join is faster for each record."""
MOST_BUCKETS = 200_000
"""The target number of broadcast rows; with more ranges than that, each takes two."""


@dataclass(frozen=True, slots=True)
class Leased:
    """Offsets of one topic-partition with the same lease and delivery count."""

    topic: str
    partition: int
    lease_id: int
    delivery_count: int
    offsets: OffsetSet


class Labels(Protocol):
    """A way to label the records of some segments."""

    def on(self, records: DataFrame, columns: Sequence[str]) -> DataFrame:
        """Return these columns, which are texts of SQL, of the leased ones of these records, and `delivery_count` and
        `lease_id`.
        """
        ...


@dataclass(frozen=True, slots=True)
class ByPartition:
    """All records of a topic-partition are leased, and have the same labels."""

    owners: Mapping[TopicPartition, Leased]

    def on(self, records: DataFrame, columns: Sequence[str]) -> DataFrame:
        """Return the records with the labels of their topic-partition."""
        counts = {at: piece.delivery_count for at, piece in self.owners.items()}
        ids = {at: piece.lease_id for at, piece in self.owners.items()}
        labels = f"{_by_topic(counts, 'int')} as delivery_count", f"{_by_topic(ids, 'bigint')} as lease_id"
        return select_texts(records, *columns, *labels)


@dataclass(frozen=True, slots=True)
class ByOffset:
    """Few offsets of one topic are leased."""

    few: Mapping[tuple[int, int], Leased]
    """By partition and offset."""

    def on(self, records: DataFrame, columns: Sequence[str]) -> DataFrame:
        """Return the records at these offsets."""
        key = _bucket_key("offset", "partition")
        keys = {at: _bucket_key(f"{at[1]}L", str(at[0])) for at in self.few}
        counts = mapped({keys[at]: piece.delivery_count for at, piece in self.few.items()}, key, "int")
        ids = mapped({keys[at]: piece.lease_id for at, piece in self.few.items()}, key, "bigint")
        labelled = select_texts(records, *columns, f"{counts} as delivery_count", f"{ids} as lease_id")
        return labelled.filter("lease_id is not null")


@dataclass(frozen=True, slots=True)
class ByRange:
    """Many ranges are leased."""

    segments: Sequence[Segment]
    pieces: Sequence[Leased]

    def on(self, records: DataFrame, columns: Sequence[str]) -> DataFrame:
        """Return the records that a join finds in the ranges."""
        more = ["topic = r_topic"] if len({each.topic for each in self.segments}) > 1 else []
        joined = in_ranges(records, ranges_in(self.segments, self.pieces), "partition", *more)
        labels = "r_delivery_count as delivery_count", "r_lease_id as lease_id"
        return select_texts(joined, *columns, *labels)


def labelled_alike(scans: Sequence[Scan], pieces: Sequence[Leased]) -> list[tuple[list[Scan], Labels]]:
    """Group the scans whose records are labelled in the same way, each group with its labels."""
    groups: list[tuple[list[Scan], Labels]] = []
    for scan in scans:
        own = _labels(scan.segments, pieces)
        for at, (group, labels) in enumerate(groups):
            if type(labels) is not type(own):
                continue
            together = [*group, scan]
            both = _labels([segment for each in together for segment in each.segments], pieces)
            if type(both) is type(own):
                groups[at] = (together, both)
                break
        else:
            groups.append(([scan], own))
    return groups


def _labels(segments: Sequence[Segment], pieces: Sequence[Leased]) -> Labels:
    if (owners := _sole_owners(segments, pieces)) is not None:
        return ByPartition(owners)
    if (few := _few(segments, pieces)) is not None:
        return ByOffset(few)
    return ByRange(segments, pieces)


def _sole_owners(
    segments: Sequence[Segment], pieces: Sequence[Leased]
) -> dict[TopicPartition, Leased] | None:
    """Return the single lease and delivery count of each topic-partition; None if one has several, or if a segment
    has holes.
    """
    if len({(segment.topic, segment.partition) for segment in segments}) > MOST_CONSTANTS:
        return None
    there = _by_partition(pieces)
    owners: dict[TopicPartition, Leased] = {}
    for segment in segments:
        whole = OffsetSet.of((segment.first, segment.end))
        at = (segment.topic, segment.partition)
        owner = next((piece for piece in there.get(at, ()) if not whole - piece.offsets), None)
        if owner is None or owners.setdefault(at, owner) is not owner:
            return None
    return owners


def _by_topic(values: Mapping[TopicPartition, int], kind: str) -> str:
    """Return an SQL expression for a value by topic and partition."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), value in values.items():
        topics.setdefault(topic, {})[str(partition)] = value
    if len(topics) == 1:
        return mapped(topics.popitem()[1], "partition", kind)
    cases = (
        f"when '{topic}' then {mapped(of_topic, 'partition', kind)}" for topic, of_topic in topics.items()
    )
    return f"case topic {' '.join(cases)} end"


def mapped(values: Mapping[str, int], key: str, kind: str, suffix: str = "") -> str:
    """Return an SQL expression for the value of a key, null for other keys; `suffix` is that of the keys' literals.

    A number in an expression becomes part of the code that Spark generates, and each round has other lease ids, so
    Spark would compile every stage again in every round. A map is passed to the generated code, which stays the same.
    """
    entries = ", ".join(f"{each}{suffix}, cast({value} as {kind})" for each, value in values.items())
    return f"map({entries})[{key}]"


def _few(segments: Sequence[Segment], pieces: Sequence[Leased]) -> dict[tuple[int, int], Leased] | None:
    """Return the leased partitions and offsets of a small scan of one topic; None if there are many."""
    if (
        len({segment.topic for segment in segments}) > 1
        or sum(segment.records for segment in segments) > FEW_RECORDS
    ):
        return None
    there = _by_partition(pieces)
    found: dict[tuple[int, int], Leased] = {}
    for segment in segments:
        whole = OffsetSet.of((segment.first, segment.end))
        for piece in there.get((segment.topic, segment.partition), ()):
            inside = piece.offsets & whole
            if len(found) + inside.count > MOST_CONSTANTS:
                return None
            for first, end in inside.ranges:
                found |= {(segment.partition, offset): piece for offset in range(first, end)}
    return found


def in_ranges(records: DataFrame, ranges: pa.Table, key: str, *more: str) -> DataFrame:
    """Return the records at the offsets of ranges that have the same `key`, a whole number, with the ranges' columns.

    The ranges have `r_first, r_last` and the key with the prefix `r_`; `more` are further conditions.
    """
    width = _bucket_exponent(ranges)
    within = f"explode(sequence(shiftright(r_first, {width}), shiftright(r_last, {width}))) as bucket"
    buckets = (
        records.sparkSession.createDataFrame(ranges)
        .selectExpr("*", within)
        .selectExpr("*", f"{_bucket_key('bucket', f'r_{key}')} as r_key")
    )
    matches = [
        f"{_bucket_key(f'shiftright(offset, {width})', key)} = r_key",
        f"{key} = r_{key}",
        "offset between r_first and r_last",
        *more,
    ]
    return records.join(fn.broadcast(buckets), fn.expr(" and ".join(matches)), "inner")


def _bucket_key(bucket: str, partition: str) -> str:
    # The fastest hash relation takes one long. Collisions are harmless: the rest of the condition decides.
    return f"{bucket} ^ shiftleft(cast({partition} as bigint), 48)"


def ranges_in(segments: Sequence[Segment], pieces: Sequence[Leased]) -> pa.Table:
    """Return the leased ranges inside some segments, one row each."""
    there = _by_partition(pieces)
    owners: list[Leased] = []
    bounds: list[RangeBounds] = []
    counts: list[int] = []
    for segment in segments:
        whole = OffsetSet.of((segment.first, segment.end))
        for piece in there.get((segment.topic, segment.partition), ()):
            inside = segment.first <= piece.offsets.first and piece.offsets.end <= segment.end
            inner = (piece.offsets if inside else piece.offsets & whole).bounds
            owners.append(piece)
            bounds.append(inner)
            counts.append(len(inner))

    def of_owners(values: list[int], kind: type[np.signedinteger[Any]]) -> pa.Array:
        return pa.array(np.repeat(np.array(values, kind), counts))

    topics = pa.array([each.topic for each in owners], pa.string())
    ends = np.concatenate(bounds)
    return pa.table(
        {
            "r_topic": topics.take(of_owners(list(range(len(owners))), np.int64)),
            "r_partition": of_owners([each.partition for each in owners], np.int32),
            "r_first": pa.array(ends[:, 0]),
            "r_last": pa.array(ends[:, 1] - 1),
            "r_delivery_count": of_owners([each.delivery_count for each in owners], np.int32),
            "r_lease_id": of_owners([each.lease_id for each in owners], np.int64),
        }
    )


def covered(pieces: Iterable[Leased]) -> dict[TopicPartition, OffsetSet]:
    """Return the leased offsets of each topic-partition, over all leases and delivery counts."""
    return {
        at: OffsetSet.union(piece.offsets for piece in some) for at, some in _by_partition(pieces).items()
    }


def _by_partition(pieces: Iterable[Leased]) -> dict[TopicPartition, list[Leased]]:
    found: dict[TopicPartition, list[Leased]] = {}
    for piece in pieces:
        if piece.offsets:
            found.setdefault((piece.topic, piece.partition), []).append(piece)
    return found


def _bucket_exponent(ranges: pa.Table) -> int:
    """Return the exponent of the narrowest bucket width (a power of two) with which the ranges fall into about
    MOST_BUCKETS buckets.
    """
    lengths = pc.subtract(ranges["r_last"], ranges["r_first"]).to_numpy()
    most = max(MOST_BUCKETS, 2 * len(lengths))
    exponent = 0
    while int((lengths >> exponent).sum()) + len(lengths) > most:
        exponent += 1
    return exponent
