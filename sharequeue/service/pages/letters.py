"""The page of a group's dead letters: counts by cause, a list, and the content of one letter.

The counts are from Postgres, the letters from the broker: they are read for some seconds at most, and if the broker
is unavailable the page shows this. The service reads the topic for the caller, so it checks whether the caller may
read it, and shows only the letters of this group, whatever topic is set as its dead-letter topic.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import sqlalchemy as sa
from starlette.responses import Response

from sharequeue.deadletters.browsing import Browsed, Seen, browse, letter_at
from sharequeue.deadletters.letters import DeadLetter
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.groups.configs import GroupConfigs
from sharequeue.reports.html import Content, Html, address, each, element, joined, short_moment, table
from sharequeue.reports.parts import causes
from sharequeue.reports.read import read_causes
from sharequeue.service.pages.decoding import brief, shown
from sharequeue.service.pages.layout import field, link
from sharequeue.service.pages.requests import PageRequest
from sharequeue.words.errors import GroupAuthorizationFailed, TopicAuthorizationFailed
from sharequeue.words.names import shown as quoted

CAUSES = ("rejected", "exceeded")
_MOST = 20
_MOST_PARTITIONS = 2**31 - 1
_LAST = sa.text(
    "select requested_by, requested_at, ended_at, sent, target_topics, cause, since, until, group_id, source_topic,"
    " source_partition, header_name, header_value, offsets from sharequeue.redrives"
    " where dead_letter_topic = :topic and group_id = :group_id order by requested_at desc limit 20"
)
_BEFORE = re.compile(r"(\d{1,10}):(\d{1,19})")


def dead_letters(request: PageRequest) -> Response:
    """Return the page of a group's dead letters, or of one of them."""
    group_id = request.group()
    topic = GroupConfigs.load(request.database, group_id).dead_letter_topic
    heading = element("h1", f"Dead letters of {group_id}")
    up = element("p", "Of group ", link(group_id, address("/groups", group_id)), ".")
    title = f"Dead letters of {group_id}"
    if not topic:
        note = (
            "The group has no dead-letter topic (config errors.deadletterqueue.topic.name): records that "
            "are given up have no dead letter."
        )
        return request.document(title, heading, up, element("p", note), live=False)
    require_letters(request, group_id, topic)
    if request.asked("offset"):
        return _one(request, group_id, topic)
    found = request.read("dead letters by cause", lambda: read_causes(request.database, group_id)) or []
    return request.document(
        title,
        heading,
        up,
        element("section", element("h2", "In the last 30 days"), causes(found)),
        _list(request, group_id, topic),
        _redrives(request, group_id, topic),
        request.late_note(),
        live=False,
    )


def require_letters(request: PageRequest, group_id: str, topic: str) -> None:
    """Raise GroupAuthorizationFailed or TopicAuthorizationFailed unless the caller may read the dead letters.

    The topic may be empty, if the group has none.
    """
    if not request.may("READ", group_id):
        raise GroupAuthorizationFailed(
            f"{request.principal} may not READ group {quoted(group_id)}: dead letters contain its records."
        )
    if topic:
        require_topic(request, topic)


def require_topic(request: PageRequest, topic: str) -> None:
    """Raise TopicAuthorizationFailed unless the caller may read a topic."""
    if not request.may_topic("READ", topic):
        raise TopicAuthorizationFailed(f"{request.principal} may not READ topic {quoted(topic)}")


def _list(request: PageRequest, group_id: str, topic: str) -> Html:
    cause = request.asked("cause") if request.asked("cause") in CAUSES else None
    source = request.asked("topic") or None
    selection = Selection(cause=cause, group=group_id, source_topic=source)
    before = {int(at): int(offset) for at, offset in _BEFORE.findall(request.asked("before")[:100_000])}
    found = browse(request.settings, topic, selection.takes, before=before, most=_MOST)
    return element(
        "section",
        element("h2", "Letters"),
        _filter(request, group_id, cause, source),
        element("p", found.remark, class_="wrong") if found.remark else None,
        _table(request, group_id, topic, found),
        element(
            "p",
            link(
                "Older ones",
                address(
                    "/dead-letters",
                    group_id,
                    cause=cause,
                    topic=source,
                    before=" ".join(f"{at}:{offset}" for at, offset in sorted(found.older.items())),
                ),
            ),
        )
        if found.older
        else None,
    )


def _filter(request: PageRequest, group_id: str, cause: str | None, source: str | None) -> Html:
    options = each(
        element("option", name or "any cause", value=name, selected=name == (cause or ""))
        for name in ("", *CAUSES)
    )
    name = element("input", type="hidden", name="name", value=group_id) if group_id in (".", "..") else None
    return element(
        "form",
        name,
        field("cause", "Cause", element("select", options, id="cause", name="cause")),
        field(
            "topic",
            "Source topic",
            element("input", id="topic", name="topic", value=source or "", maxlength=249),
        ),
        element("button", "Show", type="submit"),
        class_="ask",
        action=address("/dead-letters", group_id).partition("?")[0],
    )


