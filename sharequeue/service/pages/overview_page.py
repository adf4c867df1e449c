"""The first page: the groups with their progress, and what needs attention."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date

import sqlalchemy as sa
from starlette.responses import Response

from sharequeue.domain.figures import GroupFigures
from sharequeue.groups.descriptions import GroupSummary, list_groups
from sharequeue.reports.html import Content, Html, address, each, element, joined, moment, table
from sharequeue.reports.parts import cell, duration, shown_figures
from sharequeue.reports.read import causes_of_groups, figures_of_groups
from sharequeue.reports.remarks import lines_of, remarks_of_groups
from sharequeue.service.pages.layout import link
from sharequeue.service.pages.requests import PageRequest
from sharequeue.state import State
from sharequeue.state.replicas import WORK

_MOST = 50
_MOST_REMARKS = 20
_MOST_CHARACTERS = 249
"""Of a group id."""

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
"""The groups of which the caller may describe all topics."""


def overview(request: PageRequest) -> Response:
    """Return the page of all groups that the caller may describe."""
    part, after = (request.asked(name)[:_MOST_CHARACTERS].replace("\x00", "") for name in ("q", "after"))
    found = request.as_caller(lambda database: list_groups(database, part, after, _MOST + 1))
    listed = found[:_MOST]
    names, now = [group.group_id for group in listed], State(request.database).now()
    whole = request.as_caller(lambda database: database.rows(_WHOLE, groups=names))
    open_to_caller = sorted(row["group_id"] for row in whole)
    caption = "Share groups" + (f" with “{part}” in their name" if part else "")
    return request.page(
        "Share groups",
        element("h1", "Share groups"),
        element("p", "As of ", moment(now), " UTC."),
        _problems(request, open_to_caller),
        element(
            "form",
            element("label", "Group name contains ", for_="q"),
            element("input", id="q", name="q", value=part, maxlength=_MOST_CHARACTERS),
            element("button", "Show", type="submit"),
            class_="ask",
            role="search",
            action="/",
        ),
        _table(request, listed, open_to_caller, now.astimezone(UTC).date(), caption)
        if listed
        else element("p", "There is no such group." if part else "There is no share group yet."),
        element("p", link("More groups", address("/", q=part or None, after=names[-1])))
        if len(found) > _MOST
        else None,
    )


def _problems(request: PageRequest, groups: Sequence[str]) -> Html:
    """Return the faults of the service, and the remarks on groups that the caller may see."""
    known = request.service.faults
    known.look()
    entries: list[Content] = []
    for fault in known.of_this_replica():
        since = f", for {duration(fault.age_seconds)}: {fault.reason}"
        if fault.kind in WORK:
            entries.append(joined(element("strong", fault.kind.replace("_", " ")), f" is failing{since}"))
        elif fault.group is not None and fault.group in groups:
            entries.append(joined("group ", _link(fault.group), f" is stuck{since}"))
    lines = lines_of(remarks_of_groups(request.database, groups))
    for line in lines[:_MOST_REMARKS]:
        entries.append(joined(_link(line.group_id), f", {line.text}"))
    if len(lines) > _MOST_REMARKS:
        entries.append("There are more: see the pages of the groups.")
    if not entries:
        return element("p", "There are no problems.", class_="good")
    return element(
        "section",
        element("h2", "Problems"),
        element("ul", each(element("li", entry) for entry in entries), class_="alerts"),
    )


def _link(group_id: str) -> Html:
    return link(group_id, address("/groups", group_id))


def _table(
    request: PageRequest, listed: Sequence[GroupSummary], groups: Sequence[str], today: date, caption: str
) -> Html:
    figures, letters = figures_of_groups(request.database, groups), causes_of_groups(request.database, groups)
    rows: list[Sequence[Content]] = []
    for group in listed:
        name: Content = _link(group.group_id)
        shown: list[Content] = [None] * (len(_FIGURES) + 1)
        if (mine := figures.get(group.group_id)) is not None:
            new = sum(each.written_records for each in letters.get(group.group_id, ()) if each.day == today)
            dead = element("span", f"{new:,}", class_="wrong") if new else 0
            shown = [*(cell(each, mine) for each in _FIGURES), dead]
        elif group.group_id not in groups:
            name = joined(name, " ", element("span", "no access to one of its topics", class_="note"))
        rows.append((name, group.group_state, group.members, *shown))
    numbers = ("members", *(each.title for each in _FIGURES), "dead letters today")
    return table(("group", "state", *numbers), rows, caption=caption, numbers=numbers)
