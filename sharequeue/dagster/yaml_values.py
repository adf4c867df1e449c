"""Values of a `defs.yaml`: bounds of numbers, durations, texts, days and time zones.

Dagster also reads the yaml before it has filled in templates: a text with `{{` is checked later.
"""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
"""Seconds."""
_LONGEST = 36_500
"""Days: sums of a longer duration and a time may be beyond what Python and Postgres have."""


def bounded(least: float, most: float | None = None, *, above: bool = False) -> AfterValidator:
    """Return a validator of a number's bounds, in place of pydantic's own.

    Dagster reads a yaml into a copy of the model in which every field may also be a text, for which pydantic's bounds
    raise a TypeError without the field's name.
    """
    expected = f"more than {least:g}" if above else f"at least {least:g}"
    expected += "" if most is None else f" and at most {most:g}"

    def check(value: Any) -> Any:
        if isinstance(value, int | float) and not (
            (value > least if above else value >= least)
            and value < math.inf
            and (most is None or value <= most)
        ):
            raise ValueError(f"expected {expected}, but it is {value:g}")
        return value

    return AfterValidator(check)


Count = Annotated[int, bounded(1)]
NotNegative = Annotated[int, bounded(0)]
Seconds = Annotated[float, bounded(0, above=True)]
Share = Annotated[float, bounded(0, 1, above=True)]


def duration(text: str) -> timedelta:
    """Read `2h`, `30m`, `1d`. Raises ValueError for anything else, and for more than a hundred years."""
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a duration: expected a number and s, m, h, d or w, such as 2h")
    seconds = float(found[1]) * _UNITS[found[2]]
    if seconds > _LONGEST * 86_400:
        raise ValueError(f"{text!r} is too long: expected at most {_LONGEST}d")
    return timedelta(seconds=seconds)


def lasting(least: str = "0s") -> AfterValidator:
    """Return a validator of a text that `duration` reads, of a duration that is not shorter than `least`."""

    def check(text: str) -> str:
        if "{{" not in text and duration(text) < duration(least):
            raise ValueError(f"{text!r} is too short: expected at least {least}")
        return text

    return AfterValidator(check)


Duration = Annotated[str, lasting()]
"""A text that `duration` reads."""


def _is_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number, but it is {value}")
    return value


Finite = Annotated[float, AfterValidator(_is_finite)]


def _are_texts(given: Any) -> Any:
    if isinstance(given, str) or (
        isinstance(given, Sequence) and all(isinstance(each, str) for each in given)
    ):
        return given
    raise ValueError(f"expected a text, or a list of texts, but it is {given!r}")


Texts = Annotated[Sequence[str] | str, BeforeValidator(_are_texts)]
"""A text, or a list of texts. Pydantic's own errors for such a type do not say that."""


def day_of(text: str) -> date | None:
    """Return the day that a text such as `2013-01-01` is; None for any other form, such as 20130101 or 2013-W01-1."""
    with suppress(ValueError):
        day = date.fromisoformat(text)
        return day if day.isoformat() == text else None
    return None


def zone_of(name: str) -> str:
    """Return a name if it is that of a time zone. Raises ValueError."""
    try:
        if "{{" not in name:
            ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"timezone is {name!r}: expected a time zone such as UTC or Europe/Berlin") from None
    return name
