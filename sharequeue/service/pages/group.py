"""The page of a group: its progress, its records in flight, the holders of its leases, and its history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

import sqlalchemy as sa
from starlette.responses import Response

from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.configs.texts import as_text
from sharequeue.reports import drawing, parts
from sharequeue.reports.drawing import STATE_COLOURS
from sharequeue.reports.html import Content, Html, address, each, element, joined, moment, short_moment, table
from sharequeue.reports.read import read_causes, read_figures, read_moments, read_windows
from sharequeue.service.pages.layout import link, pager
from sharequeue.service.pages.requests import PageRequest
from sharequeue.state import State
from sharequeue.words.figures import SharePartitionStatus

_PARTITIONS = 25
_HOLDINGS = 50
_STUCK = 100
_MEMBERS = 100
_TOPICS = 10
"""The maximum number of a member's topics that are shown."""
_LARGEST_STRIP = 10_000
"""The maximum offsets of a window that is drawn on this page; a larger one has its own page."""
_RUN = "dagster-run-"
"""The prefix of the client id of a member that is a Dagster run."""
_COUNT = sa.text("select count(*) as found from sharequeue.share_partitions where group_id = :group_id")
_MEMBERS_OF = sa.text(
    "select m.*, (select count(*) from sharequeue.assignments a"
    "  where a.group_id = m.group_id and a.member_id = m.member_id) as share_partitions"
    " from sharequeue.group_members m where m.group_id = :group_id order by m.member_id limit :most"
)


