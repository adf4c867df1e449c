"""Scenarios of logs, operators and members, beside a broker: transactions, deleted records, resets, joins."""

from __future__ import annotations

from tests.conformance.live_steps import (
    EXPIRE,
    GROUP,
    LONG,
    START,
    Live,
    ack,
    close,
    config,
    join,
    op,
    poll,
    produce,
    txn,
)

GROUPS: dict[str, Live] = {
    "markers_at_both_ends": Live(
        ("R-IL-4", "R-IL-2"),
        (
            *(
                txn("begin"),
                produce(2, txn="x"),
                txn("commit"),
                produce(2),
                txn("begin"),
                produce(1, txn="x"),
                txn("commit"),
            ),
            *(
                join(),
                poll(),
                ack([0, 0, 1, "accept"], [0, 2, 2, "gap"], [0, 3, 5, "accept"], [0, 6, 6, "gap"]),
                poll(),
            ),
        ),
    ),
    "read_committed": Live(
        ("R-IL-3", "R-AQ-16"),
        (
            *(
                produce(2),
                txn("begin"),
                produce(3, txn="x"),
                txn("abort"),
                produce(2),
                join(),
                poll(),
                poll(),
            ),
            *(ack([0, 0, 1, "accept"]), ack([0, 5, 5, "gap"], [0, 6, 7, "accept"]), poll()),
        ),
        {"share.isolation.level": "read_committed"},
    ),
    "open_transaction": Live(
        ("R-IL-2",),
        (
            *(
                produce(2),
                txn("begin"),
                produce(3, txn="x"),
                produce(2),
                join(),
                poll(),
                poll(),
                txn("commit"),
                poll(),
            ),
            ack([0, 0, 6, "accept"], [0, 7, 7, "gap"]),
        ),
        {"share.isolation.level": "read_committed"},
    ),
    "isolation_changes": Live(
        ("R-IL-1",),
        (
            *(txn("begin"), produce(2, txn="x"), join(), poll(), ack([0, 0, 1, "release"])),
            *(config(share_isolation_level="read_committed"), txn("abort"), produce(2), poll(), poll()),
        ),
    ),
    "aborted_records_held_since_before": Live(
        ("R-IL-1", "R-IL-3"),
        (
            *(txn("begin"), produce(2, txn="x"), txn("abort"), join(), poll(), ack([0, 1, 1, "release"])),
            *(config(share_isolation_level="read_committed"), poll(), ack([0, 0, 0, "accept"], lines=[31])),
        ),
    ),
    "compaction_holes": Live(
        ("R-AQ-3", "R-AQ-14", "R-IL-4"),
        (
            *(produce(3, 2, 3, keys=["a", "b", "c", "d", "e", "a", "d", "e"]), op("sleep", ms=300)),
            *(produce(1, keys=["z"]), op("waitCompacted", left=[1, 2, 5, 6, 7, 8]), join(), poll(8), poll()),
            *(
                ack([0, 0, 0, "gap"], [0, 1, 2, "accept"], [0, 3, 4, "gap"]),
                ack([0, 5, 7, "release"]),
                poll(),
            ),
            ack([0, 5, 8, "accept"]),
        ),
        log={"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"},
    ),
    "records_deleted_below_the_window": Live(
        ("R-LS-2", "R-LS-4"),
        (produce(4, 4), join(), poll(4), op("deleteRecords", before=2), ack([0, 0, 3, "accept"]), poll()),
    ),
    "records_deleted_past_what_is_in_flight": Live(
        ("R-LS-4", "R-LS-6"),
        (
            *(produce(3, 3, 3), join(), poll(3), ack([0, 0, 2, "release"]), op("deleteRecords", before=6)),
            *(poll(lines=[14]), poll(lines=[14]), ack([0, 6, 8, "accept"]), poll()),
        ),
    ),
    "records_deleted_before_a_full_window": Live(
        ("R-SO-1", "R-LS-4"),
        (
            *(produce(400, 10), join(), poll(), ack([0, 0, 49, "release"], [0, 50, 399, "accept"])),
            *(op("deleteRecords", before=50), poll(lines=[14]), produce(5), poll(lines=[33])),
        ),
        {"share.partition.max.record.locks": 100},
    ),
    "alter_while_active": Live(
        ("R-AD-1",),
        (*START, poll(), op("alterOffsets", offsets=[["t", 0, 1]]), ack([0, 0, 3, "accept"]), GROUP),
    ),
    "alter_while_empty": Live(
        ("R-AD-1", "R-EP-3"),
        (
            *(
                produce(8),
                join(),
                poll(),
                ack([0, 0, 3, "accept"]),
                close(),
                op("alterOffsets", offsets=[["t", 0, 2], ["t", 7, 1]]),
            ),
            *(join("m2", lines=[4]), poll(member="m2"), ack([0, 2, 7, "accept"], member="m2")),
        ),
    ),
    "alter_before_anybody_joins": Live(
        ("R-AD-1", "R-IN-4"),
        (
            produce(5),
            op("alterOffsets", offsets=[["t", 0, 3]]),
            GROUP,
            join(),
            poll(),
            ack([0, 3, 4, "accept"]),
        ),
    ),
    "offsets_deleted": Live(
        ("R-AD-2", "R-AD-3"),
        (
            *(*START, poll(), ack([0, 0, 1, "accept"]), op("deleteOffsets", topics=["t"]), close()),
            *(
                op("deleteOffsets", topics=["t"]),
                op("deleteOffsets", topics=["t"]),
                join("m2"),
                poll(member="m2"),
            ),
        ),
    ),
    "deleted_group_comes_back": Live(
        ("R-AD-5",),
        (
            *(
                *START,
                poll(),
                ack([0, 0, 1, "accept"]),
                op("deleteGroup"),
                close(),
                op("deleteGroup"),
                op("deleteGroup"),
                GROUP,
            ),
            *(join("m2"), poll(member="m2"), GROUP),
        ),
    ),
    "starts_at_the_end": Live(
        ("R-OR-1", "R-OR-2"),
        (produce(3), join(), poll(waitMs=1500), produce(2), poll(), ack([0, 3, 4, "accept"])),
        {"share.auto.offset.reset": "latest"},
    ),
    "partitions_added": Live(
        ("R-OR-3", "R-GR-4"),
        (
            *(produce(2), join(), poll(waitMs=1500), produce(1), poll(), op("createPartitions", total=2)),
            *(produce(3, partition=1), op("settle"), poll(partitions=[1]), ack([1, 0, 2, "accept"])),
        ),
        {"share.auto.offset.reset": "latest"},
    ),
    "two_members_two_partitions": Live(
        ("R-GR-11", "R-GR-7", "R-AQ-18"),
        (
            *(
                produce(3),
                produce(3, partition=1),
                join("m1", quiet=True),
                op("shape"),
                join("m2", quiet=True),
                op("shape"),
            ),
            *(poll(partitions=[0]), poll(member="m2", partitions=[1]), poll(member="m2", partitions=[0, 1])),
            *(
                ack([0, 0, 2, "accept"]),
                ack([1, 0, 2, "accept"], member="m2"),
                close("m2"),
                op("settle"),
                op("shape"),
                GROUP,
            ),
        ),
        topics={"t": 2},
    ),
    "five_members_four_partitions": Live(
        ("R-GR-11", "R-GR-12"),
        (
            *(step for n in range(1, 6) for step in (join(f"m{n}", quiet=True), op("shape"))),
            *(op("leave", member="m2"), op("settle", stable=False)),
        ),
        topics={"t": 4},
    ),
    "closed_with_records_in_hand": Live(
        ("R-RL-6", "R-SS-3"),
        (
            *(*START, join("m2"), poll(), ack([0, 0, 0, "accept"]), close(), poll(member="m2"), GROUP),
            ack([0, 1, 3, "accept"], member="m2"),
        ),
    ),
    "closed_with_acknowledgements": Live(
        ("R-SS-3", "R-RL-6"),
        (
            *START,
            join("m2"),
            poll(),
            close(acks=[[0, 0, 1, "accept"], [0, 2, 2, "reject"]]),
            poll(member="m2"),
        ),
    ),
    "leaving_keeps_the_locks": Live(
        ("R-GR-2", "R-LT-3"),
        (
            *(
                *START,
                join("m2"),
                poll(),
                poll(member="m2", waitMs=50),
                op("leave", member="m1"),
                poll(member="m2", waitMs=50),
            ),
            *(EXPIRE, LONG, poll(member="m2"), ack([0, 0, 3, "accept"], member="m2")),
        ),
        {"share.record.lock.duration.ms": 3000},
    ),
    "lost_connection": Live(
        ("R-SS-6", "R-RL-6"),
        (
            produce(2, 2),
            join(),
            join("m2"),
            poll(2, member="m2"),
            poll(2),
            op("drop", member="m1"),
            poll(member="m2"),
        ),
    ),
    "heartbeats_refused": Live(
        ("R-GR-0", "R-GR-1", "R-GR-8"),
        (
            *(
                op("hb", member="m1", epoch=1),
                op("hb", member="m1", epoch=0),
                op("hb", member="m1", epoch=-2, topics=["t"]),
            ),
            *(
                join(),
                op("hb", member="m1", epochDelta=0),
                op("hb", member="m1", epochDelta=1),
                op("hb", member="m1", epochDelta=-2),
            ),
            *(
                op("hb", member="m1", epoch=0, topics=["t"]),
                op("leave", member="m1"),
                op("leave", member="m1"),
                GROUP,
            ),
        ),
    ),
}
"""By name."""
