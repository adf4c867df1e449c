"""A report on a share group as one page.

Every value is escaped (`html`): names of groups, topics and members, and reasons, are text of other people. The page
is made of the same parts as the pages of the service.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC

from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.reports import drawing, parts
from sharequeue.reports.drawing import STATE_COLOURS
from sharequeue.reports.html import Content, Html, document, each, element, joined, moment, table
from sharequeue.reports.read import MOST_WINDOWS, GroupReport

MOST_ROWS = 200
"""The maximum number of rows of a table; the views have all rows."""


def report_page(report: GroupReport) -> str:
    """Return the report as one HTML document."""
    group, day = report.figures.group_id, report.at.astimezone(UTC).date()
    sections: tuple[tuple[str, Content], ...] = (
        ("Lag", parts.lag_line(report.moments)),
        ("Throughput", _throughput(report)),
        ("Deliveries per finished record", parts.histogram(report.delivery_counts)),
        ("In flight", _windows(report)),
        ("Dead letters by day and cause", parts.causes(report.causes)),
        ("Stuck leases", parts.stuck(report.stuck, report.figures.stuck_leases)),
        ("Share-partitions", _share_partitions(report)),
        ("Outcomes", _ended(report)),
    )
    today = sum(cause.written_records for cause in report.causes if cause.day == day)
    main = element(
        "main",
        element("h1", f"Share group {group}"),
        element("p", "As of ", moment(report.at), " UTC."),
        parts.boxes(report.figures, dead_letters_today=today),
        parts.remarks(report.remarks),
        each(element("section", element("h2", title), inside) for title, inside in sections),
    )
    return document(f"{group}, {day}", main)


def _throughput(report: GroupReport) -> Html:
    rates = report.rates()
    if not rates:
        return element("p", "Known from the second report on.")
    return drawing.lines(rates, title="Records that ended a second", unit="records/s")


def _windows(report: GroupReport) -> Html:
    if not report.windows:
        return element("p", "Nothing is in flight.")
    strips = each(
        joined(
            element("h3", f"{window.topic}-{window.partition}"),
            drawing.strip(window),
            element("p", drawing.window_text(window), class_="note"),
        )
        for window in report.windows
    )
    more = sum(status.in_flight > 0 for status in report.statuses) - len(report.windows)
    note = element(
        "p",
        f"The {MOST_WINDOWS} that have most in flight; {more:,} more are in the view ",
        element("code", "in_flight_windows"),
        ".",
        class_="note",
    )
    return joined(drawing.legend(STATE_COLOURS), strips, note if more > 0 else None)


def _share_partitions(report: GroupReport) -> Html:
    if not report.statuses:
        return element("p", "None yet.")
    ages = {(oldest.topic, oldest.partition): oldest.age_seconds for oldest in report.oldest}

    def waits(status: SharePartitionStatus) -> Content:
        at = (status.topic, status.partition)
        return parts.duration(ages.get(at)) if status.oldest_offset is not None else None

    return parts.share_partitions(
        sorted(report.statuses, key=lambda status: -status.lag)[:MOST_ROWS],
        caption="Share-partitions, those with most lag first",
        of=len(report.statuses),
        more={"waits": waits},
    )


def _ended(report: GroupReport) -> Html:
    summed = Counter[tuple[str, int]]()
    for count in report.delivery_counts:
        summed[count.outcome, count.delivery_count] += count.records
    if not summed:
        return element("p", "No record has ended yet.")
    return table(
        ("outcome", "delivery count", "records"),
        [(*ended, records) for ended, records in sorted(summed.items())][:MOST_ROWS],
        caption="Outcomes",
        of=len(summed),
    )
