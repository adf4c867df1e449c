"""What a person says of the records to replay becomes exactly these, or an error that says what is expected."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.results.replays import ReplayedPartition, ReplayReport
from sharequeue.spark.replays.selection import (
    TimeWindow,
    checked_name,
    name_of_leases,
    name_of_offsets,
    parse_leases,
    parse_offsets,
)


def test_a_day_has_23_hours_where_clocks_go_forward() -> None:
    """23 hours where clocks go forward; named after itself."""
    day = TimeWindow.of_day("2013-03-31", "Europe/Berlin")
    assert (day.until_ms - day.since_ms, day.name) == (23 * 3_600_000, "2013-03-31")
    assert TimeWindow.of_day("2013-03-31").since_ms == 1_364_688_000_000


def test_an_hour_that_clocks_repeat_is_two_windows() -> None:
    """Clocks show 02:00 at the beginning and at the end of the first one."""
    zone = ZoneInfo("Europe/Berlin")
    two = datetime(2012, 10, 28, 2, tzinfo=zone)
    first, second = TimeWindow(two, two.replace(fold=1)), TimeWindow(two.replace(fold=1), two.replace(hour=3))
    assert first.until_ms - first.since_ms == second.until_ms - second.since_ms == 3_600_000
    assert first.until_ms == second.since_ms


def test_each_window_has_its_own_name() -> None:
    begin = datetime(2013, 1, 1, 6, tzinfo=UTC)
    assert TimeWindow(begin, begin + timedelta(hours=1)).name == "20130101T060000Z-20130101T070000Z"
    assert TimeWindow(begin.replace(hour=0), begin.replace(hour=0) + timedelta(days=1)).name == "2013-01-01"
    assert TimeWindow(begin.replace(tzinfo=None), begin + timedelta(hours=1), "x").since == begin


def test_a_time_between_two_milliseconds_is_rounded_up() -> None:
    """Kafka's timestamps are whole milliseconds: the one before is too early."""
    begin = datetime(2013, 1, 1, microsecond=1, tzinfo=UTC)
    assert TimeWindow(begin, begin + timedelta(seconds=1)).since_ms == 1_356_998_400_001


def test_offsets_and_lease_ids_are_parsed() -> None:
    assert parse_offsets(["orders:0:5-9", "orders:0:3", "a.b:2:0"]) == {
        ("orders", 0): OffsetSet.of((3, 4), (5, 10)),
        ("a.b", 2): OffsetSet.of((0, 1)),
    }
    assert parse_leases(["3-5,9", "4"]) == (3, 4, 5, 9)
    assert name_of_leases([7]) == "lease-7"
    assert name_of_leases([7, 8]) == name_of_leases([8, 7])
    offsets = parse_offsets(["orders:0:5-9"])
    assert checked_name(name_of_offsets(offsets)) == name_of_offsets(offsets) != name_of_offsets({})


@pytest.mark.parametrize(
    "text", ["orders", "orders:0", "orders:0:9-5", "orders:0:-1", ":0:1", f"o:0:{2**63}", f"o:{2**31}:0"]
)
def test_invalid_offsets_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected TOPIC:PARTITION:FIRST-LAST"):
        parse_offsets([text])


@pytest.mark.parametrize("text", ["", "a", "1-", "0-99999999", f"{2**63}"])
def test_invalid_lease_ids_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="lease"):
        parse_leases([text])


@pytest.mark.parametrize("name", ["", ".", "..", "_x", "a/b", "a:b", "x" * 201])
def test_the_name_of_a_replay_must_be_a_folder_name(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a replay"):
        checked_name(name)


def test_a_day_must_be_a_date() -> None:
    with pytest.raises(ValueError, match="is not a day"):
        TimeWindow.of_day("today")


def test_a_replay_report_is_read_from_its_file() -> None:
    partition = ReplayedPartition("orders", 0, "id", OffsetSet.of((1, 3), (5, 6)))
    report = ReplayReport("g", "s", "n", "at 3 offsets", (partition,), "/out", 2, 4, 0, 1, 0, ("gone",), 6)
    assert ReplayReport.of_plain(report.plain()) == report
    assert "2 accepted, 4 accepted rows, 1 rejected" in str(report)
