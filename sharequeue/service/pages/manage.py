"""The page of what may be changed of a group: where it begins, its configs, and that it is there at all.

Each change is one of the admin operations, done as the caller, whom the ACLs bind. A reset shows first what it would
do; a group is deleted by who writes its name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from starlette.responses import RedirectResponse, Response

from sharequeue.errors import InvalidRequest
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.configs.keys import GROUP_CONFIGS
from sharequeue.groups.configs.texts import as_text
from sharequeue.groups.known import group_topics
from sharequeue.names import shown
from sharequeue.reporting.html import Content, Html, address, each, element, joined, table
from sharequeue.service.admin import Admin
from sharequeue.service.admin_bodies import (
    AlterConfigsBody,
    AlterOffsetsBody,
    DeleteGroupsBody,
    StartOffset,
    TopicStarts,
    parsed,
)
from sharequeue.service.pages.acting import require_actor
from sharequeue.service.pages.frame import field, link, secured
from sharequeue.service.pages.looking import Look

_MOST_ROWS = 200
_ENDS = ("earliest", "latest")


def manage(look: Look) -> Response:
    """Return the page of what may be changed of a group; of a form, what was done."""
    group_id = look.group()
    if look.request.method != "POST":
        return _page(look, group_id)
    # Longer than a page may take: an operation that has begun is finished.
    admin = Admin(look.service.database, look.service.topics, look.principal)
    what = look.form.get("do", "")
    if what in ("plan-offsets", "alter-offsets"):
        require_actor(look, group_id, "READ")
        return _offsets(look, group_id, admin, execute=what == "alter-offsets")
    if what == "alter-config":
        require_actor(look, group_id, "ALTER_CONFIGS")
        return _config(look, group_id, admin)
    if what == "delete":
        require_actor(look, group_id, "DELETE")
        return _delete(look, group_id, admin)
    raise InvalidRequest("The form does not say what to do.")


def _offsets(look: Look, group_id: str, admin: Admin, *, execute: bool) -> Response:
    body = _wanted(look, group_id)
    done = admin.reset_offsets(body, execute=execute)
    rows: list[Sequence[Content]] = [
        (
            f"{row.topic}-{row.partition}",
            row.before,
            row.start_offset,
            row.error.message if row.error else "done" if execute else "would be done",
        )
        for row in done
    ]
    caption = "What was done" if execute else "A dry run: nothing was changed"
    said = table(
        ("share-partition", "begins now at", "would begin at" if not execute else "begins at", "result"),
        rows[:_MOST_ROWS],
        caption=caption,
        of=len(rows),
        texts=("result",),
    )
    names = ("topic", "to", "partition", "offset")
    hidden = each(element("input", type="hidden", name=name, value=look.form.get(name, "")) for name in names)
    button = element("button", "Reset", type="submit", name="do", value="alter-offsets", class_="act")
    confirm = element(
        "form", hidden, button, class_="ask", method="post", action=address("/manage", group_id)
    )
    return _page(look, group_id, joined(element("h2", caption), said, None if execute else confirm))


def _wanted(look: Look, group_id: str) -> AlterOffsetsBody:
    """Return where the share-partitions of a form shall begin, moved into their logs."""
    topic, to = look.form.get("topic", ""), look.form.get("to", "")
    if topic not in group_topics(look.database, group_id) or not look.may_topic(topic, "READ"):
        raise InvalidRequest(f"The group reads no topic {shown(topic)}, or you may not READ it.")
    offset, one = look.form.get("offset", ""), look.form.get("partition", "")
    if to not in (*_ENDS, "offset") or (to == "offset" and not (offset.isdecimal() and len(offset) < 19)):
        raise InvalidRequest("Begin at the earliest or latest offset, or at an offset: a number from 0 on.")
    logs = look.service.topics.offsets(topic)
    if one and (not one.isdecimal() or int(one[:10]) not in logs):
        raise InvalidRequest(f"The topic has no partition {shown(one)}.")
    starts = []
    for partition, log in sorted(logs.items()):
        if not one or partition == int(one):
            wanted = log.log_start if to == "earliest" else log.log_end if to == "latest" else int(offset)
            inside = min(max(wanted, log.log_start), log.log_end)
            starts.append(StartOffset(partition_index=partition, start_offset=inside))
    return AlterOffsetsBody(group_id=group_id, topics=[TopicStarts(topic_name=topic, partitions=starts)])


def _config(look: Look, group_id: str, admin: Admin) -> Response:
    name, value = look.form.get("config", ""), look.form.get("value", "")
    change = None if look.form.get("unset") else value
    asked = json.dumps({"group_id": group_id, "configs": {name: change}}).encode()
    answer = admin.alter_configs(parsed(AlterConfigsBody, asked))
    said = f"{name} was taken away: the default counts." if change is None else f"{name} is set."
    warnings = each(element("p", warning, class_="wrong") for warning in answer["warnings"])
    return _page(look, group_id, joined(element("p", said, class_="good"), warnings))


def _delete(look: Look, group_id: str, admin: Admin) -> Response:
    if look.form.get("group") != group_id:
        raise InvalidRequest("The name that was written is not the group's: nothing was deleted.")
    (result,) = admin.delete_groups(DeleteGroupsBody(groups_names=[group_id]))["results"]
    if result["error_code"]:
        said = element("p", f"Nothing was deleted: {result['error_message']}", class_="wrong")
        return _page(look, group_id, said)
    return secured(RedirectResponse("/", 303))


def _page(look: Look, group_id: str, done: Content = None) -> Response:
    allowed = look.may(group_id) if look.caller.proved else []
    sections: list[tuple[str, Content]] = []
    if "READ" in allowed:
        sections.append(("Begin anew elsewhere", _offsets_form(look, group_id)))
    if "ALTER_CONFIGS" in allowed:
        sections.append(("Configs", _config_form(look, group_id)))
    if "DELETE" in allowed:
        sections.append(("Delete the group", _delete_form(group_id)))
    nothing = (
        f"{look.principal} may change nothing of this group."
        if look.caller.proved
        else "Sign in to change something: these pages act only for who has shown who it is."
    )
    return look.document(
        f"Manage {group_id}",
        element("h1", f"Manage {group_id}"),
        element("p", "See ", link("the group", address("/groups", group_id)), "."),
        done,
        element("p", nothing) if not sections else None,
        each(element("section", element("h2", title), inside) for title, inside in sections),
        live=False,
    )


def _offsets_form(look: Look, group_id: str) -> Html:
    topics = sorted(group_topics(look.database, group_id))
    if not topics:
        return element("p", "The group reads no topic yet.")

    def select(name: str, values: Sequence[str]) -> Html:
        chosen = look.form.get(name)
        options = each(element("option", value, value=value, selected=value == chosen) for value in values)
        return element("select", options, id=name, name=name)

    def text(name: str) -> Html:
        return element("input", id=name, name=name, value=look.form.get(name, "")[:20], inputmode="numeric")

    return joined(
        element(
            "p", "While nobody is in the group. Share-partitions that are reset forget what was in flight."
        ),
        element(
            "form",
            field("topic", "Topic", select("topic", topics)),
            field("partition", "Partition", text("partition"), "all if empty"),
            field("to", "Begin at", select("to", (*_ENDS, "offset"))),
            field("offset", "Offset", text("offset"), "moved into the log"),
            element("button", "Show what would be done", type="submit", name="do", value="plan-offsets"),
            class_="ask",
            method="post",
            action=address("/manage", group_id),
        ),
    )


def _config_form(look: Look, group_id: str) -> Html:
    found = GroupConfigs.load(look.database, group_id)
    options = each(
        element("option", f"{name} ({as_text(found.values.get(name, '')) or 'none'})", value=name)
        for name in sorted(GROUP_CONFIGS)
    )
    return element(
        "form",
        field("config", "Config", element("select", options, id="config", name="config")),
        field("value", "Value", element("input", id="value", name="value", maxlength=1000)),
        field(
            "unset",
            "Take it away",
            element("input", id="unset", name="unset", type="checkbox", value="1"),
            "the default counts",
        ),
        element("button", "Change", type="submit", name="do", value="alter-config", class_="act"),
        class_="ask",
        method="post",
        action=address("/manage", group_id),
    )


def _delete_form(group_id: str) -> Html:
    return joined(
        element(
            "p", "With all it has but its configs, while nobody is in it. Dead letters that wait are lost."
        ),
        element(
            "form",
            field(
                "group",
                "Write the group's name",
                element("input", id="group", name="group", autocomplete="off", required=True),
            ),
            element("button", "Delete", type="submit", name="do", value="delete", class_="act"),
            class_="ask",
            method="post",
            action=address("/manage", group_id),
        ),
    )