def group(request: PageRequest) -> Response:
    """Return the page of one group."""
    group_id, database = request.group(), request.database
    figures, now = State(database).figures, State(database).now()
    count = int(database.rows(_COUNT, group_id=group_id)[0]["found"])
    pages = max(1, -(-count // _PARTITIONS))
    page, by_lag = request.number("page", 1, pages, 1), request.asked("sort") == "lag"
    skip = (page - 1) * _PARTITIONS
    statuses = (
        request.read(
            "share-partitions",
            lambda: figures.some(group_id, skip=skip, most=_PARTITIONS, by_lag=by_lag),
        )
        or []
    )
    sums = request.read("sums of the group", lambda: read_figures(database, group_id))
    causes = request.read("dead letters", lambda: read_causes(database, group_id)) or []
    stuck = request.read("stuck leases", lambda: figures.leases(group_id, stuck=True, most=_STUCK)) or []
    today = sum(cause.written_records for cause in causes if cause.day == now.astimezone(UTC).date())
    sections: list[tuple[str, Content]] = [
        (
            "Share-partitions",
            joined(
                element("p", f"{count:,} in all. ", _order(group_id, by_lag)),
                _partitions(request, group_id, statuses),
                pager(page, pages, "/groups", group_id, sort="lag" if by_lag else None),
            )
            if count
            else element("p", "None yet: the first member that subscribes to a topic creates them."),
        ),
        ("Leases", leases(request, group_id, sums.leases if sums else None)),
        ("Stuck leases", parts.stuck(stuck, sums.stuck_leases if sums else None)),
        ("Members", _members(request, group_id)),
        (
            "Lag",
            parts.lag_line(request.read("history of lag", lambda: read_moments(database, group_id)) or []),
        ),
        (
            "Deliveries until a record ended",
            parts.histogram(request.read("delivery counts", lambda: figures.delivery_counts(group_id)) or []),
        ),
        (
            "Dead letters by day and cause",
            joined(
                element("p", link("Browse the dead letters", address("/dead-letters", group_id))),
                parts.causes(causes),
            ),
        ),
        ("Configs", _configs(request, group_id)),
    ]
    return request.document(
        f"Group {group_id}",
        element("h1", f"Share group {group_id}"),
        element("p", "As of ", moment(now), " UTC."),
        request.late_note(),
        parts.boxes(sums, dead_letters_today=today)
        if sums
        else element("p", "The sums of the group are not known now.", class_="note"),
        parts.remarks(statuses),
        each(element("section", element("h2", title), inside) for title, inside in sections),
    )


def _order(group_id: str, by_lag: bool) -> Html:
    if by_lag:
        return link("Sort by name", address("/groups", group_id))
    return link("Most lag first", address("/groups", group_id, sort="lag"))


def _partitions(request: PageRequest, group_id: str, statuses: Sequence[SharePartitionStatus]) -> Html:
    drawn: dict[str, list[int]] = {}
    for status in statuses:
        if 0 < status.in_flight <= _LARGEST_STRIP:
            drawn.setdefault(status.topic, []).append(status.partition)
    found = (
        request.read("windows", lambda: read_windows(request.database, group_id, drawn, None))
        if drawn
        else None
    )
    strips = {(window.topic, window.partition): drawing.strip(window) for window in found or ()}

    def at(status: SharePartitionStatus) -> str:
        return address("/share-partitions", group_id, topic=status.topic, partition=status.partition)

    def strip(status: SharePartitionStatus) -> Content:
        if status.in_flight > _LARGEST_STRIP:
            return link(f"{status.in_flight:,} offsets: see its page", at(status))
        return strips.get((status.topic, status.partition)) or ("nothing" if status.in_flight == 0 else None)

    return joined(
        drawing.legend(STATE_COLOURS),
        parts.share_partitions(
            statuses,
            caption="Share-partitions; the strip shows the offsets from SPSO (left) to SPEO (right)",
            name=lambda status: link(f"{status.topic}-{status.partition}", at(status)),
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


def leases(
    request: PageRequest,
    group_id: str,
    count: int | None,
    topic: str | None = None,
    partition: int | None = None,
) -> Html:
    """Return a table of the leases: holder, times and run."""
    found = request.read(
        "leases",
        lambda: State(request.database).figures.leases(group_id, topic, partition, most=_HOLDINGS),
    )
    if not found:
        return element("p", "Nothing is leased.")
    rows: list[Sequence[Content]] = [
        (
            str(lease.lease_id),
            link(
                f"{lease.topic}-{lease.partition}",
                address("/share-partitions", group_id, topic=lease.topic, partition=lease.partition),
            ),
            f"{lease.offsets.first:,} to {lease.offsets.end - 1:,}" if lease.offsets else None,
            lease.records,
            lease.highest_delivery_count,
            holder(lease.client_id),
            lease.member_id,
            short_moment(lease.acquired_at),
            short_moment(lease.expires_at),
            f"in {parts.duration(lease.seconds_left)}"
            if lease.seconds_left >= 0
            else element("span", f"{parts.duration(-lease.seconds_left)} ago", class_="wrong"),
        )
        for lease in found
    ]
    columns = (
        *("lease", "share-partition", "offsets", "records", "most deliveries", "run or client", "member"),
        *("since (UTC)", "till (UTC)", "lapses"),
    )
    return table(columns, rows, caption="Leases, the soonest to lapse first", of=count)


def holder(client_id: str | None) -> Content:
    """Return the Dagster run of a member, else its client id."""
    if client_id is None:
        return "gone, or outside the group"
    if client_id.startswith(_RUN):
        return joined("run ", element("code", client_id.removeprefix(_RUN)))
    return client_id or None


def _members(request: PageRequest, group_id: str) -> Html:
    found = request.read(
        "members", lambda: request.database.rows(_MEMBERS_OF, group_id=group_id, most=_MEMBERS + 1)
    )
    summary = element(
        "p", "A member's rack is stored and shown; the assignor does not use it.", class_="note"
    )
    if not found:
        return joined(element("p", "The group has no members."), summary)
    rows: list[Sequence[Content]] = []
    for row in found[:_MEMBERS]:
        topics = row["subscribed_topic_names"]
        more = f" and {len(topics) - _TOPICS} more" if len(topics) > _TOPICS else ""
        rows.append(
            (
                row["member_id"],
                holder(row["client_id"]),
                row["client_host"] or None,
                row["rack_id"],
                row["principal"],
                row["member_epoch"],
                ", ".join(topics[:_TOPICS]) + more,
                row["share_partitions"],
                short_moment(row["joined_at"]),
                short_moment(row["session_expires_at"]),
            )
        )
    columns = (
        *(
            "member",
            "run or client",
            "host",
            "rack",
            "principal",
            "epoch",
            "subscribed to",
            "share-partitions",
        ),
        *("joined (UTC)", "session until (UTC)"),
    )
    rest = element("p", f"The first {_MEMBERS}.", class_="note") if len(found) > _MEMBERS else None
    return joined(table(columns, rows, caption="Members", texts=("subscribed to",)), rest, summary)


def _configs(request: PageRequest, group_id: str) -> Html:
    if not request.may("DESCRIBE_CONFIGS", group_id):
        return element("p", f"{request.principal} may not see them (DESCRIBE_CONFIGS).")
    found = GroupConfigs.load(request.database, group_id)
    rows = [
        (name, as_text(value), "set for this group" if name in found.own else "default")
        for name, value in sorted(found.values.items())
    ]
    return table(("config", "value", "from"), rows, caption="Configs of the group", texts=("value",))
