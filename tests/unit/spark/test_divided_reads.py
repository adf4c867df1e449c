"""What of a lease is read from kept files and what from the log: every offset once."""

from __future__ import annotations

import random

from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import KeptRow
from sharequeue.spark.reading.kept import divide
from tests.leases import lease_of


def row(keeper: int, *ranges: tuple[int, int]) -> KeptRow:
    return KeptRow(keeper, f"/output/leases=1/sharequeue_lease={keeper}", OffsetSet.of(*ranges))


def test_kept_offsets_come_from_files_and_the_others_from_the_log() -> None:
    """With the lease and the delivery count of each; a lease that is kept whole reads nothing of the log."""
    some = lease_of(8, "topic", 8, (2, OffsetSet.of((0, 10))), (1, OffsetSet.of((10, 20))))
    whole = lease_of(9, "topic", 9, (3, OffsetSet.of((5, 6))))
    files, log = divide([some, whole], {8: [row(3, (2, 4), (9, 11))], 9: [row(4, (5, 6))]})
    assert [
        (piece.row.lease_id, piece.lease_id, piece.delivery_count, piece.offsets.ranges) for piece in files
    ] == [
        (3, 8, 2, ((2, 4), (9, 10))),
        (3, 8, 1, ((10, 11),)),
        (4, 9, 3, ((5, 6),)),
    ]
    assert [
        (lease.lease_id, [(each.delivery_count, each.offsets.ranges) for each in lease.deliveries])
        for lease in log
    ] == [(8, [(2, ((0, 2), (4, 9))), (1, ((11, 20),))])]


def test_without_kept_records_the_log_has_all() -> None:
    """The leases are as they were."""
    leases = [
        lease_of(8, "topic", 8, (1, OffsetSet.of((0, 10)))),
        lease_of(9, "topic", 9, (2, OffsetSet.of((3, 4)))),
    ]
    assert divide(leases, {}) == ([], leases)
    assert divide(leases, {8: [row(1, (50, 60))]}) == ([], leases)


def test_every_offset_is_read_once() -> None:
    """Of rows that overlap, the first one counts; whatever is kept, files and log together have the lease."""
    chance = random.Random(1)  # noqa: S311 - repeatable
    for _ in range(200):
        offsets = list(range(60))
        chance.shuffle(offsets)
        deliveries = (1, OffsetSet.from_offsets(offsets[:20])), (2, OffsetSet.from_offsets(offsets[20:35]))
        lease = lease_of(7, "topic", 7, *deliveries)
        rows = [
            KeptRow(
                keeper, "/a/b=1", OffsetSet.from_offsets(chance.sample(range(70), chance.randrange(1, 40)))
            )
            for keeper in range(chance.randrange(4))
        ]
        files, log = divide([lease], {7: rows})
        read = [(piece.delivery_count, piece.offsets) for piece in files]
        read += [(each.delivery_count, each.offsets) for left in log for each in left.deliveries]
        for delivery in lease.deliveries:
            parts = [some for count, some in read if count == delivery.delivery_count]
            assert sum(some.count for some in parts) == delivery.offsets.count
            assert OffsetSet.union(parts) == delivery.offsets
        earlier = EMPTY
        for each in rows:
            from_it = OffsetSet.union(piece.offsets for piece in files if piece.row is each)
            assert from_it == (each.offsets - earlier) & lease.offsets
            earlier |= each.offsets
