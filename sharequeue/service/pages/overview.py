"""The first page: the groups with their progress, and what needs attention."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date

import sqlalchemy as sa
from starlette.responses import Response

from sharequeue.database import Database
from sharequeue.groups.acls import refused_topics
from sharequeue.groups.descriptions import GroupSummary, list_groups
from sharequeue.groups.replicas import WORK
from sharequeue.reports.html import Content, Html, address, each, element, joined, moment, table
from sharequeue.reports.parts import cell, duration, shown_figures
from sharequeue.reports.read import CAUSE_DAYS, causes_of_groups, figures_of_groups, read_remarks
from sharequeue.service.health.faults import Fault
from sharequeue.service.pages.layout import field, link
from sharequeue.service.pages.requests import PageRequest
from sharequeue.state import State
from sharequeue.words.figures import GroupFigures

_MOST = 50
_MOST_REMARKS = 20

_FIGURES = shown_figures(GroupFigures, in_lists=True)
# Whether ACLs apply is recorded for each group: if they do not, its topics need not be checked one by one.
_WHOLE = sa.text(
    "select g.group_id from unnest(cast(:groups as text[])) as g (group_id)"
    " where coalesce((select not s.acls_apply from sharequeue.group_settings s where s.group_id = g.group_id), false)"
    " or not exists (select from (select distinct topic from sharequeue.share_partitions p"
    "   where p.group_id = g.group_id union select t from sharequeue.members m, unnest(m.subscribed_topic_names) as t"
    "   where m.group_id = g.group_id offset 0) as of_group"
    "  where not 'DESCRIBE' = any (sharequeue.authorized_topic_operations(of_group.topic)))"
)
_LETTERS = ("dead letters today", f"in {CAUSE_DAYS} days")


def overview(request: PageRequest) -> Response:
    """Return the page of all groups that the caller may describe."""
    part, after = (
        request.asked("q")[:249].replace("\x00", ""),
        request.asked("after")[:249].replace("\x00", ""),
    )
    found = request.read(
        "the groups",
        lambda: request.as_caller(lambda database: list_groups(database, part, after, _MOST + 1)),
    )
    if found is None:
        return request.document(
            "Share groups", element("h1", "Share groups"), _filter(part), request.late_note()
        )
    listed, more = found[:_MOST], len(found) > _MOST
    names, now = [group.group_id for group in listed], State(request.database).now()
    whole = request.read_as_caller("figures of the groups", lambda database: _whole(database, names))
    open_to_caller = sorted(whole or ())
    caption = (
        "Share groups" + (f" with “{part}” in their name" if part else "") + (", continued" if after else "")
    )
    return request.document(
        "Share groups",
        element("h1", "Share groups"),
        element("p", "As of ", moment(now), " UTC."),
        _alerts(request, open_to_caller),
        _filter(part),
        _table(request, listed, whole, now.astimezone(UTC).date(), caption)
        if listed
        else element("p", "There is no such group." if part else "There is no share group yet."),
        element("p", link("More groups", address("/", q=part or None, after=listed[-1].group_id)))
        if more
        else None,
        request.late_note(),
    )


def _whole(database: Database, group_ids: Sequence[str]) -> set[str]:
    """Return the groups of which the caller may describe all topics."""
    return {row["group_id"] for row in database.rows(_WHOLE, groups=list(group_ids))}


def _filter(part: str) -> Html:
    return element(
        "form",
        field("q", "Group name contains", element("input", id="q", name="q", value=part, maxlength=249)),
        element("button", "Show", type="submit"),
        class_="ask",
        role="search",
        action="/",
    )


def _alerts(request: PageRequest, groups: Sequence[str]) -> Html:
    """Return the faults that the caller may see."""
    shown = set(groups)
    known = request.service.faults
    known.look()
    faults = sorted(
        known.of_this_replica(), key=lambda fault: (fault.kind, fault.group or "", fault.topic or "")
    )
    alerts: list[Content] = [
        joined(element("strong", fault.kind.replace("_", " ")), f" is failing{_since(fault)}")
        for fault in faults
        if fault.kind in WORK
    ]
    alerts += [
        joined(
            element("strong", "group "),
            link(fault.group, address("/groups", fault.group)),
            f" is stuck{_since(fault)}",
        )
        for fault in faults
        if fault.kind == "group" and fault.group in shown
    ]
    of_topics = {fault.topic: fault for fault in faults if fault.topic is not None}
    closed = request.read_as_caller(
        "topics that the broker does not report",
        lambda database: refused_topics(database, of_topics, "DESCRIBE"),
    )
    open_to_caller = sorted(set(of_topics) - closed) if closed is not None else []
    alerts += [
        joined(element("strong", f"topic {topic}"), f" cannot be checked{_since(of_topics[topic])}")
        for topic in open_to_caller[:_MOST_REMARKS]
    ]
    remarks = (
        request.read(
            "remarks of share-partitions",
            lambda: read_remarks(request.database, groups, _MOST_REMARKS + 1),
        )
        or []
    )
    alerts += [
        joined(
            link(each.group_id, address("/groups", each.group_id)),
            f", {each.first}",
            f" and {each.share_partitions - 1:,} more" if each.share_partitions > 1 else None,
            f": {each.remark}",
        )
        for each in remarks[:_MOST_REMARKS]
    ]
    if len(remarks) > _MOST_REMARKS or len(open_to_caller) > _MOST_REMARKS:
        alerts.append("There are more: see the pages of the groups.")
    if not alerts:
        return element("p", "There are no problems.", class_="good")
    return element(
        "section",
        element("h2", "Problems", id="alerts"),
        element("ul", each(element("li", entry) for entry in alerts), class_="alerts"),
        aria_labelledby="alerts",
    )


def _since(fault: Fault) -> str:
    return f", for {duration(fault.age_seconds)}: {fault.reason}"


def _table(
    request: PageRequest, listed: Sequence[GroupSummary], whole: set[str] | None, today: date, caption: str
) -> Html:
    groups = sorted(whole or ())
    figures = request.read("figures of the groups", lambda: figures_of_groups(request.database, groups)) or {}
    letters = (
        request.read("dead letters of the groups", lambda: causes_of_groups(request.database, groups)) or {}
    )
    rows: list[Sequence[Content]] = []
    for group in listed:
        name = link(group.group_id, address("/groups", group.group_id))
        mine = figures.get(group.group_id)
        if mine is None:
            closed = whole is not None and group.group_id not in whole
            why = element("span", "no access to one of its topics", class_="note") if closed else None
            unknown: list[Content] = [None] * (len(_FIGURES) + len(_LETTERS))
            rows.append((joined(name, " ", why), group.group_state, group.members, *unknown))
            continue
        dead = letters.get(group.group_id, [])
        new = sum(each.written_records for each in dead if each.day == today)
        rows.append(
            (
                name,
                group.group_state,
                group.members,
                *(cell(each, mine) for each in _FIGURES),
                element("span", f"{new:,}", class_="wrong") if new else 0,
                sum(each.written_records for each in dead),
            )
        )
    numbers = ("members", *(each.title for each in _FIGURES), *_LETTERS)
    return table(("group", "state", *numbers), rows, caption=caption, numbers=numbers)
