"""The page that puts dead letters back to work: first what would be sent, then the sending.

Done by the service for a caller that has shown who it is, may ALTER the group and READ the dead-letter topic. Chosen
are only letters of this group whose records go into topics that the group reads and the caller may READ: what stands
in a letter was written by others. Sending goes on in the background, each letter once, and another redrive continues
what was killed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Lock, Thread
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import RedirectResponse, Response

from sharequeue.deadletters.letters import DeadLetter
from sharequeue.errors import InvalidRequest, ShareError
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.known import group_topics
from sharequeue.names import shown
from sharequeue.redrive.redrive import Redrive, RedrivePlan
from sharequeue.redrive.selection import RedriveRefused, Selection, parse_header, parse_offsets
from sharequeue.reporting.html import Content, Html, address, each, element, joined, table
from sharequeue.service.pages.acting import require_actor
from sharequeue.service.pages.frame import field as labelled
from sharequeue.service.pages.frame import link, secured, short_moment
from sharequeue.service.pages.letters import CAUSES, require_letters
from sharequeue.service.pages.looking import Look

_log = logging.getLogger(__name__)

_PLAN_SECONDS = 10.0
_MOST_CHOSEN = 20_000
"""Characters of offsets in a form. They are letters, digits and `:- `, of which the browser makes three at most."""
_NAMES = ("cause", "topic", "offsets", "header", "only", "rate")
_LAST = sa.text(
    "select requested_by, requested_at, ended_at, sent, selection, target_topics from sharequeue.redrives"
    " where dead_letter_topic = :topic and position(', group ' || :group_id || ', ' in ', ' || selection || ', ') > 0"
    " order by requested_at desc limit 20"
)
_planners = BoundedSemaphore(2)
_lock = Lock()
_running: set[str] = set()
_failed: dict[tuple[str, str], str] = {}
"""Why the last redrive of a group from a topic failed, as this replica knows it."""


class _Late(Exception):
    """There was no time to read all letters."""


@dataclass(frozen=True)
class _Own(Selection):
    """A selection of the letters that a caller may put back."""

    topics: frozenset[str] = field(default=frozenset())
    deadline: float | None = None

    def takes(self, letter: DeadLetter) -> bool:
        """Whether this letter is meant. Raises _Late after the deadline."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise _Late()
        return letter.source_topic in self.topics and Selection.takes(self, letter)


def redrive(look: Look) -> Response:
    """Return the page of a group's redrives; of a form, what it would do, or that it has begun."""
    group_id = look.group()
    topic = GroupConfigs.load(look.database, group_id).dead_letter_topic
    if not topic:
        raise InvalidRequest("The group has no dead-letter topic (config errors.deadletterqueue.topic.name).")
    require_letters(look, group_id, topic)
    if look.request.method != "POST":
        return _page(look, group_id, topic, look.request.query_params)
    require_actor(look, group_id, "ALTER")
    work = _work(look, group_id, topic, None)
    do = look.form.get("do")
    if do == "send":
        if not look.form.get("offsets", "").split():
            raise InvalidRequest("The form names no letters: have a look first at what would be sent.")
        return _begin(group_id, topic, work)
    if do != "plan":
        raise InvalidRequest("The form does not say what to do.")
    return _page(look, group_id, topic, look.form, _planned(look, group_id, _plan(look, group_id, topic)))


def _work(look: Look, group_id: str, topic: str, deadline: float | None) -> Callable[[], Redrive]:
    """Return what makes the redrive of a form. Raises InvalidRequest."""
    form = look.form
    topics = frozenset(name for name in group_topics(look.database, group_id) if look.may_topic(name, "READ"))
    if form.get("topic") and form["topic"] not in topics:
        raise InvalidRequest(f"The group reads no topic {shown(form['topic'])}, or you may not READ it.")
    if form.get("cause") and form["cause"] not in CAUSES:
        raise InvalidRequest(f"There is no cause {shown(form['cause'])}: it is one of {', '.join(CAUSES)}.")
    try:
        rate = _rate(form.get("rate", ""))
        selection = _Own(
            cause=form.get("cause") or None,
            group=group_id,
            source_topic=form.get("topic") or None,
            header=parse_header(form["header"]) if form.get("header") else None,
            offsets=parse_offsets(form.get("offsets", "").split()),
            topics=topics,
            deadline=deadline,
        )
    except ValueError as error:
        raise InvalidRequest(f"The form has a wrong value: {error}.") from error
    options: dict[str, Any] = {
        "only_group": group_id if form.get("only") else None,
        "rate": rate,
        "requested_by": look.principal,
    }
    return lambda: Redrive(look.settings, look.service.database, topic, selection, **options)


