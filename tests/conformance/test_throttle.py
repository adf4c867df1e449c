"""The throttle near the delivery limit (R-TH), by sequences of fetches, on every engine."""

from __future__ import annotations

import pytest

from tests.conformance.drawing import RELEASE, T0, Table, on_every_engine


def sizes(engine: str, limit: int, records: int, fetches: int) -> list[int]:
    """How much each fetch gets when everything is released at once, every time."""
    table = Table(engine, [(0, records - 1)], records, configs={"share.delivery.count.limit": limit})
    got: list[int] = []
    for _ in range(fetches):
        runs = table.fetch("m1", 500, "batch_optimized")
        ends = [tuple(map(int, run.split()[0].split("-"))) for run in runs]
        got.append(sum(last - first + 1 for first, last in ends))
        if ends:
            table.acknowledge("m1", RELEASE, *((first, last) for first, last in ends))
    return got


@pytest.mark.rule("R-TH-1", "R-TH-4", "R-TH-5", "R-TH-6", "R-TH-7")
@on_every_engine
@pytest.mark.parametrize(
    ("limit", "records", "expected"),
    [
        (2, 10, [10, 10, 0]),
        (3, 4, [4, 4, 1, 1, 1, 1, 0]),
        (4, 8, [8, 8, 4, 1, 1, 1, 1, 4, 1, 1, 1, 1, 0]),
        (5, 20, [20, 20, 20, 10, *[1] * 10, 10, *[1] * 10, 0]),
        (7, 20, [20, 20, 20, 20, 10, 5, *[1] * 5, 5, *[1] * 5, 10, 5, *[1] * 5, 5, *[1] * 5, 0]),
        (10, 32, [*[32] * 5, 16, 8, 4, 2, 1, 1, 2, 1, 1, 4, 2, 1, 1, 2, 1, 1, 8, 4, 2, 1, 1]),
    ],
    ids=lambda value: f"limit {value}" if isinstance(value, int) and value < 11 else "",
)
def test_the_sizes_of_successive_fetches(engine: str, limit: int, records: int, expected: list[int]) -> None:
    """Whole up to the threshold, then halves of the batch, then halves of these, the last delivery alone
    (R-TH-1, R-TH-4, R-TH-5)."""
    assert sizes(engine, limit, records, len(expected)) == expected


@pytest.mark.rule("R-TH-4")
@on_every_engine
def test_mixed_counts_may_pass_the_cap(engine: str) -> None:
    """The quirk of R-TH-4: the cap is set at the first offset that is throttled, when more than that was taken
    already, and never stops anything: 0-5 at count 3 and 6-7 at count 7 come together."""
    table = Table(engine, [(0, 7)], 8, configs={"share.delivery.count.limit": 10})
    for _ in range(2):
        table.fetch_size("m1")
        table.acknowledge("m1", RELEASE, (0, 7))
    table.fetch_size("m1")
    for _ in range(4):
        table.acknowledge("m1", RELEASE, (6, 7))
        assert table.fetch_size("m1") == 2
    table.acknowledge("m1", RELEASE, (0, 7))
    assert table.fetch("m1", 500, "batch_optimized") == ["0-5 x4", "6-7 x8"]


@pytest.mark.rule("R-TH-2", "R-TH-3")
@on_every_engine
def test_a_fetch_stops_before_a_throttled_batch(engine: str) -> None:
    """With something in hand, neither the throttled batch nor anything fresh behind it is taken (R-TH-3)."""
    table = Table(engine, [(0, 3), (4, 7), (8, 11)], 12)
    assert table.fetch("m1", 4, "batch_optimized") == ["0-3 x1"]
    for count in (1, 2, 3):
        assert table.fetch("m1", 4, "batch_optimized") == [f"4-7 x{count}"]
        table.acknowledge("m1", RELEASE, (4, 7))
    table.acknowledge("m1", RELEASE, (0, 3))
    assert table.fetch("m1", 500, "batch_optimized") == ["0-3 x2"]
    assert table.fetch("m1", 500, "batch_optimized") == ["4-5 x4"]
    assert table.fetch("m1", 500, "batch_optimized") == ["6-7 x4"]


@pytest.mark.rule("R-ST-4", "R-DL-2")
@on_every_engine
def test_a_release_after_the_last_delivery_ends_the_record(engine: str) -> None:
    """Without a DLQ it is archived and SPSO passes it; with one it waits, ARCHIVING, and holds SPSO (R-ST-4)."""
    for topic, drawing in (("", "x2"), ("dlq.q", "d2")):
        configs = {"errors.deadletterqueue.topic.name": topic, "share.delivery.count.limit": 2}
        table = Table(engine, [(0, 1)], 2, configs=configs)
        for _ in range(2):
            table.fetch_size("m1")
            table.acknowledge("m1", RELEASE, (1, 1))
        assert table.row() == (0, 2, f"0 A1; 1 {drawing}")
        table.engine.write_dead_letters(T0)
        assert table.row() == (0, 2, "0 A1; 1 x2")
