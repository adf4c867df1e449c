"""The page of a group: its figures, share-partitions with their windows, leases with their holders, and members."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.values import LeaseRow, OpenKey
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.descriptions import GroupDescription, describe_group
from sharequeue.reports import drawing, parts
from sharequeue.reports.data_docs import data_docs_path
from sharequeue.reports.drawing import STATE_COLOURS
from sharequeue.reports.html import Content, Html, address, each, element, joined, moment, short_moment, table
from sharequeue.reports.read import read_figures, read_windows
from sharequeue.reports.remarks import remarks_of
from sharequeue.service.pages.layout import link
from sharequeue.service.pages.requests import PageRequest
from sharequeue.state import State

_PARTITIONS = 25
_KEYS = 50
_LEASES = 50
_STUCK = 100
_MEMBERS = 100
_TOPICS = 10
"""The maximum number of a member's topics that are shown."""
_LARGEST_STRIP = 10_000
"""The maximum offsets of a window that is drawn on this page; the report draws larger ones."""
_RUN = "dagster-run-"
"""The prefix of the client id of a member that is a Dagster run."""


def group(request: PageRequest) -> Response:
    """Return the page of one group."""
    group_id, state = request.group(), State(request.database)
    sums = read_figures(request.database, group_id)
    pages = max(1, -(-sums.share_partitions // _PARTITIONS))
    number = request.number("page", 1, pages)
    statuses = state.figures.some(group_id, skip=(number - 1) * _PARTITIONS, most=_PARTITIONS, by_lag=True)
    stuck = state.figures.leases(group_id, stuck=True, most=_STUCK)
    sections: list[tuple[str, Content]] = [
        (
            "Share-partitions",
            joined(_partitions(request, group_id, statuses), _pager(group_id, number, pages))
            if statuses
            else element("p", "None yet."),
        ),
        ("Leases", _leases(state.figures.leases(group_id, most=_LEASES), sums.leases)),
        ("Stuck leases", parts.stuck(stuck, sums.stuck_leases)),
        ("Members", _members(describe_group(request.database, group_id))),
    ]
    if sums.open_keys:
        sections.insert(1, ("Open keys", _keys(state.figures.open_keys(group_id, _KEYS), sums.open_keys)))
    topic = GroupConfigs.load(request.database, group_id).dead_letter_topic
    links = [
        link("Report: lag, throughput, deliveries, dead letters by day", address("/v1/reports", group_id)),
        link("Dead letters", address("/dead-letters", group_id)),
        link("Data Docs of the dead letters", data_docs_path(group_id)) if topic else None,
    ]
    return request.page(
        f"Group {group_id}",
        element("h1", f"Share group {group_id}"),
        element("p", "As of ", moment(state.now()), " UTC."),
        parts.boxes(sums),
        element("ul", each(element("li", entry) for entry in links if entry), class_="links"),
        parts.remarks(remarks_of(request.database, group_id, statuses)),
        each(element("section", element("h2", title), inside) for title, inside in sections),
    )


def _pager(group_id: str, number: int, pages: int) -> Html | None:
    if pages == 1:
        return None
    entries = [
        link(label, address("/groups", group_id, page=to))
        for label, to in (("Previous", number - 1), ("Next", number + 1))
        if 1 <= to <= pages
    ]
    return joined(
        element("p", f"Page {number:,} of {pages:,}, most lag first."),
        element("ul", each(element("li", entry) for entry in entries), class_="links"),
    )


def _partitions(request: PageRequest, group_id: str, statuses: Sequence[SharePartitionStatus]) -> Html:
    drawn: dict[str, list[int]] = {}
    for status in statuses:
        if 0 < status.in_flight <= _LARGEST_STRIP:
            drawn.setdefault(status.topic, []).append(status.partition)
    found = read_windows(request.database, group_id, drawn, None) if drawn else ()
    strips = {(window.topic, window.partition): drawing.strip(window) for window in found}

    def strip(status: SharePartitionStatus) -> Content:
        if status.in_flight > _LARGEST_STRIP:
            return f"{status.in_flight:,} offsets: see the report"
        return strips.get((status.topic, status.partition), "nothing")

    return joined(
        drawing.legend(STATE_COLOURS),
        parts.share_partitions(
            statuses,
            caption="Share-partitions; the strip shows the offsets from SPSO (left) to SPEO (right)",
            more={"in flight": strip, "state": _state},
        ),
    )


def _state(status: SharePartitionStatus) -> Content:
    """Return the status in one word; the reasons are shown above."""
    named = (("paused", status.paused_reason), ("faulty", status.fault), ("held", status.held_reason))
    words = [word for word, why in named if why]
    if status.status != "active":
        words.insert(0, status.status)
    if words:
        return element("span", ", ".join(words), class_="wrong")
    return f"active: {status.blocked_by}" if status.blocked_by else "active"


def _keys(keys: Sequence[OpenKey], count: int) -> Html:
    """Return a table of the open keys of a group that is ordered by key."""
    rows: list[Sequence[Content]] = [
        (
            f"{key.topic}-{key.partition}",
            key.first_offset,
            element("span", "dead letter", class_="wrong") if key.state == "dead_letter" else key.state,
            key.held_records,
            short_moment(key.since),
            None if key.until is None else short_moment(key.until),
            element("code", key.key_hash.hex),
        )
        for key in keys
    ]
    columns = (
        "share-partition",
        "first open record",
        "its state",
        "held records",
        "since (UTC)",
        "until (UTC)",
        "key hash",
    )
    return table(columns, rows, caption="Open keys, the oldest first", of=count)


def _leases(leases: Sequence[LeaseRow], count: int) -> Html:
    """Return a table of the leases: holder, times and run."""
    if not leases:
        return element("p", "Nothing is leased.")
    rows: list[Sequence[Content]] = [
        (
            str(lease.lease_id),
            f"{lease.topic}-{lease.partition}",
            f"{lease.offsets.first:,} to {lease.offsets.end - 1:,}" if lease.offsets else None,
            lease.records,
            lease.highest_delivery_count,
            "gone, or outside the group" if lease.client_id is None else _holder(lease.client_id),
            lease.member_id,
            short_moment(lease.acquired_at),
            short_moment(lease.expires_at),
            f"in {parts.duration(lease.seconds_left)}"
            if lease.seconds_left >= 0
            else element("span", f"{parts.duration(-lease.seconds_left)} ago", class_="wrong"),
        )
        for lease in leases
    ]
    columns = (
        *("lease", "share-partition", "offsets", "records", "most deliveries", "run or client", "member"),
        *("since (UTC)", "until (UTC)", "lapses"),
    )
    return table(columns, rows, caption="Leases, the soonest to lapse first", of=count)


def _holder(client_id: str) -> Content:
    """Return the Dagster run of a member, else its client id."""
    if client_id.startswith(_RUN):
        return joined("run ", element("code", client_id.removeprefix(_RUN)))
    return client_id or None


def _members(group: GroupDescription) -> Html:
    if not group.members:
        return element("p", "The group has no members.")
    rows: list[Sequence[Content]] = []
    for member in group.members[:_MEMBERS]:
        topics = member.subscribed_topic_names
        more = f" and {len(topics) - _TOPICS} more" if len(topics) > _TOPICS else ""
        rows.append(
            (
                member.member_id,
                _holder(member.client_id),
                member.client_host or None,
                member.rack_id,
                member.member_epoch,
                ", ".join(topics[:_TOPICS]) + more,
                member.partitions,
                short_moment(member.joined_at),
                short_moment(member.session_expires_at),
            )
        )
    columns = (
        *("member", "run or client", "host", "rack", "epoch", "subscribed to", "share-partitions"),
        *("joined (UTC)", "session until (UTC)"),
    )
    return table(
        columns,
        rows,
        caption=f"Members, assigned by {group.assignor_name}",
        of=len(group.members),
        texts=("subscribed to",),
    )