def _rate(text: str) -> float | None:
    if not text:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e9:
        raise ValueError("the rate is a number of records a second, more than 0")
    return rate


def _plan(look: Look, group_id: str, topic: str) -> RedrivePlan | str:
    """Return what would be done, or why that is not known."""
    work = _work(look, group_id, topic, time.monotonic() + _PLAN_SECONDS)
    if not _planners.acquire(timeout=2):
        return "Others look at what they would send just now. Try again in a moment."
    found: list[RedrivePlan | str] = []

    def plan() -> None:
        try:
            found.append(work().plan())
        except _Late:
            limit = f"There are more letters than can be read in {_PLAN_SECONDS:g} s"
            found.append(f"{limit}: use `sharequeue dlq redrive`.")
        except (RedriveRefused, ShareError) as error:
            found.append(_told(error))
        except Exception as error:  # of the client: whoever asks is told
            found.append(f"The letters could not be read: {error}")
        finally:
            _planners.release()

    thread = Thread(target=plan, name="sharequeue-redrive-plan", daemon=True)
    thread.start()
    thread.join(_PLAN_SECONDS + 2)
    return found[0] if found else "The broker does not answer. Nothing was sent."


def _begin(group_id: str, topic: str, work: Callable[[], Redrive]) -> Response:
    """Send in the background, one redrive of a topic at a time, and lead to the page that shows it."""
    with _lock:
        if topic in _running:
            raise InvalidRequest("A redrive of this topic is under way here: wait until it has ended.")
        if len(_running) >= 2:
            raise InvalidRequest("Two redrives are under way in this service: wait until one has ended.")
        _running.add(topic)
        _failed.pop((group_id, topic), None)

    def send() -> None:
        try:
            work().run()
        except Exception as error:  # the page says why
            _failed[group_id, topic] = _told(error)
            _log.warning("a redrive of %s failed: %s", topic, error)
        finally:
            with _lock:
                _running.discard(topic)

    Thread(target=send, name="sharequeue-redrive", daemon=True).start()
    return secured(RedirectResponse(address("/redrive", group_id), 303))


def _told(error: Exception) -> str:
    """Return an error without the names that are like one: the caller may not be allowed to see them."""
    if isinstance(error, SQLAlchemyError):
        return "the database did not answer."
    text = str(error) or type(error).__name__
    for hint in (" Did you mean ", " The topics are ", " The groups are ", " The share groups are "):
        text = text.partition(hint)[0]
    return text


def _page(
    look: Look, group_id: str, topic: str, fields: Mapping[str, str], planned: Content = None
) -> Response:
    rows = look.read("last redrives", lambda: look.database.rows(_LAST, topic=topic, group_id=group_id)) or []
    under_way, failed = topic in _running, _failed.get((group_id, topic))
    last: list[Sequence[Content]] = [
        (
            short_moment(row["requested_at"]),
            row["requested_by"],
            row["selection"],
            ", ".join(row["target_topics"]),
            row["sent"],
            short_moment(row["ended_at"]) if row["ended_at"] else "not ended",
        )
        for row in rows
    ]
    columns = ("asked for (UTC)", "by", "letters", "to", "sent", "ended (UTC)")
    return look.document(
        f"Redrive of {group_id}",
        element("h1", f"Put dead letters of {group_id} back to work"),
        element(
            "p",
            "From ",
            element("code", topic),
            ". ",
            link("The letters", address("/dead-letters", group_id)),
        ),
        element("p", "A redrive is under way.", class_="good") if under_way else None,
        element("p", f"The last redrive here failed: {failed}", class_="wrong") if failed else None,
        planned,
        _form(look, group_id, fields),
        element(
            "section",
            element("h2", "Last redrives"),
            table(columns, last, caption="Redrives of this group", texts=("letters",))
            if last
            else element("p", "None yet."),
        ),
        live=planned is None and under_way,
    )


