"""Check names of groups, topics and clients, make folder names of them, and suggest the nearest known name.

Kafka's own rule for topics (`Topic.validate`). Kafka bounds group ids and client ids by the protocol only (32,767
bytes); here they have the same limit as topic names, because they are keys in Postgres and labels of metrics.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import operator
import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

LONGEST_NAME = 249
"""Characters; Kafka's limit for topic names."""

_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SHOWN = 60
_LARGEST = 2**63 - 1
"""The largest `bigint`."""
_LONGEST_FOLDER = 180
"""Characters; a name in a file system has at most 255 bytes."""


def is_topic_name(name: str) -> bool:
    """Return whether a topic may have this name.

    Kafka allows 1 to 249 letters, digits, dots, underscores and hyphens; not `.` or `..`.
    """
    return _LEGAL_TOPIC.fullmatch(name) is not None and name not in (".", "..")


def folder_name(text: str) -> str:
    """Return a name of a folder for any text: one part of a path on every file system, different for different texts.

    It does not begin with a dot or an underscore, because readers of Spark leave out such folders. A long one is cut
    and gets a hash.
    """
    name = quote(text, safe="")
    if name[:1] in ("", ".", "_", "~"):
        name = f"%{ord(name[0]):02X}{name[1:]}" if name else "%"
    if len(name) > _LONGEST_FOLDER:
        name = f"{name[:_LONGEST_FOLDER]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return name


def is_folder_name(name: str) -> bool:
    """Return whether a folder may have this name as it is: one part of a path, which readers of Spark read."""
    return bool(name) and not name.startswith(("_", ".")) and "/" not in name and name.isprintable()


def topic_name_problem(name: str) -> str | None:
    """Return the error message for an illegal topic name; None for a legal one."""
    if is_topic_name(name):
        return None
    return (
        f"The topic name {shown(name)} is not legal: use 1 to {LONGEST_NAME} letters, digits, dots, underscores "
        'and hyphens, and not "." or "..".'
    )


def too_long(what: str, name: str) -> str | None:
    """Return the error message for a group id or client id that is too long; None for others."""
    if len(name) <= LONGEST_NAME:
        return None
    return f"The {what} has {len(name)} characters: expected at most {LONGEST_NAME}."


def shown(name: str) -> str:
    """Return a name quoted for a message: on one line and shortened if it is long."""
    return repr(name if len(name) <= _SHOWN else name[:_SHOWN] + "…")


def listed(names: Sequence[str], most: int = 3) -> str:
    """List the first `most` names and the number of further ones."""
    first = ", ".join(names[:most])
    return first if len(names) <= most else f"{first} and {len(names) - most:,} more"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: 1 record, 2,000 records."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """Return a hint for an unknown name: the most similar known names, else the first known ones.

    `what` is the plural noun for the names, such as "share groups".
    """
    names = sorted(set(known))
    if not names:
        return f"There are no {what} yet."
    like = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if like:
        return f"Did you mean {' or '.join(like)}?"
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"The {what} are {shown}."


def finite(name: str, value: object, at_least: float = 0) -> float:
    """Return an argument if it is a finite number.

    Raises TypeError if it is not a number, ValueError for NaN, an infinity, and a number that is too small.
    """
    expected = f"a finite number, {at_least:,} or more"
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}, of type {type(value).__name__}: expected {expected}")
    if not (math.isfinite(value) and value >= at_least):
        raise ValueError(f"{name} is {value}: expected {expected}")
    return value


def whole_number(name: str, value: object, at_least: int | None = None) -> int:
    """Return an argument if it is a whole number that the database can hold. Raises TypeError if it is not a whole
    number, ValueError if it is too small or too large.
    """
    expected = "a whole number" if at_least is None else f"a whole number, {at_least:,} or more"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} is {value!r}, of type {type(value).__name__}: expected {expected}") from None
    if at_least is not None and number < at_least:
        raise ValueError(f"{name} is {number}: expected {expected}")
    if abs(number) > _LARGEST:
        raise ValueError(f"{name} is {number}: expected at most {_LARGEST:,}")
    return number


def printable(text: str) -> str:
    """Escape characters that break a line or control a terminal: newlines, escape sequences."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
