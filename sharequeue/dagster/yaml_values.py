"""Values of a `defs.yaml`: bounds of numbers, durations, days and time zones.

Dagster also reads the yaml before it has filled in templates: a text with `{{` is checked later.
"""

import math
import re
from contextlib import suppress
from datetime import date, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import AfterValidator

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


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
    """Read `2h`, `30m`, `1d`. Raises ValueError for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a duration: expected a number and s, m, h, d or w, such as 2h")
    return timedelta(**{_UNITS[found[2]]: float(found[1])})


def _is_duration(text: str) -> str:
    duration(text)
    return text


Duration = Annotated[str, AfterValidator(_is_duration)]
"""A text that `duration` reads."""


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
