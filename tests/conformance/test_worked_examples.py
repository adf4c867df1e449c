"""The drawings and tables of KIP-932, KIP-1226 and the chapters on share groups, row by row, on every engine."""

from __future__ import annotations

import pytest

from tests.conformance.drawing import ACCEPT, GAP, REJECT, RELEASE, T0, Table, drawn, on_every_engine
from tests.conformance.engines import ENGINES, LogEnds
from tests.oracle import RecordState, SharePartition

SINGLES = [(offset, offset) for offset in range(100, 200)]


def in_flight_records(engine: str) -> Table:
    """KIP-932's drawing of in-flight records, reached by operations: a boundary ends at 8."""
    table = Table(engine, [(0, 1), (2, 8), (9, 10)], 11)
    assert table.fetch("m1", 2) == ["0-1 x1"]
    table.acknowledge("m1", REJECT, (0, 1))
    assert table.fetch("m1", 5) == ["2-6 x1"]
    table.acknowledge("m1", RELEASE, (3, 3))
    assert table.fetch("m1", 1) == ["3-3 x2"]
    table.acknowledge("m1", RELEASE, (3, 3))
    table.acknowledge("m1", ACCEPT, (5, 5))
    table.acknowledge("m1", REJECT, (6, 6))
    return table


@pytest.mark.rule("R-AQ-12", "R-NF-5")
@on_every_engine
def test_in_flight_records_of_kip_932(engine: str) -> None:
    """Offsets 2 to 8 are in flight, in five states; what follows a record_limit fetch in its boundary has count
    0."""
    table = in_flight_records(engine)
    assert table.row() == (2, 9, "2 A1; 3 a2; 4 A1; 5 k1; 6 x1; 7-8 a0")
    assert table.view().in_flight == 7


@pytest.mark.rule("R-EP-1", "R-EP-2")
@on_every_engine
def test_lag_of_kip_1226(engine: str) -> None:
    """Lag is log end − SPSO − delivery-complete count: 11 − 2 − 2 = 7 in KIP-932's example."""
    view = in_flight_records(engine).view()
    assert (view.delivery_complete_count, view.lag) == (2, 7)


@pytest.mark.rule("R-EP-2", "R-IL-2")
@on_every_engine
def test_lag_goes_by_log_end_under_read_committed_too(engine: str) -> None:
    """Records behind an open transaction count as lag."""
    table = Table(engine, [(0, 4), (5, 10)], 11, configs={"share.isolation.level": "read_committed"})
    table.grow(11, last_stable=5)
    assert table.fetch("m1", 100) == ["0-4 x1"]
    table.acknowledge("m1", ACCEPT, (0, 4))
    assert table.view().lag == 6


@pytest.mark.rule("R-EP-2", "R-IL-4")
@on_every_engine
def test_markers_count_as_lag_until_they_are_acknowledged_as_gaps(engine: str) -> None:
    """A control record beyond the window is lag, and inside it until it was acknowledged."""
    table = Table(engine, [(0, 1), (2, 2), (3, 4)], 5)
    assert table.view().lag == 5
    table.fetch("m1", 100)
    assert table.view().lag == 5
    table.acknowledge("m1", GAP, (2, 2))
    assert table.view().lag == 4