def _form(look: Look, group_id: str, fields: Mapping[str, str]) -> Html:
    if not look.caller.proved:
        return element("p", "Sign in to put records back: these pages act only for who has shown who it is.")
    given = {name: fields.get(name, "")[:2000].replace("\x00", "") for name in _NAMES}
    options = each(
        element("option", name or "any cause", value=name, selected=name == given["cause"])
        for name in ("", *CAUSES)
    )

    def text(name: str, hint: str) -> Html:
        return element("input", id=name, name=name, value=given[name], placeholder=hint)

    return element(
        "form",
        labelled("cause", "Cause", element("select", options, id="cause", name="cause")),
        labelled("topic", "Source topic", text("topic", "any")),
        labelled("offsets", "Letters", text("offsets", "all, or 0:17-20 1:3"), "partition:first-last"),
        labelled("header", "With the header", text("header", "name=value")),
        labelled("rate", "Records a second, at most", text("rate", "no bound")),
        labelled(
            "only",
            "Other share groups skip them",
            element("input", id="only", name="only", type="checkbox", value="1", checked=bool(given["only"])),
        ),
        element("button", "Show what would be sent", type="submit", name="do", value="plan"),
        class_="ask",
        method="post",
        action=address("/redrive", group_id),
    )


def _planned(look: Look, group_id: str, plan: RedrivePlan | str) -> Html:
    """Return what would be sent, and the button that sends it."""
    if isinstance(plan, str):
        return element("section", element("h2", "What would be sent"), element("p", plan, class_="wrong"))
    others = {target: _others(look, groups) for target, groups in plan.other_groups.items()}
    rows: list[Sequence[Content]] = [
        (target, count, others.get(target, "none")) for target, count in sorted(plan.targets.items())
    ]
    # Sent is what was shown, and not what came since.
    chosen = " ".join(
        f"{partition}:{first}-{end - 1}" for partition, of in plan.chosen.items() for first, end in of.ranges
    )
    fields = {name: look.form[name] for name in _NAMES if look.form.get(name)}
    fields["offsets"] = chosen
    said = element(
        "p",
        f"{plan.letters:,} letters would be sent. {plan.sent_before:,} were sent before and "
        f"{plan.looping:,} were put back too often: these stay.",
    )
    hidden = each(element("input", type="hidden", name=name, value=value) for name, value in fields.items())
    button = element(
        "button", f"Send {plan.letters:,} letters", type="submit", name="do", value="send", class_="act"
    )
    send = (
        element("form", hidden, button, class_="ask", method="post", action=address("/redrive", group_id))
        if len(chosen) <= _MOST_CHOSEN
        else element(
            "p",
            "They lie too scattered to be named in a form: choose some of them, or use `sharequeue dlq redrive`.",
            class_="wrong",
        )
    )
    return element(
        "section",
        element("h2", "What would be sent"),
        said,
        joined(
            table(
                ("to topic", "letters", "other share groups that get them, too"),
                rows,
                caption="A dry run: nothing was sent",
            ),
            send,
        )
        if rows
        else None,
    )


def _others(look: Look, groups: Sequence[str]) -> str:
    """Return the other groups by name as far as the caller may see them, and how many more there are."""
    seen = [group for group in groups[:50] if "DESCRIBE" in look.may(group)]
    more = len(groups) - len(seen)
    named = ", ".join(seen[:10])
    rest = more + max(0, len(seen) - 10)
    return (named + (f" and {rest:,} more" if named and rest else f"{rest:,}" if rest else "")) or "none"
