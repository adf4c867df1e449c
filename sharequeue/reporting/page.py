"""How does a report on a share group look as one page?

HTML without anything from elsewhere: no script, no font, no picture, no style. Dark where the reader's screen is.
Every value is escaped: names of groups, topics and members, and reasons, are other people's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from html import escape

from sharequeue.reporting import drawing
from sharequeue.reporting.drawing import CAUSE_COLOURS, OUTCOME_COLOURS, STATE_COLOURS, number
from sharequeue.state.group_report import MOST_WINDOWS, GroupReport
from sharequeue.values import DeliveryCount

MOST_ROWS = 200
"""Of a table; the views have all."""
_MOST_COUNTS = 20
"""Delivery counts with a bar of their own."""
_MOST_REMARKS = 20

Cell = str | int | float | None

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1b1b; --line: #c8c8c8; --soft: #f3f3f3; --wrong: #a8330b; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e8e8e8; --line: #444; --soft: #22252b; --wrong: #ff9d73; }
}
body { background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto;
  max-width: 1100px; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: .95rem; margin: .8rem 0 .2rem; overflow-wrap: anywhere; } p { margin: .2rem 0; }
dl { display: grid; gap: .6rem; grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)); margin: 1rem 0; }
dl div { background: var(--soft); border-radius: 6px; padding: .5rem .8rem; }
dt { font-size: .8rem; } dd { font-size: 1.35rem; margin: 0; } .wrong dd, p.wrong { color: var(--wrong); }
svg { display: inline-block; height: auto; max-width: 100%; } svg text { fill: currentColor; font-size: 11px; }
ul.legend { display: flex; flex-wrap: wrap; gap: 1rem; list-style: none; margin: .2rem 0; padding: 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .6rem; text-align: left; white-space: nowrap; }
td.number, th.number { font-variant-numeric: tabular-nums; text-align: right; } .note { font-size: .85rem; }
"""


def page(report: GroupReport) -> str:
    """Return the report as one HTML document."""
    group, day = report.figures.group_id, report.at.astimezone(UTC).strftime("%Y-%m-%d")
    sections = (
        ("Lag", _lag(report)),
        ("Throughput", _throughput(report)),
        ("Deliveries until a record ended", _histogram(report)),
        ("In flight", _windows(report)),
        ("Dead letters by day and cause", _causes(report)),
        ("Stuck leases", _stuck(report)),
        ("Share-partitions", _share_partitions(report)),
        ("How records ended", _ended(report)),
    )
    body = "".join(f"<section><h2>{title}</h2>{inside}</section>" for title, inside in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(group)}, {day}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>Share group {escape(group)}</h1>"
        f"<p>As of {report.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC.</p>"
        f"{_head(report)}{body}</main></body></html>\n"
    )


