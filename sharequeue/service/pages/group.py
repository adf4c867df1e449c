"""The page of a group: how far it is, what is in flight, who holds it, and how it got there."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.configs.texts import as_text
from sharequeue.groups.descriptions import assignor_of
from sharequeue.reporting import drawing
from sharequeue.reporting.drawing import STATE_COLOURS
from sharequeue.reporting.html import Content, Html, address, each, element, joined, table
from sharequeue.reporting.page import boxes, causes, duration, histogram, lag_line, remarks
from sharequeue.service.pages import reads
from sharequeue.service.pages.frame import link, moment, pager, short_moment
from sharequeue.service.pages.looking import Look
from sharequeue.state import State
from sharequeue.state.group_report import (
    GroupFigures,
    Window,
    read_causes,
    read_moments,
    read_stuck,
)
from sharequeue.values import SharePartitionStatus

_PARTITIONS = 25
_HOLDINGS = 50
_MEMBERS = 100


def group(look: Look) -> Response:
    """Return the page of one group."""
    group_id = look.group()
    database, figures = look.database, State(look.database).figures
    count = reads.count(database, group_id)
    pages = max(1, -(-count // _PARTITIONS))
    page = look.number("page", 1, pages, 1)
    by_lag = look.asked("sort") == "lag"
    statuses = (
        look.read(
            "share-partitions",
            lambda: figures.some(group_id, skip=(page - 1) * _PARTITIONS, most=_PARTITIONS, by_lag=by_lag),
        )
        or []
    )
    sums = look.read(
        "sums of the group",
        lambda: reads.figures(database, [group_id]).get(group_id, GroupFigures(group_id)),
    )
    sections: list[tuple[str, Content]] = [
        ("Share-partitions", _partitions(look, group_id, statuses, count, page, pages, by_lag)),
        ("Leases", holdings(look, group_id, sums.leases if sums else None)),
        ("Stuck leases", _stuck(look, group_id)),
        ("Members", _members(look, group_id)),
        ("Lag", lag_line(look.read("history of lag", lambda: read_moments(database, group_id)) or [])),
        (
            "Deliveries until a record ended",
            histogram(look.read("delivery counts", lambda: figures.delivery_counts(group_id)) or []),
        ),
        (
            "Dead letters by day and cause",
            joined(
                element("p", link("Browse the dead letters", address("/dead-letters", group_id))),
                causes(look.read("dead letters", lambda: read_causes(database, group_id)) or []),
            ),
        ),
        ("Configs", _configs(look, group_id)),
    ]
    return look.document(
        f"Group {group_id}",
        element("h1", f"Share group {group_id}"),
        element("p", "As of ", moment(State(database).now()), " UTC."),
        look.said_late(),
        _head(sums),
        remarks(statuses),
        each(element("section", element("h2", title), inside) for title, inside in sections),
    )


def _head(figures: GroupFigures | None) -> Html:
    if figures is None:
        return element("p", "The sums of the group are not known now.", class_="note")
    rate = "unknown" if figures.throughput is None else f"{drawing.number(figures.throughput)} records/s"
    age = figures.oldest_age_seconds
    return boxes(
        (
            ("Lag", f"{figures.lag:,}", False),
            ("Throughput, last hour", rate, False),
            ("Time to drain", duration(figures.time_to_drain_seconds), False),
            ("Oldest record waits", "–" if age is None else duration(age), False),
            ("In flight", f"{figures.in_flight:,}", False),
            ("Acquired", f"{figures.acquired:,}", False),
            ("Accepted", f"{figures.accepted:,}", False),
            ("Rejected", f"{figures.rejected:,}", False),
            ("Delivered too often", f"{figures.exhausted:,}", False),
            ("Wait for their dead letter", f"{figures.archiving:,}", figures.archiving > 0),
            ("Stuck leases", f"{figures.stuck_leases:,}", figures.stuck_leases > 0),
            ("Lost records", f"{figures.lost_records:,}", figures.lost_records > 0),
        )
    )


def _partitions(
    look: Look,
    group_id: str,
    statuses: Sequence[SharePartitionStatus],
    count: int,
    page: int,
    pages: int,
    by_lag: bool,
) -> Html:
    if not count:
        return element("p", "None yet: they come with the first member that subscribes to a topic.")
    drawn = [each for each in statuses if 0 < each.in_flight <= reads.LARGEST_STRIP]
    windows = look.read("windows", lambda: reads.windows(look.database, group_id, drawn)) or {}
    rows: list[Sequence[Content]] = []
    for status in statuses:
        at = address("/share-partitions", group_id, topic=status.topic, partition=status.partition)
        rows.append(
            (
                link(f"{status.topic}-{status.partition}", at),
                _strip(status, windows.get((status.topic, status.partition)), at),
                status.lag,
                status.spso,
                status.speo,
                status.log_end,
                status.available,
                status.acquired,
                status.archiving,
                status.leases,
                status.highest_delivery_count,
                _state(status),
            )
        )
    columns = (
        "share-partition",
        "in flight",
        "lag",
        "SPSO",
        "SPEO",
        "log end",
        "available",
        "acquired",
        "archiving",
        "leases",
        "most deliveries",
        "state",
    )
    order = (
        link("Sort by name", address("/groups", group_id))
        if by_lag
        else link("Most lag first", address("/groups", group_id, sort="lag"))
    )
    return joined(
        element("p", f"{count:,} in all. ", order),
        drawing.legend(STATE_COLOURS),
        table(
            columns,
            rows,
            caption="Share-partitions; the strip has the offsets from SPSO (left) to SPEO (right)",
        ),
        pager(page, pages, "/groups", group_id, sort="lag" if by_lag else None),
    )


def _state(status: SharePartitionStatus) -> Content:
    """A word; what it is about stands above."""
    named = (("paused", status.paused_reason), ("faulty", status.fault), ("held", status.held_reason))
    words = [word for word, why in named if why]
    if status.status != "active":
        words.insert(0, status.status)
    if words:
        return element("span", ", ".join(words), class_="wrong")
    return f"active: {status.blocked_by}" if status.blocked_by else "active"


def _strip(status: SharePartitionStatus, window: Window | None, at: str) -> Content:
    if window is not None and window.speo > window.spso:
        return drawing.strip(window)
    if status.in_flight > reads.LARGEST_STRIP:
        return link(f"{status.in_flight:,} offsets: see its page", at)
    return "nothing" if status.in_flight == 0 else None


def holdings(
    look: Look, group_id: str, count: int | None, topic: str | None = None, partition: int | None = None
) -> Html:
    """Return who holds what, since when and till when, and which run that is."""
    found = look.read("leases", lambda: reads.holdings(look.database, group_id, _HOLDINGS, topic, partition))
    if not found:
        return element("p", "Nothing is leased.")
    rows: list[Sequence[Content]] = [
        (
            str(each.lease_id),
            link(
                f"{each.topic}-{each.partition}",
                address("/share-partitions", group_id, topic=each.topic, partition=each.partition),
            ),
            "–" if each.first is None else f"{each.first:,} to {each.last:,}",
            each.records,
            each.highest_delivery_count,
            holder(each.client_id),
            each.member_id,
            short_moment(each.acquired_at),
            short_moment(each.expires_at),
            f"in {duration(each.seconds_left)}"
            if each.seconds_left >= 0
            else element("span", f"{duration(-each.seconds_left)} ago", class_="wrong"),
        )
        for each in found
    ]
    columns = (
        "lease",
        "share-partition",
        "offsets",
        "records",
        "most deliveries",
        "run or client",
        "member",
        "since (UTC)",
        "till (UTC)",
        "lapses",
    )
    return table(columns, rows, caption="Leases, the soonest to lapse first", of=count)


def holder(client_id: str | None) -> Content:
    """Return which run of Dagster's a member is, else its client id."""
    if client_id is None:
        return "gone, or outside the group"
    if client_id.startswith(reads.RUN):
        return joined("run ", element("code", client_id.removeprefix(reads.RUN)))
    return client_id or None


