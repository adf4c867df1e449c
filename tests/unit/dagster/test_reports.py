"""Reports: the numbers Dagster plots, the tables, the pictures."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import dagster as dg
import numpy as np
import pandas as pd

from sharequeue.dagster import reports
from sharequeue.dagster.tables import table
from sharequeue.deadletters.writer import DeadLetterReport, HeldLetters, PartitionReport
from sharequeue.domain.figures import GroupFigures, SharePartitionStatus
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.results.runs import RunReport
from sharequeue.domain.values import ArchivedRun, DeliveryCount, SharePartition
from sharequeue.reports.read import CausesOfDay, GroupReport, ReportedMoment
from sharequeue.spark.merged_summaries import first_rows
from sharequeue.state.journal import Day

NOW = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)

COUNTS = [
    DeliveryCount("flights", 0, "accepted", 1, 90),
    DeliveryCount("flights", 1, "accepted", 1, 10),
    DeliveryCount("flights", 1, "exhausted", 5, 2),
    DeliveryCount("flights", 0, "rejected", 1, 8),
]


def shown(markdown: object) -> str:
    """The text of a Markdown value that Dagster shows where it stands: below a thousand characters."""
    assert isinstance(markdown, dg.MarkdownMetadataValue)
    assert len(str(markdown.md_str)) < 1_000
    return str(markdown.md_str)


def test_the_rate_of_a_run_is_that_of_its_rounds() -> None:
    """The start is a number of its own, and does not make the run look slow."""
    metadata = reports.run(RunReport(group="g", accepted=400, seconds=9.0, start_seconds=5.0), [])
    names = ("run_seconds", "start_seconds", "rate_records_per_second")
    assert [metadata[name] for name in names] == [9.0, 5.0, 100.0]
    assert metadata["trace"] == "sharequeue trace TOPIC PARTITION OFFSET --group g"


def test_delivery_counts_are_summed_over_partitions() -> None:
    """The flat numbers are the group's: by outcome, and how often a record was delivered."""
    metadata = reports.delivery_counts(COUNTS)
    assert metadata["accepted_records"] == 100
    assert metadata["exhausted_records"] == 2
    assert metadata["gap_records"] == 0
    assert metadata["highest_delivery_count"] == 5
    assert metadata["deliveries_per_record"] == round((108 + 10) / 110, 4)
    assert "![108 at 1, 2 at 5 deliveries" in shown(metadata["histogram"])


def test_the_keys_of_a_materialization_do_not_depend_on_activity() -> None:
    """Every materialization has the same keys, so that a plot over time has no holes."""
    assert reports.delivery_counts([]).keys() == reports.delivery_counts(COUNTS).keys()


def report(partitions: int, reports: int) -> GroupReport:
    """A group of so many share-partitions, of which there are so many reports."""
    moments = [ReportedMoment(NOW + timedelta(minutes=n), 10 * n, 0, 0, 0, n) for n in range(reports)]
    return GroupReport(NOW, GroupFigures("g", partitions, 7), [status(n) for n in range(partitions)], moments)


def status(partition: int) -> SharePartitionStatus:
    """A share-partition whose lag is its number."""
    return SharePartitionStatus(
        *("g", "flights", partition, 500, 520, 0, 1_000, partition, 20),
        acquired=20,
    )


def test_the_report_has_numbers_then_pictures_then_tables() -> None:
    """What somebody looks for first stands first; SPSO and all numbers are flat, what is not known is null."""
    metadata = reports.spso_and_lag(report(2, 3), [])
    assert (metadata["lag_records"], metadata["throughput_records_per_second"]) == (7, None)
    assert metadata["dagster/row_count"] == 2
    assert metadata["spso_flights_1_offset"] == 500
    assert "now 20, highest 20 records" in shown(metadata["lag_over_time"])
    assert "records a second" in shown(metadata["throughput_over_time"])
    assert shown(metadata["in_flight_window"]) == "nothing in flight"
    keys = list(metadata)
    assert keys[0] == "lag_records"
    assert keys.index("stuck_leases") + 1 == keys.index("lag_over_time")
    kinds = [type(value).__name__ for value in metadata.values()]
    assert not {"int", "NoneType", "MarkdownMetadataValue"} & set(kinds[kinds.index("TableMetadataValue") :])


def test_the_report_of_a_thousand_share_partitions_is_bounded() -> None:
    """The table has those that lag most, and SPSO is no number of its own any more."""
    metadata = reports.spso_and_lag(report(1_000, 0), [])
    rows = metadata["share_partitions"].records
    assert (len(rows), rows[0].data["partition"]) == (reports.MOST_ROWS, 999)
    assert not [key for key in metadata if key.startswith("spso_")]


def test_finished_days_are_listed() -> None:
    """What the journal was rolled up to is there after the journal itself is gone."""
    day = Day(date(2026, 11, 20), "flights", 2, 40, 1, 12, 500, 480, 3, 4, 500, 520, 0, 1)
    (row,) = reports.spso_and_lag(report(1, 1), [day])["by_day"].records
    assert row.data["day"] == "2026-11-20"
    assert (row.data["leases"], row.data["accepted_first"], row.data["spso"]) == (12, 480, 500)


def test_held_dead_letters_are_listed_with_the_reason() -> None:
    """What could not be written is counted and listed with the reason."""
    at = SharePartition("g", "flights", 2)
    report = DeadLetterReport(
        "dlq.g", (PartitionReport(at, written=3),), (HeldLetters(at, 7, "no such topic"),), 0.5
    )
    causes = [CausesOfDay(date(2026, 11, day), "rejected", 3, 1) for day in (20, 21)]
    archived = [
        ArchivedRun(at, number, "rejected", 1, OffsetSet.of((0, 4)), NOW, dropped)
        for number, dropped in ((1, False), (2, True))
    ]
    metadata = reports.dead_letters(report, archived, [], causes)
    assert metadata["dagster/row_count"] == 4
    assert "![6 rejected, 2 dropped by day" in shown(metadata["causes_over_time"])
    assert (metadata["rejected_records"], metadata["exhausted_records"]) == (0, 0)
    assert (metadata["written_records"], metadata["held_records"]) == (3, 7)
    (row,) = metadata["held"].records
    assert row.data["reason"] == "no such topic"


def test_the_first_rows_of_a_summary_are_shown_whatever_their_types_are() -> None:
    """Bytes that are no text, decimals of many places, days, lists, infinities and values that are missing."""
    frame = pd.DataFrame(
        {
            "raw": [b"\xff\x00", None],
            "price": [Decimal("1.234567890123456789"), None],
            "day": [date(2013, 1, 1), None],
            "codes": [np.array([1, 2]), np.array([3])],
            "count": pd.array([1, None], dtype="Int64"),
            "delay": [1.5, float("nan")],
            "rate": [float("inf"), float("-inf")],
            "late": [True, False],
        }
    )
    rows = [record.data for record in table(*first_rows(frame, 2)).records]
    assert rows == [
        {
            "raw": "b'\\xff\\x00'",
            "price": "1.234567890123456789",
            "day": "2013-01-01",
            "codes": "[1 2]",
            "count": 1,
            "delay": 1.5,
            "rate": "inf",
            "late": True,
        },
        dict.fromkeys(("raw", "price", "day", "count", "delay"))
        | {"codes": "[3]", "rate": "-inf", "late": False},
    ]