@pytest.mark.rule("R-SO-1", "R-SO-2", "R-LT-3")
@on_every_engine
@pytest.mark.parametrize("log", [SINGLES, None], ids=["single-record batches", "no boundaries"])
def test_three_consumers_of_kip_932(engine: str, log: list[tuple[int, int]] | None) -> None:
    """Every row of the table, from an empty window at 100 to one record held."""
    table = Table(engine, log, 130, start=100)
    assert table.row() == (100, 100, "")
    assert table.fetch("c1", 10) == ["100-109 x1"]
    assert table.row() == (100, 110, "100-109 A1")
    table.acknowledge("c1", ACCEPT, (100, 109))
    assert table.row() == (110, 110, "")
    assert table.fetch("c1", 3) == ["110-112 x1"]
    table.engine.advance(1)
    assert table.fetch("c2", 6) == ["113-118 x1"]
    table.engine.advance(1)
    assert table.fetch("c3", 1) == ["119-119 x1"]
    assert table.row() == (110, 120, "110-119 A1")
    table.acknowledge("c1", RELEASE, (110, 110))
    assert table.row() == (110, 120, "110 a1; 111-119 A1")
    table.acknowledge("c3", ACCEPT, (119, 119))
    assert table.row() == (110, 120, "110 a1; 111-118 A1; 119 k1")
    assert table.fetch("c1", 2) == ["110-110 x2", "120-120 x1"]
    assert table.row() == (110, 121, "110 A2; 111-118 A1; 119 k1; 120 A1")
    table.engine.advance(28)  # 30 seconds after the first fetch of step 3, 29 after the second
    assert table.row() == (110, 121, "110 A2; 111-112 a1; 113-118 A1; 119 k1; 120 A1")
    table.acknowledge("c2", ACCEPT, (113, 118))
    assert table.row() == (110, 121, "110 A2; 111-112 a1; 113-119 k1; 120 A1")
    assert table.fetch("c3", 2) == ["111-112 x2"]
    assert table.row() == (110, 121, "110-112 A2; 113-119 k1; 120 A1")
    table.acknowledge("c1", ACCEPT, (110, 110))
    assert table.row() == (111, 121, "111-112 A2; 113-119 k1; 120 A1")
    table.acknowledge("c3", ACCEPT, (111, 112))
    assert table.row() == (120, 121, "120 A1")


@pytest.mark.rule("R-OR-1")
@on_every_engine
def test_a_group_that_starts_at_latest_starts_at_the_log_end(engine: str) -> None:
    """The first row of that table: latest offset 100, so SPSO and SPEO are 100."""
    started = ENGINES[engine]()
    started.configure("g", {"share.auto.offset.reset": "latest"})
    at = SharePartition("g", "t", 0)
    started.initialize(at, LogEnds(0, 100, 100), 1)
    view = started.describe(at)
    assert (view.spso, view.speo) == (100, 100)


@pytest.mark.rule("R-TH-7")
@on_every_engine
def test_the_throttle_of_kafkas_own_tests_at_limit_7(engine: str) -> None:
    """20 records at count 4: 10, then 5, then five single ones; then the others of each half."""
    table = Table(engine, [(15, 34)], 35, start=15, configs={"share.delivery.count.limit": 7})
    for _ in range(4):
        assert table.fetch_size("m1") == 20
        table.acknowledge("m1", RELEASE, (15, 34))
    expected = ["15-24 x5", "15-19 x6", "15-15 x7", "16-16 x7", "17-17 x7", "18-18 x7", "19-19 x7"]
    for result in [*expected, "20-24 x6"]:
        assert table.fetch("m1", 500, "batch_optimized") == [result]
        if result not in ("15-15 x7", "16-16 x7", "17-17 x7", "18-18 x7", "19-19 x7"):
            table.engine.advance(31)
    # 20-24 lapsed at count 6: they are alone now, and 25-34 have count 4 still.
    for offset in range(20, 25):
        assert table.fetch("m1", 500, "batch_optimized") == [f"{offset}-{offset} x7"]
    assert table.fetch("m1", 500, "batch_optimized") == ["25-34 x5"]


@on_every_engine
def test_the_throttle_of_kafkas_own_tests_while_all_is_held(engine: str) -> None:
    """After the single records: 20-24 with count 6, then 25-34 with count 5, each fetched while the others are
    still held."""
    table = Table(engine, [(15, 34)], 35, start=15, configs={"share.delivery.count.limit": 7})
    for _ in range(4):
        table.fetch_size("m1")
        table.acknowledge("m1", RELEASE, (15, 34))
    for _ in range(2):
        table.fetch_size("m1")
        table.engine.advance(31)
    got = [table.fetch("m1", 500, "batch_optimized") for _ in range(7)]
    singles = [[f"{offset}-{offset} x7"] for offset in range(15, 20)]
    assert got == [*singles, ["20-24 x6"], ["25-34 x5"]]


