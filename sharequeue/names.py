"""Which names of groups, topics and clients can be, and which one did somebody mean?

Kafka's own rule for topics (`Topic.validate`). Kafka bounds group ids and client ids by the protocol only (32,767
bytes); here they end where topic names do, for they are keys in Postgres and labels of metrics.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable, Sequence

LONGEST_NAME = 249
"""Characters; Kafka's bound for topic names."""

_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SHOWN = 60


def is_topic_name(name: str) -> bool:
    """Whether a topic may be called so: 1 to 249 letters, digits, dots, underscores and hyphens; not `.` or `..`."""
    return _LEGAL_TOPIC.fullmatch(name) is not None and name not in (".", "..")


def topic_name_problem(name: str) -> str | None:
    """What is wrong with the name of a topic, and what would be right; None when nothing is."""
    if is_topic_name(name):
        return None
    return (
        f"The topic name {shown(name)} is not legal: use 1 to {LONGEST_NAME} letters, digits, dots, underscores "
        'and hyphens, and not "." or "..".'
    )


def is_blank(name: str) -> bool:
    """Whether there is nothing in a name but blanks: what Java's `String.trim` takes away, and so Kafka refuses."""
    return all(each <= " " for each in name)


def too_long(what: str, name: str) -> str | None:
    """What is wrong with the length of a group id or client id; None when nothing is."""
    if len(name) <= LONGEST_NAME:
        return None
    return f"The {what} has {len(name)} characters; at most {LONGEST_NAME} are allowed."


def shown(name: str) -> str:
    """A name as a message quotes it: on one line, and not longer than a line."""
    return repr(name if len(name) <= _SHOWN else name[:_SHOWN] + "…")


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first few of many names, and how many more there are."""
    first = ", ".join(names[:most])
    return first if len(names) <= most else f"{first} and {len(names) - most:,} more"


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """Return the sentence that helps with a name that is not known: the names most like it, else how many there are.

    `what` is the plural of what the names are of, as in "share groups".
    """
    names = sorted(set(known))
    if not names:
        return f"There are no {what} yet."
    like = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if like:
        return f"Did you mean {' or '.join(like)}?"
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"The {what} are {shown}."


def whole_number(name: str, value: object, at_least: int | None = None) -> int:
    """Return an argument that is a whole number. Raises TypeError for what is none, ValueError for one too small."""
    expected = "a whole number" if at_least is None else f"a whole number, {at_least:,} or more"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} is {value!r}, of type {type(value).__name__}: expected {expected}") from None
    if at_least is not None and number < at_least:
        raise ValueError(f"{name} is {number}: expected {expected}")
    return number