def _stuck(look: Look, group_id: str) -> Html:
    found = look.read("stuck leases", lambda: read_stuck(look.database, group_id))
    if not found:
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
                each.reason,
            )
            for each in found
        ],
        caption="Leases that nobody brings to an end",
    )


def _members(look: Look, group_id: str) -> Html:
    found = look.read("members", lambda: reads.members(look.database, group_id, _MEMBERS + 1))
    assignor = look.read("assignor", lambda: assignor_of(look.database, group_id))
    said = element(
        "p",
        f"Assignor: {assignor}. A member's rack is stored and shown; no assignor uses it.",
        class_="note",
    )
    if not found:
        return joined(element("p", "Nobody is in the group."), said)
    rows: list[Sequence[Content]] = [
        (
            each.member_id,
            holder(each.client_id),
            each.client_host or None,
            each.rack_id,
            each.principal,
            each.member_epoch,
            ", ".join(each.subscribed_topic_names[:10])
            + (
                f" and {len(each.subscribed_topic_names) - 10} more"
                if len(each.subscribed_topic_names) > 10
                else ""
            ),
            each.share_partitions,
            short_moment(each.joined_at),
            short_moment(each.session_expires_at),
        )
        for each in found[:_MEMBERS]
    ]
    columns = (
        "member",
        "run or client",
        "host",
        "rack",
        "principal",
        "epoch",
        "subscribed to",
        "share-partitions",
        "joined (UTC)",
        "session till (UTC)",
    )
    more = element("p", f"The first {_MEMBERS}.", class_="note") if len(found) > _MEMBERS else None
    return joined(table(columns, rows, caption="Members", texts=("subscribed to",)), more, said)


def _configs(look: Look, group_id: str) -> Html:
    if "DESCRIBE_CONFIGS" not in look.may(group_id):
        return element("p", f"{look.principal} may not see them (DESCRIBE_CONFIGS).")
    found = GroupConfigs.load(look.database, group_id)
    rows = [
        (name, as_text(value), "set for this group" if name in found.own else "default")
        for name, value in sorted(found.values.items())
    ]
    return table(("config", "value", "from"), rows, caption="Configs of the group", texts=("value",))
