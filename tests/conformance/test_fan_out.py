"""Poison isolation: a record that kills its process takes no neighbour with it, on every engine."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sharequeue.state.rows import Redelivery
from tests.conformance.drawing import ACCEPT, RELEASE, T0, Table, on_every_engine
from tests.conformance.engines import LogEnds
from tests.oracle.share_partition import part_size

LIMIT = 5


def batch_table(engine: str, records: int, configs: Mapping[str, object] | None = None) -> Table:
    """Records of a batch group, no boundaries known."""
    return Table(engine, None, records, configs={"share.delivery.count.limit": LIMIT, **(configs or {})})


@pytest.mark.parametrize(
    ("suspects", "left", "size"),
    [(1_000_000, 4, 31_250), (31_250, 3, 977), (977, 2, 31), (31, 1, 1), (1, 4, 1)],
)
def test_a_million_suspects_are_single_ones_after_four_more_deliveries(
    suspects: int, left: int, size: int
) -> None:
    """N suspects are divided into k = ⌈N^(1/left)⌉ parts: the last delivery holds each alone."""
    assert part_size(suspects, left) == size


@on_every_engine
def test_suspects_come_in_parts_until_each_is_alone(engine: str) -> None:
    """81 records whose runs die come 27, 9, 3 and 1 in a lease."""
    table = batch_table(engine, 81)
    sizes = []
    for _ in range(LIMIT):
        sizes.append(table.fetch_size("run", redelivery="fan_out"))
        table.engine.advance(31)
    assert sizes == [81, 27, 9, 3, 1]


@on_every_engine
def test_only_the_record_that_kills_is_exhausted(engine: str) -> None:
    """Record 40 of 64 kills every run that holds it: all others are accepted, and it alone is given up."""
    table = batch_table(engine, 64, {"errors.deadletterqueue.topic.name": "dlq.q"})
    for _ in range(200):
        runs = table.fetch("run", 1000, "record_limit", "fan_out")
        if not runs:
            break
        ends = [tuple(map(int, run.split()[0].split("-"))) for run in runs]
        if any(first <= 40 <= last for first, last in ends):
            table.engine.release_member("g", "run", None)
        else:
            table.acknowledge("run", ACCEPT, *((first, last) for first, last in ends))
    assert table.row() == (40, 64, "40 d5; 41 k5; 42-43 k4; 44-63 k2")


@pytest.mark.parametrize("redelivery", ["kafka", "fan_out"])
@on_every_engine
def test_a_delivery_after_the_limit_was_lowered_counts(engine: str, redelivery: Redelivery) -> None:
    """Records that were released, and are at the new limit already, come once more: that delivery counts too."""
    table = batch_table(engine, 2)
    for _ in range(2):
        table.fetch_size("run", redelivery="fan_out")
        table.acknowledge("run", RELEASE, (0, 1))
    table.engine.configure("g", {"share.delivery.count.limit": 2})
    assert table.fetch_size("run", redelivery=redelivery) > 0
    assert "A3" in table.row()[2]


@on_every_engine
def test_a_last_attempt_after_the_limit_was_lowered_is_alone(engine: str) -> None:
    """Suspects whose part was made for five deliveries come one by one when the limit leaves them one."""
    table = batch_table(engine, 81)
    table.fetch_size("run", redelivery="fan_out")
    table.engine.advance(31)
    table.engine.configure("g", {"share.delivery.count.limit": 2})
    assert [table.fetch_size("run", redelivery="fan_out") for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("redelivery", ["kafka", "fan_out"])
@on_every_engine
def test_nothing_past_the_last_stable_offset_comes_again(engine: str, redelivery: Redelivery) -> None:
    """A group that changes to read_committed gets no record of an open transaction again: its readers would not find
    it, and take it for a gap."""
    table = batch_table(engine, 10)
    table.fetch_size("run", redelivery="fan_out")
    table.acknowledge("run", RELEASE, (0, 9))
    table.engine.configure("g", {"share.isolation.level": "read_committed"})
    table.engine.observe(T0, LogEnds(0, 10, 4))
    assert table.fetch_size("run", redelivery=redelivery) == 4


@on_every_engine
def test_suspects_come_without_fresh_records(engine: str) -> None:
    """A lease of suspects holds nothing else."""
    table = batch_table(engine, 100)
    assert table.fetch("run", 10, "record_limit", "fan_out") == ["0-9 x1"]
    table.engine.advance(31)
    assert table.fetch("run", 1000, "record_limit", "fan_out") == ["0-4 x2"]
    assert table.fetch("run", 1000, "record_limit", "fan_out") == ["5-9 x2"]
    assert table.fetch("run", 1000, "record_limit", "fan_out") == ["10-99 x1"]


@on_every_engine
def test_released_records_come_back_together(engine: str) -> None:
    """An acknowledgement is no suspicion: released records come together with fresh ones, up to the last delivery."""
    table = batch_table(engine, 100)
    for count in range(1, LIMIT + 1):
        assert f"0-9 x{count}" in table.fetch("run", 10, "record_limit", "fan_out")
        if count < LIMIT:
            table.acknowledge("run", RELEASE, (0, 9))
    table.acknowledge("run", ACCEPT, (5, 9))
    table.acknowledge("run", RELEASE, (0, 4))
    assert table.row()[0] == 10  # released after the last delivery: given up


@on_every_engine
def test_a_shared_last_delivery_that_lapses_is_not_the_end(engine: str) -> None:
    """Each of its records gets one more delivery, alone, at the same count; only that one is the last."""
    table = batch_table(engine, 3)
    for _ in range(LIMIT):
        table.fetch("run", 10, "record_limit", "fan_out")
        if table.view().offsets[0].delivery_count < LIMIT:
            table.acknowledge("run", RELEASE, (0, 2))
    table.engine.advance(31)
    for offset in range(3):
        assert table.fetch("run", 10, "record_limit", "fan_out") == [f"{offset}-{offset} x{LIMIT}"]
    table.engine.advance(31)
    assert table.row() == (3, 3, "")


@on_every_engine
def test_the_release_of_everything_by_a_failed_run_is_no_acknowledgement(engine: str) -> None:
    """When a worker dies, the driver lives on and releases its lease: the records are suspects all the same."""
    table = batch_table(engine, 16)
    assert table.fetch_size("run", redelivery="fan_out") == 16
    table.engine.release_member("g", "run", [T0])
    assert table.fetch_size("run", redelivery="fan_out") == 8


@on_every_engine
def test_redelivery_goes_on_when_the_window_is_full(engine: str) -> None:
    """share.partition.max.record.locks stops fresh records only."""
    table = batch_table(engine, 300, {"share.partition.max.record.locks": 100})
    assert table.fetch("run", 1000, "record_limit", "fan_out") == ["0-99 x1"]
    assert table.fetch("run", 1000, "record_limit", "fan_out") == []
    table.acknowledge("run", RELEASE, (50, 59))
    assert table.fetch("run", 1000, "record_limit", "fan_out") == ["50-59 x2"]


@on_every_engine
@pytest.mark.parametrize("limit", [2, LIMIT])
def test_a_shared_last_delivery_comes_once_more_also_where_a_broker_would_acquire(
    engine: str, limit: int
) -> None:
    """Alone and at the same count, never past the limit; a lapse is then its end."""
    table = batch_table(engine, 3, {"share.delivery.count.limit": limit})
    for count in range(1, limit + 1):
        table.fetch("run", 10, "record_limit", "fan_out")
        if count < limit:
            table.acknowledge("run", RELEASE, (0, 2))
    table.engine.advance(31)
    for offset in range(3):
        assert table.fetch("run", 10, "record_limit") == [f"{offset}-{offset} x{limit}"]
    table.engine.advance(31)
    assert table.row() == (3, 3, "")
