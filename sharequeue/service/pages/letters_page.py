"""The pages of a group's dead letters: the newest ones, and the content of one letter.

They are read from the broker, for some seconds at most; if the broker is unavailable, the page shows this. The
service reads the topic for the caller, so it checks whether the caller may read it, and shows only the letters of
this group, whatever topic is set as its dead-letter topic.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from starlette.responses import Response

from sharequeue.deadletters.browsing import Browsed, ShownLetter, browse, letter_at
from sharequeue.deadletters.letters import DeadLetter
from sharequeue.deadletters.redrive.batches import UNHANDLED, HandledLetters, RedriveBatches
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.domain.moments import moment_of
from sharequeue.domain.record_bytes import text_of
from sharequeue.groups.configs import GroupConfigs
from sharequeue.reports.html import Content, Html, address, element, joined, short_moment, table
from sharequeue.service.pages.layout import link
from sharequeue.service.pages.requests import PageRequest

_MOST = 20
_KEY_BYTES, _VALUE_BYTES = 60, 120
"""The bytes of a key and of a value in the list."""
_HEADER_BYTES = 2_000
_STATUS = {
    "sent": "Status: sent back. No redrive sends it again.",
    "discarded": "Status: discarded. No redrive sends it.",
    "being sent": "Status: a redrive is sending it. If that redrive was killed, the next one sends it.",
}
_LAST_PARTITION, _LAST_OFFSET = 2**31 - 1, 2**62
_BEFORE = re.compile(r"(\d{1,10}):(\d{1,19})")


def dead_letters(request: PageRequest) -> Response:
    """Return the page of a group's dead letters, or of one of them."""
    group_id = request.group()
    topic = GroupConfigs.load(request.database, group_id).dead_letter_topic
    title = f"Dead letters of {group_id}"
    up = element("p", "Of group ", link(group_id, address("/groups", group_id)), ".")
    if not topic:
        note = (
            "The group has no dead-letter topic (config errors.deadletterqueue.topic.name): records that "
            "are given up have no dead letter."
        )
        return request.page(title, element("h1", title), up, element("p", note))
    request.require_read(group_id)
    request.require_read_topic(topic)
    if request.asked("offset"):
        return _one(request, group_id, topic)
    before = {int(at): int(offset) for at, offset in _BEFORE.findall(request.asked("before")[:100_000])}
    takes = Selection(group=group_id).takes
    found = browse(request.service.settings, topic, takes, before=before, most=_MOST)
    older = " ".join(f"{at}:{offset}" for at, offset in sorted(found.older.items()))
    return request.page(
        title,
        element("h1", title),
        up,
        element("p", found.remark, class_="wrong") if found.remark else None,
        _table(request, group_id, topic, found),
        element("p", link("Older ones", address("/dead-letters", group_id, before=older))) if older else None,
        element("p", "To send records back: ", element("code", _redrive(topic, group_id))),
    )


def _table(request: PageRequest, group_id: str, topic: str, found: Browsed) -> Html:
    if not found.letters:
        return element("p", f"No letter of this group among the {found.offsets:,} offsets that were read.")
    sources = {seen.letter.source_topic or "" for seen in found.letters}
    handled = _handled(request, topic, found)
    readable = {name for name in sources if request.may_read_topic(name)}
    rows: list[Sequence[Content]] = []
    for seen in found.letters:
        letter = seen.letter
        key = text_of(letter.key, most=_KEY_BYTES, size=seen.key_bytes)
        value = text_of(letter.value, most=_VALUE_BYTES, size=seen.value_bytes)
        open_to_caller = (letter.source_topic or "") in readable
        rows.append(
            (
                link(
                    f"{letter.partition}:{letter.offset}",
                    address("/dead-letters", group_id, partition=letter.partition, offset=letter.offset),
                ),
                _written(letter),
                letter.cause,
                _source(letter),
                letter.delivery_count,
                handled.get(letter.partition, UNHANDLED).status(letter.offset),
                (letter.error or "")[:300] or None,
                key if open_to_caller else "not allowed",
                value if open_to_caller else "not allowed",
            )
        )
    columns = ("letter", "written (UTC)", "cause", "source", "deliveries", "status", "error", "key", "value")
    caption = f"Dead letters in {topic}, the newest first"
    return joined(
        table(columns, rows, caption=caption, texts=("error", "key", "value")),
        element("p", f"{found.offsets:,} offsets were read.", class_="note"),
    )


def _handled(request: PageRequest, topic: str, found: Browsed) -> dict[int, HandledLetters]:
    """Return the letters of the topic that was read that were sent back or discarded, by partition."""
    return RedriveBatches(request.database, topic, found.topic_id).handled()


def _redrive(topic: str, group_id: str, *more: str) -> str:
    """Return the command that redrives letters of a group."""
    return shlex.join(("sharequeue", "dlq", "redrive", topic, "--group", group_id, *more))


def _source(letter: DeadLetter) -> str:
    return f"{letter.source_topic}-{letter.source_partition} at {letter.source_offset}"


def _written(letter: DeadLetter) -> str | None:
    if letter.written_ms is None:
        return None
    at = moment_of(letter.written_ms)
    return f"{letter.written_ms} ms" if at is None else short_moment(at)


def _one(request: PageRequest, group_id: str, topic: str) -> Response:
    partition, offset = (
        request.number("partition", 0, _LAST_PARTITION),
        request.number("offset", 0, _LAST_OFFSET),
    )
    found = letter_at(request.service.settings, topic, partition, offset)
    name = f"Letter {partition}:{offset}"
    heading = joined(
        element("h1", name),
        element("p", link("All letters", address("/dead-letters", group_id)), f" of {group_id}, in {topic}."),
    )
    for seen in found.letters:
        if seen.letter.group == group_id:
            request.require_read_topic(seen.letter.source_topic or "")
            status = _handled(request, topic, found).get(partition, UNHANDLED).status(offset)
            command = _redrive(topic, group_id, "--offsets", f"{partition}:{offset}")
            again = (
                element("p", "To send it back: ", element("code", command))
                if status is None
                else element("p", _STATUS[status])
            )
            life = element("p", "The life of its record: ", element("code", seen.letter.trace_command))
            return request.page(name, heading, again, life, _whole(seen))
    why = found.remark or "There is no such letter of this group: it may have been deleted."
    return request.page(name, heading, element("p", why, class_="wrong"), status=404)


def _whole(seen: ShownLetter) -> Html:
    letter = seen.letter
    facts: list[Sequence[Content]] = [
        ("cause", letter.cause or letter.message),
        ("source", _source(letter)),
        ("deliveries", letter.delivery_count),
        ("written (UTC)", _written(letter)),
        ("error", letter.error),
    ]
    headers = [(name, text_of(content, most=_HEADER_BYTES)) for name, content in letter.headers]
    return joined(
        table(("what", "this letter"), facts, caption="Why the record is here", texts=("this letter",)),
        *_content("Key", letter.key, seen.key_bytes),
        *_content("Value", letter.value, seen.value_bytes),
        element("h2", "Headers"),
        table(("header", "content"), headers, caption="Headers", texts=("content",)),
    )


def _content(title: str, content: bytes | None, size: int | None) -> tuple[Html, ...]:
    text = text_of(content, size=size)
    note = "null" if text is None else f"{len(content or b'') if size is None else size:,} bytes"
    return (
        element("h2", title),
        element("p", note, class_="note"),
        element("pre", text, tabindex=0) if text else element("p", ""),
    )
