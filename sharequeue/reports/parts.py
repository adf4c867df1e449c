"""The parts of pages on share groups: figures as boxes and tables, pictures with their words.

The page of a report and the pages of the service use them. Every value is escaped (`html`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date

from sharequeue.domain.figures import Figure, GroupFigures, SharePartitionStatus, figures_of
from sharequeue.domain.values import DeliveryCount, LeaseRow
from sharequeue.reports import drawing
from sharequeue.reports.drawing import CAUSE_COLOURS, OUTCOME_COLOURS, number
from sharequeue.reports.html import Content, Html, each, element, joined, moment, table
from sharequeue.reports.read import CausesOfDay, ReportedMoment
from sharequeue.reports.remarks import Remark, lines_of

_MOST_COUNTS = 20
"""The number of delivery counts with their own bar."""
_MOST_REMARKS = 20


def duration(seconds: float | None) -> str:
    """Return a duration for readers, in its two largest units; `unknown` for None."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{whole} s"
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count:,} {unit}" for count, unit in parts[first : first + 2] if count)


def cell(figure: Figure, row: GroupFigures | SharePartitionStatus) -> Content:
    """Return a figure as a page shows it; None if it is not known."""
    value = getattr(row, figure.name)
    if value is None:
        return None
    if figure.unit == "seconds":
        return duration(value)
    if figure.unit == "records/s":
        return f"{number(value)} records/s"
    if figure.unit == "time":
        return moment(value)
    return element("span", f"{value:,}", class_="wrong") if figure.wrong and value else value


def shown_figures(kind: type, *, in_lists: bool = False) -> list[Figure]:
    """Return the figures that pages show; with `in_lists` only those that lists show."""
    return [each for each in figures_of(kind) if each.title and (each.listed or not in_lists)]


def boxes(group: GroupFigures, **more: Content) -> Html:
    """Return all figures of a group as boxes; `more` are others by name, with _ for a space."""
    named = [(each.title, cell(each, group)) for each in shown_figures(GroupFigures)]
    named += [(name.replace("_", " "), value) for name, value in more.items()]
    return element(
        "dl",
        *(
            element(
                "div",
                element("dt", name[0].upper() + name[1:]),
                element("dd", "–" if value is None else f"{value:,}" if isinstance(value, int) else value),
            )
            for name, value in named
        ),
    )


def share_partitions(
    statuses: Sequence[SharePartitionStatus],
    *,
    caption: str,
    of: int | None = None,
    more: Mapping[str, Callable[[SharePartitionStatus], Content]] | None = None,
) -> Html:
    """Return a table of share-partitions; `more` has further columns, each with the function for its cells."""
    figures, more = shown_figures(SharePartitionStatus, in_lists=True), more or {}
    return table(
        ("share-partition", *(each.title for each in figures), *more),
        [
            (
                f"{status.topic}-{status.partition}",
                *(cell(each, status) for each in figures),
                *(made(status) for made in more.values()),
            )
            for status in statuses
        ],
        caption=caption,
        of=of,
        numbers=[each.title for each in figures],
    )


def remarks(found: Iterable[Remark]) -> Html:
    """Return the remarks on a group."""
    lines = [line.text for line in lines_of(found)]
    more = [f"and {len(lines) - _MOST_REMARKS:,} more remarks"] if len(lines) > _MOST_REMARKS else []
    return each(element("p", remark, class_="wrong") for remark in lines[:_MOST_REMARKS] + more)


def lag_line(moments: Sequence[ReportedMoment]) -> Html:
    """Return the lag of the last 24 hours as a line."""
    if not moments:
        return element("p", "No report of the last 24 hours.")
    points = [(moment.at, float(moment.lag)) for moment in moments]
    return drawing.lines(points, title="Lag of the last 24 hours", unit="offsets")


def histogram(counts: Sequence[DeliveryCount]) -> Html:
    """Return the number of records that ended at each delivery count, as bars."""
    if not counts:
        return element("p", "No record has ended yet.")
    summed: dict[int, dict[str, int]] = {}
    for count in counts:
        bar = summed.setdefault(min(count.delivery_count, _MOST_COUNTS), {})
        bar[count.outcome] = bar.get(count.outcome, 0) + count.records
    groups = [
        (f"{count} or more" if count == _MOST_COUNTS else str(count), summed[count])
        for count in sorted(summed)
    ]
    return drawing.bars(groups, OUTCOME_COLOURS, title="Deliveries per finished record", logarithmic=True)


def causes_by_day(found: Iterable[CausesOfDay]) -> dict[date, dict[str, int]]:
    """Count the letters of each day by cause; dropped letters count as `dropped`."""
    days: dict[date, dict[str, int]] = {}
    for cause in found:
        bar = days.setdefault(cause.day, {})
        bar[cause.cause] = bar.get(cause.cause, 0) + cause.written_records
        bar["dropped"] = bar.get("dropped", 0) + cause.dropped_records
    return days


def causes(found: Sequence[CausesOfDay]) -> Html:
    """Return dead letters by day and cause, as bars and as a table."""
    if not found:
        return element("p", "No dead letters in the last 30 days.")
    bars = [(f"{day:%m-%d}", counted) for day, counted in causes_by_day(found).items()]
    return joined(
        drawing.bars(bars, CAUSE_COLOURS, title="Dead letters by day and cause"),
        table(
            ("day", "cause", "written", "dropped"),
            [(f"{c.day}", c.cause, c.written_records, c.dropped_records) for c in found],
            caption="Dead letters by day (UTC) and cause",
        ),
    )


def stuck(leases: Sequence[LeaseRow], of: int | None = None) -> Html:
    """Return the stuck leases, and why they are stuck."""
    if not leases:
        return element("p", "None.")
    return table(
        ("lease", "share-partition", "member", "records", "held for", "why"),
        [
            (
                str(each.lease_id),
                f"{each.topic}-{each.partition}",
                each.member_id,
                each.records,
                duration(each.held_seconds),
                each.stuck_reason,
            )
            for each in leases
        ],
        caption="Stuck leases",
        of=of,
    )
