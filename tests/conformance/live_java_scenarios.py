"""Scenarios of Kafka's Java clients, beside a broker: RENEW, the modes of a client, and what operators ask for.

The steps of a client are one consumer's, in the words of the recorded ones; those of operators are the admin
client's.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.live_steps import (
    EXPIRE,
    GROUP,
    LONG,
    SHORT,
    Live,
    Step,
    close,
    config,
    join,
    op,
    poll,
    produce,
)

OFFSETS = op("describeOffsets")
JOIN = op("cjoin", member="c", mode="explicit")
POLL = op("cpoll", member="c")
COMMIT = op("ccommit", member="c")
CLOSE = op("cclose", member="c")
NOTHING = op("cpoll", member="c", timeoutMs=600)


def cack(*acks: list[Any]) -> Step:
    """Choose types for records of the last poll: partition, offset, type."""
    return op("cack", member="c", acks=list(acks))


ACCEPTED = (cack([0, 0, "accept"]), COMMIT)

JAVA: dict[str, Live] = {
    "renewed_comes_again": Live(
        ("R-RN-1",),
        (
            *(produce(2), JOIN, POLL, cack([0, 0, "renew"], [0, 1, "accept"]), COMMIT),
            *(NOTHING, cack([0, 0, "renew"]), COMMIT, NOTHING, *ACCEPTED, NOTHING, CLOSE),
        ),
    ),
    "renewed_outlasts_its_first_lock": Live(
        ("R-RN-1", "R-RN-2"),
        (
            *(produce(2), JOIN, POLL, join("m", quiet=True), poll(member="m", waitMs=50)),
            *(
                op("sleep", ms=2500),
                cack([0, 0, "renew"]),
                COMMIT,
                EXPIRE,
                LONG,
                poll(member="m", waitMs=5000),
            ),
            *(cack([0, 1, "accept"]), COMMIT, NOTHING, *ACCEPTED, CLOSE),
        ),
        {"share.record.lock.duration.ms": 5000},
    ),
    "lapsed_cannot_be_renewed": Live(
        ("R-RN-1", "R-LT-3"),
        (
            *(produce(2), JOIN, POLL, EXPIRE, LONG, cack([0, 0, "renew"], [0, 1, "renew"]), COMMIT),
            *(POLL, cack([0, 0, "accept"], [0, 1, "accept"]), COMMIT, CLOSE),
        ),
        SHORT,
    ),
    "renewing_is_off_for_a_client": Live(
        ("R-RN-1",),
        (
            *(produce(2), JOIN, POLL, config(share_renew_acknowledge_enable=False)),
            *(cack([0, 0, "renew"], [0, 1, "renew"]), COMMIT, NOTHING, CLOSE),
            *(join("m", quiet=True), poll(member="m")),
        ),
    ),
    "renewed_beside_other_types": Live(
        ("R-RN-1", "R-AK-4"),
        (
            *(produce(4), JOIN, POLL),
            *(cack([0, 0, "renew"], [0, 1, "accept"], [0, 2, "release"], [0, 3, "reject"]), COMMIT),
            *(NOTHING, *ACCEPTED, POLL, cack([0, 2, "accept"]), COMMIT, NOTHING, CLOSE),
        ),
    ),
    "renewed_then_closed": Live(
        ("R-RN-1", "R-RL-6"),
        (
            *(produce(2), JOIN, POLL, cack([0, 0, "renew"], [0, 1, "renew"]), COMMIT, CLOSE),
            *(join("m", quiet=True), poll(member="m")),
        ),
    ),
    "implicit_mode": Live(
        ("R-RN-1", "R-RL-6"),
        (
            *(produce(2), op("cjoin", member="c"), POLL, cack([0, 0, "renew"]), produce(3), POLL),
            *(COMMIT, produce(1), POLL, CLOSE, join("m", quiet=True), poll(member="m")),
        ),
    ),
    "unacknowledged_before_a_poll": Live(
        ("R-RL-6",),
        (
            *(produce(2), JOIN, POLL, POLL, cack([0, 0, "accept"]), POLL, cack([0, 1, "release"]), POLL),
            *(cack([0, 1, "accept"]), COMMIT, CLOSE),
        ),
    ),
    "admin_alters": Live(
        ("R-AD-1", "R-AD-3"),
        (
            *(produce(6), OFFSETS, op("alterOffsets", offsets=[["t", 0, 3], ["t", 5, 1]]), GROUP, OFFSETS),
            *(JOIN, POLL, op("alterOffsets", offsets=[["t", 0, 0]]), GROUP),
            *(cack(*([0, o, "accept"] for o in (3, 4, 5))), COMMIT, CLOSE, OFFSETS),
            *(op("alterOffsets", offsets=[["t", 0, 1]]), OFFSETS),
            op("describeOffsets", partitions=[["t", 0]]),
        ),
    ),
    "admin_deletes_offsets": Live(
        ("R-AD-2", "R-AD-3"),
        (
            *(produce(2), op("deleteOffsets", topics=["t"]), JOIN, POLL, op("deleteOffsets", topics=["t"])),
            *(cack([0, 0, "accept"], [0, 1, "release"]), COMMIT, CLOSE, op("deleteOffsets", topics=["t"])),
            *(OFFSETS, op("deleteOffsets", topics=["t"]), GROUP),
            *(join("m", quiet=True), poll(member="m"), close("m")),
        ),
    ),
    "admin_describes_and_deletes": Live(
        ("R-AD-4", "R-AD-5"),
        (
            *(produce(2), GROUP, op("deleteGroup"), JOIN, POLL, GROUP, op("deleteGroup"), CLOSE, GROUP),
            *(op("deleteGroup"), op("deleteGroup"), GROUP, OFFSETS),
        ),
    ),
}
"""By name."""
