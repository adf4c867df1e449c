"""Reports: the numbers Dagster plots, the tables, the pictures."""

import base64
from datetime import UTC, date, datetime, timedelta

import dagster as dg

from sharequeue.dagster import plots, reports
from sharequeue.deadletters.writer import DeadLetterReport, Held, PartitionReport
from sharequeue.state.journal import Day
from sharequeue.values import DeliveryCount, SharePartition

PNG = b"\x89PNG\r\n\x1a\n"
COUNTS = [
    DeliveryCount("flights", 0, "accepted", 1, 90),
    DeliveryCount("flights", 1, "accepted", 1, 10),
    DeliveryCount("flights", 1, "exceeded", 5, 2),
    DeliveryCount("flights", 0, "rejected", 1, 8),
]


def picture(markdown: object) -> bytes:
    """The bytes of the picture inside a Markdown metadata value."""
    assert isinstance(markdown, dg.MarkdownMetadataValue)
    return base64.b64decode(str(markdown.md_str).rpartition("base64,")[2].rstrip(")"))


def test_delivery_counts_are_summed_over_partitions() -> None:
    """The flat numbers are the group's: by outcome, and how often a record was delivered."""
    metadata = reports.delivery_counts(COUNTS)
    assert metadata["accepted_records"] == 100
    assert metadata["exceeded_records"] == 2
    assert metadata["gap_records"] == 0
    assert metadata["highest_delivery_count"] == 5
    assert metadata["deliveries_per_record"] == round((108 + 10) / 110, 4)
    assert picture(metadata["histogram"]).startswith(PNG)


def test_the_keys_are_the_same_when_nothing_happened() -> None:
    """Every materialization has the same keys, so that a plot over time has no holes."""
    assert reports.delivery_counts([]).keys() == reports.delivery_counts(COUNTS).keys()


def test_lag_is_drawn_from_few_and_from_no_reports() -> None:
    """The first report ever has no history, the second a line of one step."""
    now = datetime.now(UTC)
    points = [(now, 10), (now + timedelta(seconds=1), 0)]
    for series in ({}, {"flights-0": points[:1]}, {"flights-0": points}):
        assert picture(plots.lines(series, title="Lag", unit="records")).startswith(PNG)


def test_days_that_are_over_are_listed() -> None:
    """What the journal was rolled up to is there after the journal itself is gone."""
    day = Day(date(2026, 11, 20), "flights", 2, 40, 1, 12, 500, 480, 3, 4, 500, 520, 0, 1)
    (row,) = reports.spso_and_lag([], [], [day])["by_day"].records
    assert row.data["day"] == "2026-11-20"
    assert (row.data["leases"], row.data["accepted_first"], row.data["spso"]) == (12, 480, 500)


def test_held_dead_letters_say_why() -> None:
    """What could not be written is counted and listed with the reason."""
    at = SharePartition("g", "flights", 2)
    report = DeadLetterReport(
        "dlq.g", (PartitionReport(at, written=3),), (Held(at, 7, "no such topic"),), 0.5
    )
    metadata = reports.dead_letters(report, [])
    assert (metadata["written_records"], metadata["held_records"]) == (3, 7)
    (row,) = metadata["held"].records
    assert row.data["reason"] == "no such topic"
