"""Parse the text of a config's value, and format a value as text."""

from __future__ import annotations

import re
from datetime import timedelta

from sharequeue.domain.errors import InvalidConfig
from sharequeue.domain.names import shown
from sharequeue.groups.configs.keys import MAX_INT, ConfigKey, Value

_TRUTH = {"true": True, "false": False}
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,100}")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(?:T(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)


def parse(key: ConfigKey, text: str) -> Value:
    """Parse the value in a text, checked against the key's own type, choices and bounds.

    Raises `InvalidConfig`: what was given, what was expected and what to do.
    """
    if key.kind == "boolean":
        truth = _TRUTH.get(text.strip().lower())
        if truth is None:
            raise InvalidConfig(f"`{key.name}` is {text!r}, but must be true or false.")
        return truth
    if key.kind == "int":
        return _whole_number(key, text)
    value = text.strip()
    if key.choices and value not in key.choices:
        raise InvalidConfig(f"`{key.name}` is {text!r}, but must be one of: {', '.join(key.choices)}.")
    if key.name == "share.auto.offset.reset":
        reset_duration(value)
    if key.name == "errors.deadletterqueue.topic.name":
        _check_dead_letter_topic(value)
    return value


def _whole_number(key: ConfigKey, text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text.strip()):
        raise InvalidConfig(f"`{key.name}` is {shown(text)}, but must be a whole number.")
    number = int(text)
    low = -MAX_INT if key.low is None else key.low
    high = MAX_INT if key.high is None else key.high
    if not low <= number <= high:
        raise InvalidConfig(f"`{key.name}` is {number}, but must lie between {low} and {high}.")
    return number


def as_text(value: Value) -> str:
    """Return the text in which a value is stored and shown."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def reset_duration(policy: str) -> timedelta | None:
    """Return how far back `by_duration:<ISO-8601>` reaches; None for `latest` and `earliest`.

    Java's `Duration` syntax (`P2D`, `PT1H30M`, `PT0.5S`). Raises `InvalidConfig` for anything else, and for a
    negative duration (Kafka's `ShareGroupAutoOffsetResetStrategy`).
    """
    if policy in ("latest", "earliest"):
        return None
    expected = "must be latest, earliest or by_duration:<ISO-8601 duration>, as by_duration:PT1H"
    prefix, _, duration = policy.partition(":")
    match = _DURATION.fullmatch(duration) if prefix == "by_duration" else None
    if match is None or not any(match.groups()[1:]) or duration.upper().endswith("T"):
        raise InvalidConfig(f"`share.auto.offset.reset` is {policy!r}, but {expected}.")
    sign, days, hours, minutes, seconds = match.groups()
    try:
        clock = timedelta(hours=int(hours or 0), minutes=int(minutes or 0), seconds=float(seconds or 0))
        span = timedelta(days=int(days or 0)) + clock
    except (OverflowError, ValueError):
        raise InvalidConfig(
            f"`share.auto.offset.reset` is {shown(policy)}: the duration is longer than {timedelta.max.days:,} days."
        ) from None
    span = -span if sign == "-" else span
    if span < timedelta(0):
        raise InvalidConfig(f"`share.auto.offset.reset` is {policy!r}: the duration must not be negative.")
    return span


def _check_dead_letter_topic(topic: str) -> None:
    if topic.startswith("__"):
        raise InvalidConfig(
            f"`errors.deadletterqueue.topic.name` is {topic!r}, but names beginning with __ are Kafka's own."
        )
    if topic and (topic in (".", "..") or not _TOPIC_NAME.fullmatch(topic)):
        raise InvalidConfig(
            f"`errors.deadletterqueue.topic.name` is {topic!r}, which is not a valid topic name: use "
            "letters, digits, dots, underscores and hyphens, 249 characters at most."
        )