def duration(seconds: float | None) -> str:
    """A duration as people read it, in its two largest units; `unknown` for None."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{whole} s"
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count:,} {unit}" for count, unit in parts[first : first + 2] if count)


def _head(report: GroupReport) -> str:
    figures = report.figures
    today = [cause for cause in report.causes if cause.day == report.at.astimezone(UTC).date()]
    rate = "unknown" if figures.throughput is None else f"{number(figures.throughput)} records/s"
    entries = (
        ("Lag", f"{figures.lag:,}", False),
        ("In flight", f"{figures.in_flight:,}", False),
        ("Throughput, last hour", rate, False),
        ("Time to drain", duration(figures.time_to_drain_seconds), False),
        ("Oldest record waits", duration(figures.oldest_age_seconds) if report.oldest else "none", False),
        ("Accepted", f"{figures.accepted:,}", False),
        ("Finished past SPSO", f"{figures.delivery_complete_count:,}", False),
        ("Dead letters today", f"{sum(cause.written_records for cause in today):,}", False),
        ("Stuck leases", f"{figures.stuck_leases:,}", figures.stuck_leases > 0),
        ("Lost records", f"{figures.lost_records:,}", figures.lost_records > 0),
    )
    shown = "".join(
        f"<div class={'wrong' if wrong else 'fine'}><dt>{name}</dt><dd>{escape(value)}</dd></div>"
        for name, value, wrong in entries
    )
    return f"<dl>{shown}</dl>{_remarks(report)}"


def _remarks(report: GroupReport) -> str:
    """What somebody has to act on, of each share-partition."""
    said = [
        f"{status.share_partition}: {remark}"
        for status in report.statuses
        for remark in (status.paused_reason, status.fault, status.held_reason)
        if remark
    ]
    more = [f"and {len(said) - _MOST_REMARKS:,} more remarks"] if len(said) > _MOST_REMARKS else []
    return "".join(f'<p class="wrong">{escape(each)}</p>' for each in said[:_MOST_REMARKS] + more)


def _lag(report: GroupReport) -> str:
    if not report.moments:
        return "<p>No report of the last 24 hours.</p>"
    points = [(moment.at, float(moment.lag)) for moment in report.moments]
    return drawing.lines(points, title="Lag of the last 24 hours", unit="records")


def _throughput(report: GroupReport) -> str:
    rates = report.rates()
    if not rates:
        return "<p>Known from the second report on.</p>"
    return drawing.lines(rates, title="Records that ended a second", unit="records/s")


def _histogram(report: GroupReport) -> str:
    if not report.delivery_counts:
        return "<p>No record has ended yet.</p>"
    summed: dict[int, dict[str, int]] = {}
    for each in report.delivery_counts:
        bar = summed.setdefault(min(each.delivery_count, _MOST_COUNTS), {})
        bar[each.outcome] = bar.get(each.outcome, 0) + each.records
    groups = [
        (f"{count} or more" if count == _MOST_COUNTS else str(count), summed[count])
        for count in sorted(summed)
    ]
    return drawing.bars(groups, OUTCOME_COLOURS, title="Deliveries until a record ended", logarithmic=True)


def _windows(report: GroupReport) -> str:
    if not report.windows:
        return "<p>Nothing is in flight.</p>"
    strips = "".join(
        f"<h3>{escape(f'{window.topic}-{window.partition}')}</h3>{drawing.strip(window)}"
        f'<p class="note">{drawing.said(window)}</p>'
        for window in report.windows
    )
    more = sum(status.in_flight > 0 for status in report.statuses) - len(report.windows)
    note = (
        f'<p class="note">The {MOST_WINDOWS} that have most in flight; {more:,} more are in the view '
        "<code>in_flight_windows</code>.</p>"
        if more > 0
        else ""
    )
    return drawing.legend(STATE_COLOURS) + strips + note


def _causes(report: GroupReport) -> str:
    if not report.causes:
        return "<p>No dead letters in the last 30 days.</p>"
    days: dict[str, dict[str, int]] = {}
    for cause in report.causes:
        bar = days.setdefault(f"{cause.day:%m-%d}", {})
        bar[cause.cause] = bar.get(cause.cause, 0) + cause.written_records
        bar["dropped"] = bar.get("dropped", 0) + cause.dropped_records
    return drawing.bars(list(days.items()), CAUSE_COLOURS, title="Dead letters by day and cause") + _table(
        ("day", "cause", "written", "dropped"),
        [(f"{c.day}", c.cause, c.written_records, c.dropped_records) for c in report.causes],
    )


def _stuck(report: GroupReport) -> str:
    if not report.stuck:
        return "<p>None.</p>"
    return _table(
        ("lease", "share-partition", "member", "records", "held for", "why"),
        [
            (
                str(each.lease_id),
                f"{each.topic}-{each.partition}",
                each.member_id,
                each.records,
                duration(each.held_seconds),
                each.reason,
            )
            for each in report.stuck
        ],
        of=report.figures.stuck_leases,
    )


def _share_partitions(report: GroupReport) -> str:
    ages = {(each.topic, each.partition): each.age_seconds for each in report.oldest}
    columns = (
        "share-partition",
        "SPSO",
        "SPEO",
        "log end",
        "lag",
        "available",
        "acquired",
        "archiving",
        "finished past SPSO",
        "oldest offset",
        "waits",
    )
    most_lag = sorted(report.statuses, key=lambda status: -status.lag)[:MOST_ROWS]
    rows: list[Sequence[Cell]] = [
        (
            str(status.share_partition),
            status.spso,
            status.speo,
            status.log_end,
            status.lag,
            status.available,
            status.acquired,
            status.archiving,
            status.delivery_complete_count,
            status.oldest_offset,
            None if status.oldest_offset is None else duration(ages.get((status.topic, status.partition))),
        )
        for status in most_lag
    ]
    return _table(columns, rows, of=len(report.statuses)) if rows else "<p>None yet.</p>"


def _ended(report: GroupReport) -> str:
    rows = [
        (outcome, count, records)
        for (outcome, count), records in sorted(_ends(report.delivery_counts).items())
    ]
    return (
        _table(("outcome", "delivery count", "records"), rows) if rows else "<p>No record has ended yet.</p>"
    )


def _ends(counts: Sequence[DeliveryCount]) -> Mapping[tuple[str, int], int]:
    summed: dict[tuple[str, int], int] = {}
    for each in counts:
        key = (each.outcome, each.delivery_count)
        summed[key] = summed.get(key, 0) + each.records
    return summed


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, of: int | None = None) -> str:
    """A table, its numbers to the right; a note where it has not all of what there is."""
    rows, all_of = rows[:MOST_ROWS], len(rows) if of is None else of
    numeric = [any(isinstance(row[index], int) for row in rows) for index in range(len(columns))]
    side = [' class="number"' if each else "" for each in numeric]
    head = "".join(f"<th{at}>{escape(name)}</th>" for name, at in zip(columns, side, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{at}>{_text(cell)}</td>" for cell, at in zip(row, side, strict=True)) + "</tr>"
        for row in rows
    )
    note = f'<p class="note">The first {len(rows):,} of {all_of:,}.</p>' if all_of > len(rows) else ""
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}'


def _text(cell: Cell) -> str:
    if cell is None:
        return "–"
    return f"{cell:,}" if isinstance(cell, int) else escape(str(cell))
