"""The page of a share-partition: its whole window, the holders of its leases, and its lag."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from sharequeue.reports import drawing, parts
from sharequeue.reports.drawing import STATE_COLOURS
from sharequeue.reports.html import Content, Html, address, each, element, joined, moment, table
from sharequeue.reports.read import STATES, Window, read_moments, read_windows
from sharequeue.service.pages.group import leases
from sharequeue.service.pages.layout import link
from sharequeue.service.pages.requests import PageRequest
from sharequeue.state import State
from sharequeue.words.errors import UnknownTopicOrPartition
from sharequeue.words.figures import SharePartitionStatus
from sharequeue.words.names import shown
from sharequeue.words.values import SharePartition

_MOST_RANGES = 100
_LARGEST_PARTITION = 2**31 - 1


def share_partition(request: PageRequest) -> Response:
    """Return the page of one share-partition. Raises UnknownTopicOrPartition."""
    group_id, database, state = request.group(), request.database, State(request.database)
    topic = request.asked("topic").replace("\x00", "")
    partition = request.number("partition", 0, _LARGEST_PARTITION, 0)
    name = f"{topic}-{partition}"
    status = state.figures.one(SharePartition(group_id, topic, partition))
    if status is None:
        raise UnknownTopicOrPartition(
            f"Group {shown(group_id)} has no share-partition {partition} of topic {shown(topic)}."
        )
    wanted = {topic: (partition,)}
    windows = request.read("window", lambda: read_windows(database, group_id, wanted, None))
    history = request.read("history of lag", lambda: read_moments(database, group_id, topic, partition)) or []
    sections: list[tuple[str, Content]] = [
        ("In flight", _window(windows[0] if windows else None)),
        ("Leases", leases(request, group_id, status.leases, topic, partition)),
        ("Lag", parts.lag_line(history)),
        ("How records ended", _ended(status)),
    ]
    return request.document(
        f"{name} of {group_id}",
        element("h1", f"Share-partition {name}"),
        element("p", "Of group ", link(group_id, address("/groups", group_id)), "."),
        element("p", "As of ", moment(state.now()), " UTC."),
        request.late_note(),
        parts.boxes(status),
        parts.remarks([status]),
        each(element("section", element("h2", title), inside) for title, inside in sections),
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
    rows: list[Sequence[Content]] = [
        (f"{first:,}", f"{last:,}", state, last - first + 1) for first, last, state in ranges
    ]
    return joined(
        drawing.legend(STATE_COLOURS),
        drawing.strip(window, cells=380),
        element("p", drawing.window_text(window), class_="note"),
        element(
            "details",
            element("summary", "The same as a table"),
            table(
                ("from offset", "to offset", "state", "offsets"),
                rows,
                caption="The window by state, from SPSO on",
                of=sum(len(offsets.ranges) for offsets in window.states.values()),
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
    ended = table(("how", "records"), rows, caption="How records ended")
    if status.waiting_until is None:
        return ended
    until = moment(status.waiting_until)
    return joined(
        element("p", f"{status.waiting:,} wait for their back-off, the first until ", until, "."), ended
    )