def _redrives(request: PageRequest, group_id: str, topic: str) -> Html:
    found = (
        request.read("last redrives", lambda: request.database.rows(_LAST, topic=topic, group_id=group_id))
        or []
    )
    rows: list[Sequence[Content]] = [
        (
            short_moment(row["requested_at"]),
            row["requested_by"],
            str(Selection.of(dict(row))),
            ", ".join(row["target_topics"]),
            row["sent"],
            short_moment(row["ended_at"]) if row["ended_at"] else "not ended",
        )
        for row in found
    ]
    columns = ("asked for (UTC)", "by", "letters", "to", "sent", "ended (UTC)")
    return element(
        "section",
        element("h2", "Last redrives"),
        table(columns, rows, caption="Redrives of this group", texts=("letters",))
        if rows
        else element("p", "None yet."),
        element("p", "To send records back: ", element("code", redrive_of(topic, group_id))),
    )


def _table(request: PageRequest, group_id: str, topic: str, found: Browsed) -> Html:
    if not found.letters:
        return element("p", f"No letter of this group among the {found.offsets:,} offsets that were read.")
    open_topics = {
        name: request.may_topic("READ", name)
        for name in {seen.letter.source_topic or "" for seen in found.letters}
    }
    rows: list[Sequence[Content]] = []
    for seen in found.letters:
        letter = seen.letter
        readable = open_topics[letter.source_topic or ""]
        rows.append(
            (
                link(
                    f"{letter.partition}:{letter.offset}",
                    address("/dead-letters", group_id, partition=letter.partition, offset=letter.offset),
                ),
                None if letter.timestamp is None else short_moment(letter.timestamp),
                letter.cause,
                source_of(letter),
                letter.delivery_count,
                (letter.error or "")[:300] or None,
                brief(letter.key, seen.key_bytes, 60) if readable else "not allowed",
                brief(letter.value, seen.value_bytes) if readable else "not allowed",
            )
        )
    columns = ("letter", "written (UTC)", "cause", "source", "deliveries", "error", "key", "value")
    caption = f"Dead letters in {topic}, the newest first"
    return joined(
        table(columns, rows, caption=caption, texts=("error", "key", "value")),
        element("p", f"{found.offsets:,} offsets were read.", class_="note"),
    )


def redrive_of(topic: str, group_id: str, *more: str) -> str:
    """Return the command that redrives letters of a group."""
    return shlex.join(("sharequeue", "dlq", "redrive", topic, "--group", group_id, *more))


def source_of(letter: DeadLetter) -> str:
    """Return the topic, partition and offset of a letter's source record."""
    return f"{letter.source_topic}-{letter.source_partition} at {letter.source_offset}"


def _one(request: PageRequest, group_id: str, topic: str) -> Response:
    partition = request.number("partition", 0, _MOST_PARTITIONS, 0)
    offset = request.number("offset", 0, 2**62, 0)
    found = letter_at(request.settings, topic, partition, offset)
    found.letters = [seen for seen in found.letters if seen.letter.group == group_id]
    name = f"Letter {partition}:{offset}"
    back = element(
        "p", link("All letters", address("/dead-letters", group_id)), f" of {group_id}, in {topic}."
    )
    if not found.letters:
        why = found.remark or "There is no such letter of this group: it may have been deleted."
        return request.document(
            name, element("h1", name), back, element("p", why, class_="wrong"), live=False, status=404
        )
    (seen,) = found.letters
    require_topic(request, seen.letter.source_topic or "")
    again = redrive_of(topic, group_id, "--offsets", f"{partition}:{offset}")
    return request.document(name, element("h1", name), back, _whole(seen, again), live=False)


def _whole(seen: Seen, again: str) -> Html:
    letter = seen.letter
    facts: list[Sequence[Content]] = [
        ("cause", letter.cause or letter.message),
        ("source", source_of(letter)),
        ("deliveries", letter.delivery_count),
        ("written (UTC)", None if letter.timestamp is None else short_moment(letter.timestamp)),
        ("error", letter.error),
    ]
    headers: list[Sequence[Content]] = []
    for name, content in letter.headers:
        there = shown(content)
        headers.append((name, there.kind, there.text[:2000]))
    return joined(
        element("p", "To send it back: ", element("code", again)),
        table(("what", "this letter"), facts, caption="Why the record is here", texts=("this letter",)),
        *_part("Key", seen.letter.key, seen.key_bytes),
        *_part("Value", seen.letter.value, seen.value_bytes),
        element("h2", "Headers"),
        table(("header", "kind", "content"), headers, caption="Headers", texts=("content",)),
    )


def _part(title: str, content: bytes | None, size: int | None) -> tuple[Html, ...]:
    there = shown(content, size)
    return (
        element("h2", title),
        element("p", there.kind, class_="note"),
        element("pre", there.text, tabindex=0) if there.text else element("p", ""),
    )
