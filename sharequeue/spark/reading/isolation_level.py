"""Refuse reader options that set an isolation level other than the lease's.

A reader that is stricter than the lease does not see the records of an open transaction, and would treat them as
gaps. A less strict reader delivers those of aborted transactions. So each lease carries the level at which it was
acquired, and `frame.py` and `source.py` read at that level. No other code sets one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

ISOLATION = "kafka.isolation.level"
"""The connector's option for the isolation level."""
_WHAT_TO_DO = (
    "records are read at the isolation level at which they were leased. Leave it out, and set the group's config "
    "share.isolation.level: it counts from the next lease on"
)


def refuse_level(options: Mapping[str, str]) -> None:
    """Raise ValueError if the reader's options set an isolation level."""
    for name in options:
        if name.lower() == ISOLATION:  # the connector ignores case
            raise ValueError(f"the reader's option {name} is not supported: {_WHAT_TO_DO}")


def one_level(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make a function raise TypeError for an argument `isolation_level`, with the reason why there is none."""

    @wraps(call)
    def checked(*args: _P.args, **arguments: _P.kwargs) -> _T:
        if "isolation_level" in arguments:
            raise TypeError(f"{call.__name__}() has no argument isolation_level: {_WHAT_TO_DO}")
        return call(*args, **arguments)

    return checked
