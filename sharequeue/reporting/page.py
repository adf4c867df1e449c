"""How does a report on a share group look as one page?

HTML without anything from elsewhere: no script, no font, no picture, no style. Dark where the reader's screen is.
Every value is escaped (`html`): names of groups, topics and members, and reasons, are other people's text. The pages
of the service are made of the same parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC

from sharequeue.names import listed
from sharequeue.reporting import drawing
from sharequeue.reporting.drawing import CAUSE_COLOURS, OUTCOME_COLOURS, STATE_COLOURS, number
from sharequeue.reporting.html import Content, Html, each, element, joined
from sharequeue.reporting.html import table as any_table
from sharequeue.state.group_report import MOST_WINDOWS, CausesOfDay, GroupReport, Moment
from sharequeue.values import DeliveryCount, SharePartitionStatus

MOST_ROWS = 200
"""Of a table; the views have all."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The Content-Security-Policy of the page, also where it is a file."""
_MOST_COUNTS = 20
"""Delivery counts with a bar of their own."""
_MOST_REMARKS = 20

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
caption { font-size: .85rem; padding: .2rem 0; text-align: left; } tbody th { font-weight: normal; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .6rem; text-align: left; white-space: nowrap; }
td.number, th.number { font-variant-numeric: tabular-nums; text-align: right; } .note { font-size: .85rem; }
"""


def page(report: GroupReport) -> str:
    """Return the report as one HTML document."""
    group, day = report.figures.group_id, report.at.astimezone(UTC).strftime("%Y-%m-%d")
    sections = (
        ("Lag", lag_line(report.moments)),
        ("Throughput", _throughput(report)),
        ("Deliveries until a record ended", histogram(report.delivery_counts)),
        ("In flight", _windows(report)),
        ("Dead letters by day and cause", causes(report.causes)),
        ("Stuck leases", _stuck(report)),
        ("Share-partitions", _share_partitions(report)),
        ("How records ended", _ended(report)),
    )
    body = each(element("section", element("h2", title), inside) for title, inside in sections)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element(
            "meta",
            http_equiv="Content-Security-Policy",
            content=POLICY,
        ),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{group}, {day}"),
        element("style", Html(_STYLE)),
    )
    main = element(
        "main",
        element("h1", f"Share group {group}"),
        element("p", f"As of {report.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC."),
        figures(report),
        body,
    )
    return f"<!doctype html>\n{element('html', head, element('body', main), lang='en')}\n"


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


def figures(report: GroupReport) -> Html:
    """Return the figures of a group as boxes, and below them what somebody has to act on."""
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
    return joined(boxes(entries), remarks(report.statuses))


def boxes(entries: Sequence[tuple[str, Content, bool]]) -> Html:
    """Return figures with their names, those that are wrong marked as such."""
    return element(
        "dl",
        *(
            element("div", element("dt", name), element("dd", value), class_="wrong" if wrong else "fine")
            for name, value, wrong in entries
        ),
    )


def remarks(statuses: Sequence[SharePartitionStatus]) -> Html:
    """Return what somebody has to act on, of each share-partition."""
    of: dict[str, list[str]] = {}
    for status in statuses:
        for remark in (status.paused_reason, status.fault, status.held_reason, status.obstacle):
            if remark:
                of.setdefault(remark, []).append(f"{status.topic}-{status.partition}")
    said = [f"{listed(names)}: {remark}" for remark, names in of.items()]
    more = [f"and {len(said) - _MOST_REMARKS:,} more remarks"] if len(said) > _MOST_REMARKS else []
    return each(element("p", remark, class_="wrong") for remark in said[:_MOST_REMARKS] + more)


def lag_line(moments: Sequence[Moment]) -> Html:
    """Return the lag of the last 24 hours as a line."""
    if not moments:
        return element("p", "No report of the last 24 hours.")
    points = [(moment.at, float(moment.lag)) for moment in moments]
    return drawing.lines(points, title="Lag of the last 24 hours", unit="records")


def _throughput(report: GroupReport) -> Html:
    rates = report.rates()
    if not rates:
        return element("p", "Known from the second report on.")
    return drawing.lines(rates, title="Records that ended a second", unit="records/s")


def histogram(counts: Sequence[DeliveryCount]) -> Html:
    """Return how many records ended at which delivery count, as bars."""
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
    return drawing.bars(groups, OUTCOME_COLOURS, title="Deliveries until a record ended", logarithmic=True)


def _windows(report: GroupReport) -> Html:
    if not report.windows:
        return element("p", "Nothing is in flight.")
    strips = each(
        joined(
            element("h3", f"{window.topic}-{window.partition}"),
            drawing.strip(window),
            element("p", drawing.said(window), class_="note"),
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


def causes(found: Sequence[CausesOfDay]) -> Html:
    """Return dead letters by day and cause, as bars and as a table."""
    if not found:
        return element("p", "No dead letters in the last 30 days.")
    days: dict[str, dict[str, int]] = {}
    for cause in found:
        bar = days.setdefault(f"{cause.day:%m-%d}", {})
        bar[cause.cause] = bar.get(cause.cause, 0) + cause.written_records
        bar["dropped"] = bar.get("dropped", 0) + cause.dropped_records
    return joined(
        drawing.bars(list(days.items()), CAUSE_COLOURS, title="Dead letters by day and cause"),
        table(
            ("day", "cause", "written", "dropped"),
            [(f"{c.day}", c.cause, c.written_records, c.dropped_records) for c in found],
            caption="Dead letters by day (UTC) and cause",
        ),
    )


def _stuck(report: GroupReport) -> Html:
    if not report.stuck:
        return element("p", "None.")
    return table(
        ("lease", "share-partition", "member", "records", "held for", "why"),
        [
            (
                str(lease.lease_id),
                f"{lease.topic}-{lease.partition}",
                lease.member_id,
                lease.records,
                duration(lease.held_seconds),
                lease.reason,
            )
            for lease in report.stuck
        ],
        caption="Leases that nobody brings to an end",
        of=report.figures.stuck_leases,
    )


def _share_partitions(report: GroupReport) -> Html:
    ages = {(oldest.topic, oldest.partition): oldest.age_seconds for oldest in report.oldest}
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
    rows: list[Sequence[Content]] = [
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
    if not rows:
        return element("p", "None yet.")
    return table(
        columns, rows, caption="Share-partitions, those with most lag first", of=len(report.statuses)
    )


def _ended(report: GroupReport) -> Html:
    rows = [
        (outcome, count, records)
        for (outcome, count), records in sorted(_ends(report.delivery_counts).items())
    ]
    if not rows:
        return element("p", "No record has ended yet.")
    return table(("outcome", "delivery count", "records"), rows, caption="How records ended")


def _ends(counts: Sequence[DeliveryCount]) -> Mapping[tuple[str, int], int]:
    summed: dict[tuple[str, int], int] = {}
    for count in counts:
        key = (count.outcome, count.delivery_count)
        summed[key] = summed.get(key, 0) + count.records
    return summed


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Content]], *, caption: str, of: int | None = None
) -> Html:
    """Return a table of MOST_ROWS rows at most; a note where it has not all of what there is."""
    return any_table(columns, rows[:MOST_ROWS], caption=caption, of=len(rows) if of is None else of)
