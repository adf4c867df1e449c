"""Choose which leased records are read from kept files, and read these.

A record that an earlier lease released may be kept in files. It is read from there, so that a second pass over a few
records does not read the log between them. All others are read from the log. This decision is made only here, and
without any I/O; `sharequeue.spark.kept_records` finds out what is kept. Both ways give the same records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import KeptRow, Lease
from sharequeue.spark.raw_records import from_text
from sharequeue.spark.reading.labels import in_ranges, mapped
from sharequeue.spark.reading.plan import TopicPartition, plan_scans

SPARSE = 4
"""Released records are kept if they are at most one in so many of the offsets between the first and the last of their
lease: more are read as fast by a scan, and after a failure of all records their topic would be stored twice.
"""
LARGE = 100_000
"""Offsets in a scan from which on its records are kept while they are read: of fewer, the scan takes no longer than
the job that keeps them.
"""
MOST_LOOKED_UP = 100
"""The most folders whose rows are looked up in a map, one after the other; more use the join."""


@dataclass(frozen=True, slots=True)
class FromFiles:
    """Offsets with the same lease and delivery count that are read from one folder."""

    row: KeptRow
    lease_id: int
    delivery_count: int
    offsets: OffsetSet


def divide(
    leases: Sequence[Lease], kept: Mapping[int, Sequence[KeptRow]]
) -> tuple[list[FromFiles], list[Lease]]:
    """Return what of these leases is read from kept files, and the leases with what is read from the log.

    `kept` has the rows of each lease, by its id. Every leased offset is read exactly once: of several rows with an
    offset the first one counts.
    """
    files: list[FromFiles] = []
    log: list[Lease] = []
    for lease in leases:
        rows = kept.get(lease.lease_id, ())
        deliveries = []
        for delivery in lease.deliveries:
            left = delivery.offsets
            for row in rows:
                if some := left & row.offsets:
                    files.append(FromFiles(row, lease.lease_id, delivery.delivery_count, some))
                    left -= some
            if left:
                deliveries.append(replace(delivery, offsets=left))
        if deliveries:
            log.append(replace(lease, deliveries=tuple(deliveries)))
    return files, log


def is_sparse(some: OffsetSet, leased: OffsetSet) -> bool:
    """Return whether some offsets of a lease are few of those that a scan of it reads."""
    return some.count * SPARSE <= leased.end - leased.first


def is_scattered(leases: Sequence[Lease]) -> bool:
    """Return whether a scan of these leases would read many records that they do not have."""
    offsets: dict[TopicPartition, OffsetSet] = {}
    for lease in leases:
        at = (lease.share_partition.topic, lease.share_partition.partition)
        offsets[at] = offsets.get(at, EMPTY) | lease.offsets
    scanned = sum(segment.records for scan in plan_scans(offsets) for segment in scan.segments)
    return bool(offsets) and scanned >= LARGE + SPARSE * sum(of.count for of in offsets.values())


def records_from(
    rows: DataFrame, pieces: Sequence[FromFiles], in_files: Mapping[int, OffsetSet], *, headers: bool
) -> DataFrame:
    """Return the records of these pieces, in the columns of leased records, from rows of their folders, whose
    offsets are `in_files`, by the lease that has kept them.

    If each piece has all rows of its folder, as after one release and one lease, its lease and its delivery count are
    looked up in a map. Otherwise they come from a join, which takes another Spark job.
    """
    owners = {piece.row.lease_id: piece for piece in pieces}
    whole = len(owners) == len(pieces) <= MOST_LOOKED_UP and all(
        piece.offsets == in_files[at] for at, piece in owners.items()
    )
    if not whole:
        joined = in_ranges(rows, _runs(pieces), "lease_id")
        # The lease that has kept a record, until its own takes the place.
        labels = ("r_delivery_count as delivery_count", "r_new_lease_id as lease_id")
        return from_text(joined, *labels, headers=headers)
    counts = mapped({str(at): piece.delivery_count for at, piece in owners.items()}, "lease_id", "int", "L")
    ids = mapped({str(at): piece.lease_id for at, piece in owners.items()}, "lease_id", "bigint", "L")
    return from_text(rows, f"{counts} as delivery_count", f"{ids} as lease_id", headers=headers)


def _runs(pieces: Sequence[FromFiles]) -> pa.Table:
    bounds = [piece.offsets.bounds for piece in pieces]
    counts = [len(some) for some in bounds]
    ends = np.concatenate(bounds)

    def of_pieces(values: list[int]) -> pa.Array:
        return pa.array(np.repeat(np.array(values, np.int64), counts))

    return pa.table(
        {
            "r_lease_id": of_pieces([piece.row.lease_id for piece in pieces]),
            "r_first": pa.array(ends[:, 0]),
            "r_last": pa.array(ends[:, 1] - 1),
            "r_delivery_count": of_pieces([piece.delivery_count for piece in pieces]).cast(pa.int32()),
            "r_new_lease_id": of_pieces([piece.lease_id for piece in pieces]),
        }
    )
