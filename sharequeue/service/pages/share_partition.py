"""The page of a share-partition: its whole window, however long, who holds it, and its lag."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from sharequeue.errors import UnknownTopicOrPartition
from sharequeue.names import shown
from sharequeue.reporting import drawing
from sharequeue.reporting.drawing import STATE_COLOURS
from sharequeue.reporting.html import Content, Html, address, each, element, joined, table
from sharequeue.reporting.page import boxes, remarks
from sharequeue.service.pages import reads
from sharequeue.service.pages.frame import link, moment
from sharequeue.service.pages.group import holdings
from sharequeue.service.pages.looking import Look
from sharequeue.state import State
from sharequeue.state.group_report import STATES, Window
from sharequeue.values import SharePartitionStatus

_MOST_RANGES = 100
_LARGEST_PARTITION = 2**31 - 1


def share_partition(look: Look) -> Response:
    """Return the page of one share-partition. Raises UnknownTopicOrPartition."""
    group_id = look.group()
    topic = look.asked("topic").replace("\x00", "")
    partition = look.number("partition", 0, _LARGEST_PARTITION, 0)
    name = f"{topic}-{partition}"
    status = _status(look, group_id, topic, partition)
    windows = look.read("window", lambda: reads.windows(look.database, group_id, [status])) or {}
    window = windows.get((topic, partition))
    history = look.read("history of lag", lambda: reads.history(look.database, group_id, topic, partition))
    sections: list[tuple[str, Content]] = [
        ("In flight", _window(window)),
        ("Leases", holdings(look, group_id, status.leases, topic, partition)),
        (
            "Lag",
            drawing.lines(history, title="Lag of the last 24 hours", unit="records")
            if history
            else element("p", "No report of the last 24 hours."),
        ),
        ("How records ended", _ended(status)),
    ]
    return look.document(
        f"{name} of {group_id}",
        element("h1", f"Share-partition {name}"),
        element("p", "Of group ", link(group_id, address("/groups", group_id)), "."),
        element("p", "As of ", moment(State(look.database).now()), " UTC."),
        look.said_late(),
        _head(status),
        remarks([status]),
        each(element("section", element("h2", title), inside) for title, inside in sections),
    )


def _status(look: Look, group_id: str, topic: str, partition: int) -> SharePartitionStatus:
    place = reads.place(look.database, group_id, topic, partition)
    found = State(look.database).figures.some(group_id, skip=place, most=1)
    if not found or (found[0].topic, found[0].partition) != (topic, partition):
        raise UnknownTopicOrPartition(
            f"Group {shown(group_id)} has no share-partition {partition} of topic {shown(topic)}."
        )
    return found[0]


def _head(status: SharePartitionStatus) -> Html:
    return boxes(
        (
            ("Lag", f"{status.lag:,}", False),
            ("SPSO", f"{status.spso:,}", False),
            ("SPEO", f"{status.speo:,}", False),
            ("Log", f"{status.log_start:,} to {status.log_end:,}", False),
            ("Available", f"{status.available:,}", False),
            ("Acquired", f"{status.acquired:,}", False),
            ("Wait for their dead letter", f"{status.archiving:,}", status.archiving > 0),
            ("Finished past SPSO", f"{status.delivery_complete_count:,}", False),
            ("Most deliveries in flight", f"{status.highest_delivery_count:,}", False),
            ("Oldest offset", "–" if status.oldest_offset is None else f"{status.oldest_offset:,}", False),
            ("Lost records", f"{status.lost_records:,}", status.lost_records > 0),
            ("State epoch", f"{status.state_epoch:,}", False),
            ("Status", status.status, status.status != "active"),
            ("Log seen (UTC)", moment(status.observed_at) or "never", False),
        )
    )


def _window(window: Window | None) -> Html:
    if window is None or window.speo == window.spso:
        return element("p", "Nothing is in flight.")
    ranges = sorted(
        (first, end - 1, state)
        for state in STATES
        if state in window.states
        for first, end in window.states[state].ranges[:_MOST_RANGES]
    )[:_MOST_RANGES]
    count = sum(len(offsets.ranges) for offsets in window.states.values())
    rows: list[Sequence[Content]] = [
        (f"{first:,}", f"{last:,}", state, last - first + 1) for first, last, state in ranges
    ]
    return joined(
        drawing.legend(STATE_COLOURS),
        drawing.strip(window, cells=380),
        element("p", drawing.said(window), class_="note"),
        element(
            "details",
            element("summary", "The same as a table"),
            table(
                ("from offset", "to offset", "state", "offsets"),
                rows,
                caption="The window by state, from SPSO on",
                of=count,
                numbers=("from offset", "to offset"),
            ),
            id="ranges",
        ),
    )


def _ended(status: SharePartitionStatus) -> Html:
    rows = [
        ("accepted", status.accepted),
        ("rejected", status.rejected),
        ("delivered too often", status.exhausted),
        ("gap", status.gap),
    ]
    waiting = (
        element(
            "p",
            f"{status.waiting:,} wait for their backoff, the first till ",
            moment(status.waiting_until),
            ".",
        )
        if status.waiting
        else None
    )
    return joined(waiting, table(("how", "records"), rows, caption="How records ended"))
