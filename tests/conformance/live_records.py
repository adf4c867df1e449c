"""Scenarios of records, beside a broker: what is acquired, acknowledged, locked, throttled."""

from __future__ import annotations

from tests.conformance.live_steps import (
    EXPIRE,
    LONG,
    SHORT,
    START,
    Live,
    ack,
    config,
    join,
    op,
    poll,
    produce,
    release,
    rounds,
)

RECORDS: dict[str, Live] = {
    "whole_log_batches": Live(
        ("R-AQ-9", "R-AQ-5"), (produce(3, 4, 5), join(), poll(2), poll(4), poll(), poll())
    ),
    "record_limit": Live(
        ("R-AQ-12", "R-AQ-8"),
        (produce(5, 3), join(), *(poll(2, mode="record_limit"),) * 5, ack([0, 0, 7, "accept"])),
    ),
    "both_modes_in_turn": Live(
        ("R-AQ-12", "R-AQ-6"),
        (produce(6, 4), join(), poll(2, mode="record_limit"), poll(1), poll(3, mode="record_limit"), poll()),
    ),
    "batch_size_splits_on_log_batches": Live(
        ("R-AQ-11",),
        (produce(2, 2, 2, 5, 1), join(), poll(12, batchSize=4), ack([0, 0, 11, "accept"]), poll()),
    ),
    "nothing_asked_for": Live(("R-AQ-1",), (*START, poll(0, waitMs=100), poll())),
    "partial_acknowledgement_splits_a_batch": Live(
        ("R-AK-10", "R-AK-12", "R-SO-5"),
        (
            *(produce(10), join(), poll(), ack([0, 0, 2, "accept"], [0, 3, 5, "release"]), poll()),
            *(ack([0, 4, 4, "accept"]), ack([0, 6, 9, "accept"]), ack([0, 3, 3, "reject"], [0, 5, 5, "gap"])),
        ),
    ),
    "redelivery_before_fresh": Live(
        ("R-AQ-6", "R-AQ-7"),
        (
            produce(5, 5),
            join(),
            poll(5),
            poll(5),
            ack([0, 0, 4, "release"], [0, 7, 8, "release"]),
            produce(3),
            poll(),
        ),
    ),
    "redelivery_within_a_budget": Live(
        ("R-AQ-2", "R-AQ-8"),
        (produce(4, 4, 4), join(), *(poll(4),) * 3, ack([0, 0, 11, "release"]), poll(5), poll(5), poll(5)),
    ),
    "a_type_for_each_offset": Live(
        ("R-AK-4", "R-AK-12"),
        (
            produce(5),
            join(),
            poll(),
            ack([0, 0, 4, ["accept", "release", "reject", "gap", "accept"]]),
            poll(),
        ),
    ),
    "malformed_acknowledgements": Live(
        ("R-AK-3", "R-AK-5"),
        (
            *(
                produce(6),
                join(),
                poll(),
                ack([0, 3, 2, "accept"]),
                ack([0, 0, 3, "accept"], [0, 2, 5, "accept"]),
            ),
            *(ack([0, 0, 2, ["accept", "accept"]]), ack([0, 0, 2, 9]), ack([0, 0, 2, -1])),
            *(ack([0, 0, 3, "accept"], [0, 3, 5, "accept"]), ack([0, 0, 5, "accept"])),
        ),
    ),
    "past_what_was_acquired": Live(
        ("R-AK-7", "R-AK-8"),
        (
            produce(3, 3),
            join(),
            poll(3),
            ack([0, 0, 4, "accept"]),
            ack([0, 4, 5, "accept"]),
            ack([0, 1, 2, "accept"]),
        ),
    ),
    "acknowledged_again": Live(
        ("R-AK-6", "R-AK-13"),
        (
            *(produce(6), join(), poll(), ack([0, 0, 1, "accept"]), ack([0, 0, 1, "release"])),
            *(
                ack([0, 4, 4, "accept"]),
                ack([0, 4, 4, "accept"]),
                ack([0, 1, 2, "accept"]),
                ack([0, 2, 5, "accept"]),
            ),
        ),
    ),
    "one_partition_fails_the_other_does_not": Live(
        ("R-AK-14",),
        (
            *(produce(2), produce(2, partition=1), join(), poll(partitions=[0]), poll(partitions=[1])),
            *(ack([0, 0, 5, "accept"], [1, 0, 1, "accept"]), ack([0, 0, 1, "accept"], [1, 0, 1, "accept"])),
        ),
        topics={"t": 2},
    ),
    "another_members_records": Live(
        ("R-AK-9", "R-AK-11"),
        (
            *(
                produce(4),
                join(),
                join("m2"),
                poll(),
                poll(member="m2"),
                ack([0, 0, 3, "accept"], member="m2"),
            ),
            *(
                ack([0, 1, 1, "release"]),
                poll(member="m2"),
                ack([0, 0, 1, "accept"], member="m2"),
                ack([0, 0, 0, "accept"]),
            ),
        ),
    ),
    "acknowledgements_in_a_fetch": Live(
        ("R-AK-2", "R-SS-2"),
        (
            *(
                produce(3, 3),
                join(),
                poll(3),
                poll(3, acks=[[0, 0, 2, "accept"]]),
                poll(3, acks=[[0, 0, 9, "accept"]]),
            ),
            *(poll(3, acks=[[0, 3, 4, "release"]]), poll(3, acks=[[0, 3, 5, "accept"]])),
        ),
    ),
    "lock_lapses": Live(
        ("R-LT-3", "R-AK-13"),
        (*START, poll(), EXPIRE, LONG, ack([0, 0, 3, "accept"]), poll(), ack([0, 0, 3, "accept"])),
        SHORT,
    ),
    "lock_lapses_on_a_part": Live(
        ("R-LT-3",),
        (
            produce(6),
            join(),
            poll(),
            ack([0, 2, 3, "accept"]),
            EXPIRE,
            LONG,
            poll(),
            ack([0, 0, 5, "accept"]),
            poll(),
        ),
        SHORT,
    ),
    "renewed_lock": Live(
        ("R-RN-1",),
        (
            *(
                produce(2),
                join(),
                poll(),
                op("sleep", ms=1800),
                ack([0, 0, 0, "renew"]),
                op("sleep", ms=1800),
            ),
            *(ack([0, 0, 0, "accept"]), ack([0, 1, 1, "accept"]), poll()),
        ),
        {"share.record.lock.duration.ms": 3000},
    ),
    "renewing_is_off": Live(
        ("R-RN-1",),
        (
            *START,
            poll(),
            config(share_renew_acknowledge_enable=False),
            ack([0, 0, 3, "renew"]),
            ack([0, 0, 3, "accept"]),
        ),
    ),
    "renew_beside_accept": Live(
        ("R-RN-1", "R-AK-14"),
        (
            *START,
            poll(),
            ack([0, 0, 1, "accept"], [0, 2, 3, "renew"]),
            ack([0, 2, 3, "renew"], renew=False),
            poll(),
        ),
    ),
    "lock_duration_changes": Live(
        ("R-RN-2",),
        (
            *(produce(2, 2), join(), poll(2), config(share_record_lock_duration_ms=1000), poll(2)),
            *(EXPIRE, LONG, poll(), ack([0, 0, 3, "accept"])),
        ),
        {"share.record.lock.duration.ms": 20000},
    ),
    "throttle_limit_5": Live(("R-TH-4", "R-TH-7"), (produce(16), join(), *rounds(10))),
    "throttle_limit_10": Live(
        ("R-TH-4", "R-TH-6"), (produce(12), join(), *rounds(12)), {"share.delivery.count.limit": 10}
    ),
    "throttle_of_lapses": Live(("R-TH-4", "R-LT-3"), (produce(6), join(), *(poll(), EXPIRE) * 4), SHORT),
    "throttle_stops_before": Live(
        ("R-TH-3",),
        (
            produce(2, 8),
            join(),
            poll(2),
            poll(8),
            *(ack([0, 2, 9, "release"]), poll(8)) * 2,
            ack([0, 0, 9, "release"]),
            *rounds(4),
        ),
    ),
    "last_attempt_goes_alone": Live(
        ("R-TH-5",), (produce(3), join(), *rounds(6)), {"share.delivery.count.limit": 3}
    ),
    "limit_of_2": Live(("R-TH-1", "R-ST-4"), (*START, *rounds(3)), {"share.delivery.count.limit": 2}),
    "limit_lowered": Live(
        ("R-ST-5",),
        (*START, *rounds(2), config(share_delivery_count_limit=2), poll(), release(), poll()),
    ),
    "bound_of_locks": Live(
        ("R-NF-5", "R-NF-6", "R-AQ-2"),
        (
            *(produce(60, 60, 60), join(), *(poll(60),) * 3, ack([0, 60, 89, "release"]), poll(), poll()),
            *(ack([0, 0, 59, "accept"]), poll(), poll()),
        ),
        {"share.partition.max.record.locks": 100},
    ),
    "bound_of_locks_in_record_limit": Live(
        ("R-NF-5", "R-AQ-12"),
        (
            produce(150),
            join(),
            *(poll(60, mode="record_limit"),) * 3,
            ack([0, 0, 49, "accept"]),
            poll(60, mode="record_limit"),
        ),
        {"share.partition.max.record.locks": 100},
    ),
}
"""By name."""