@pytest.mark.rule("R-TH-7")
@on_every_engine
def test_successive_fetches_of_records_that_nobody_acknowledges(engine: str) -> None:
    """Limit 5, 100 records: 100, 100, 100, 50, 1, 1, …"""
    table = Table(engine, [(0, 99)], 100)
    sizes = []
    for _ in range(8):
        sizes.append(table.fetch_size("m1"))
        table.engine.advance(31)
    assert sizes == [100, 100, 100, 50, 1, 1, 1, 1]


@pytest.mark.rule("R-ST-1")
def test_the_numbers_of_the_delivery_states() -> None:
    """As Kafka persists them, in one byte."""
    assert [(state.name, int(state)) for state in RecordState] == [
        ("AVAILABLE", 0),
        ("ACQUIRED", 1),
        ("ACKNOWLEDGED", 2),
        ("ARCHIVING", 3),
        ("ARCHIVED", 4),
    ]


@pytest.mark.rule("R-NF-3", "R-SO-1")
@on_every_engine
def test_the_cache_strip(engine: str) -> None:
    """Three batches, the first finished: SPSO is past it, the next fetch begins at the one released record, and
    an acquire gets that and then fresh ones."""
    table = Table(engine, [(100, 119), (120, 129), (130, 139), (140, 149)], 150, start=100)
    assert table.fetch("m1", 20, "batch_optimized") == ["100-119 x1"]
    assert table.fetch("m1", 10, "batch_optimized") == ["120-129 x1"]
    table.acknowledge("m1", RELEASE, (120, 129))
    assert table.fetch("m1", 10, "batch_optimized") == ["120-129 x2"]
    assert table.fetch("m2", 10, "batch_optimized") == ["130-139 x1"]
    table.acknowledge("m2", RELEASE, (131, 131))
    assert table.row() == (100, 140, "100-119 A1; 120-129 A2; 130 A1; 131 a1; 132-139 A1")
    table.acknowledge("m1", ACCEPT, (100, 119))
    view = table.view()
    assert drawn(view) == "120-129 A2; 130 A1; 131 a1; 132-139 A1"
    assert (view.spso, view.speo, view.delivery_complete_count, view.next_fetch_offset) == (120, 140, 0, 131)
    assert table.fetch("m1", 500, "batch_optimized") == ["131-131 x2", "140-149 x1"]


@pytest.mark.rule("R-AQ-6", "R-RL-6")
@on_every_engine
@pytest.mark.parametrize("end", ["its locks lapse", "its session ends"])
@pytest.mark.parametrize("log", [SINGLES, None], ids=["single-record batches", "no boundaries"])
def test_the_order_of_redelivery(engine: str, end: str, log: list[tuple[int, int]] | None) -> None:
    """What a dead consumer held comes before anything fresh, with count 2."""
    table = Table(engine, log, 140, start=100)
    assert table.fetch("c1", 10) == ["100-109 x1"]
    table.engine.advance(5)
    assert table.fetch("c2", 10) == ["110-119 x1"]
    if end == "its locks lapse":
        table.engine.advance(26)
    else:
        table.engine.release_member("g", "c1", [T0])
    redelivered = table.fetch("c2", 10)
    offsets = [int(run.split("-")[0]) for run in redelivered]
    assert table.row() == (100, 120, "100-109 A2; 110-119 A1")
    assert offsets == sorted(offsets)
    assert {run.split()[1] for run in redelivered} == {"x2"}
    assert table.fetch("c2", 10)[0].startswith("120-")
