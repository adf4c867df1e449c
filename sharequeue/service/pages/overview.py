"""The first page: which groups are there, how far is each, and what needs somebody?"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from sharequeue.groups.descriptions import GroupSummary
from sharequeue.groups.replicas import WORK
from sharequeue.reporting.drawing import number
from sharequeue.reporting.html import Content, Html, address, each, element, joined, table
from sharequeue.reporting.page import duration
from sharequeue.service.health.faults import Fault
from sharequeue.service.pages import reads
from sharequeue.service.pages.frame import field, link, moment
from sharequeue.service.pages.looking import Look
from sharequeue.state import State

_MOST = 50
_MOST_REMARKS = 20

_COLUMNS = (
    "group",
    "state",
    "members",
    "share-partitions",
    "lag",
    "records/s",
    "time to drain",
    "oldest waits",
    "in flight",
    "stuck leases",
    "dead letters today",
    f"in {reads.DAYS} days",
    "wait to be written",
)


def overview(look: Look) -> Response:
    """Return the page of all groups that the caller may describe."""
    part, after = look.asked("q")[:249].replace("\x00", ""), look.asked("after")[:249].replace("\x00", "")
    found = look.read("the groups", lambda: look.listed(part, after, _MOST + 1))
    if found is None:
        return look.document("Share groups", element("h1", "Share groups"), _filter(part), look.said_late())
    listed, more = found[:_MOST], len(found) > _MOST
    names = [group.group_id for group in listed]
    whole = look.read("figures of the groups", lambda: look.whole(names))
    open_to_caller = sorted(whole or ())
    return look.document(
        "Share groups",
        element("h1", "Share groups"),
        element("p", "As of ", moment(State(look.database).now()), " UTC."),
        _alerts(look, open_to_caller),
        _filter(part),
        _table(look, listed, whole, part, after)
        if listed
        else element("p", "There is no such group." if part else "There is no share group yet."),
        element("p", link("More groups", address("/", q=part or None, after=listed[-1].group_id)))
        if more
        else None,
        look.said_late(),
    )


def _filter(part: str) -> Html:
    return element(
        "form",
        field("q", "Group's name has in it", element("input", id="q", name="q", value=part, maxlength=249)),
        element("button", "Show", type="submit"),
        class_="ask",
        role="search",
        action="/",
    )


def _alerts(look: Look, groups: Sequence[str]) -> Html:
    """What is degraded, of what the caller may see."""
    shown = set(groups)
    known = look.service.faults
    known.look()
    faults = sorted(
        known.of_this_replica(), key=lambda fault: (fault.kind, fault.group or "", fault.topic or "")
    )
    said: list[Content] = [
        joined(element("strong", fault.kind.replace("_", " ")), f" fails, and is tried again{_since(fault)}")
        for fault in faults
        if fault.kind in WORK
    ]
    said += [
        joined(
            element("strong", "group "),
            link(fault.group, address("/groups", fault.group)),
            f" is stuck{_since(fault)}",
        )
        for fault in faults
        if fault.kind == "group" and fault.group in shown
    ]
    of_topics = {fault.topic: fault for fault in faults if fault.topic is not None}
    closed = look.read("topics that the broker says nothing about", lambda: look.closed(of_topics))
    open_to_caller = sorted(set(of_topics) - closed) if closed is not None else []
    said += [
        joined(element("strong", f"topic {topic}"), f" cannot be looked at{_since(of_topics[topic])}")
        for topic in open_to_caller[:_MOST_REMARKS]
    ]
    remarks = (
        look.read(
            "remarks of share-partitions",
            lambda: reads.remarks(look.database, groups, _MOST_REMARKS + 1),
        )
        or []
    )
    said += [
        joined(
            link(each.group_id, address("/groups", each.group_id)),
            f", {each.first}",
            f" and {each.share_partitions - 1:,} more" if each.share_partitions > 1 else None,
            f": {each.remark}",
        )
        for each in remarks[:_MOST_REMARKS]
    ]
    if len(remarks) > _MOST_REMARKS or len(open_to_caller) > _MOST_REMARKS:
        said.append("There are more: see the pages of the groups.")
    if not said:
        return element("p", "Nothing is degraded.", class_="good")
    return element(
        "section",
        element("h2", "What needs somebody", id="alerts"),
        element("ul", each(element("li", entry) for entry in said), class_="alerts"),
        aria_labelledby="alerts",
    )


def _since(fault: Fault) -> str:
    return f", for {duration(fault.age_seconds)}: {fault.reason}"


def _table(look: Look, listed: Sequence[GroupSummary], whole: set[str] | None, part: str, after: str) -> Html:
    groups = sorted(whole or ())
    figures = look.read("figures of the groups", lambda: reads.figures(look.database, groups)) or {}
    letters = look.read("dead letters of the groups", lambda: reads.letters(look.database, groups)) or {}
    rows: list[Sequence[Content]] = []
    for group in listed:
        name = link(group.group_id, address("/groups", group.group_id))
        mine = figures.get(group.group_id)
        if mine is None:
            closed = whole is not None and group.group_id not in whole
            why = element("span", "a topic of it is closed to you", class_="note") if closed else None
            rows.append(
                (joined(name, " ", why), group.group_state, group.members, *[None] * (len(_COLUMNS) - 3))
            )
            continue
        dead = letters.get(group.group_id, reads.Letters())
        rows.append(
            (
                name,
                group.group_state,
                group.members,
                mine.share_partitions,
                mine.lag,
                None if mine.throughput is None else number(mine.throughput),
                duration(mine.time_to_drain_seconds),
                duration(mine.oldest_age_seconds) if mine.oldest_age_seconds is not None else None,
                mine.in_flight,
                marked(mine.stuck_leases),
                marked(dead.today),
                dead.written,
                marked(mine.archiving),
            )
        )
    caption = (
        "Share groups" + (f" with “{part}” in their name" if part else "") + (", continued" if after else "")
    )
    return table(_COLUMNS, rows, caption=caption, numbers=_COLUMNS[2:])


def marked(count: int) -> Content:
    """Return a number that should be 0, and looks like it where it is not."""
    return element("span", f"{count:,}", class_="wrong") if count else 0
