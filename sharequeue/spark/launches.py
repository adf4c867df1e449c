"""What Dagster tells a run that it launches elsewhere, and what the run answers.

The order is a part of the Pipes context. The answers are lines of the Pipes log, because they arrive while the run
works, also if its process fails: Pipes gives its other messages only to a client whose process has ended well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sharequeue.spark.full_runs import FullRun

__all__ = ["EXTRA", "FailedRun", "LaunchedRun", "answered", "line_of"]

EXTRA = "sharequeue"
"""The name of the order among the extras of the Pipes context."""
_MARK = "sharequeue answers: "
"""The beginning of a line that is an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedRun:
    """The order for a run: its pipeline, its member and its bounds."""

    pipeline: Mapping[str, Any]
    """The arguments of `named_pipeline`."""
    client_id: str
    member_id: str
    keep_seconds: float
    """The retention of the group's history."""
    deliveries_per_run: int | None
    bounds: Mapping[str, Any]
    """The bounds of `Pipeline.run`."""

    def extra(self) -> Any:
        """Return the order as JSON has it."""
        kind: Any = type(self)
        return _adapter(kind).dump_python(self, mode="json")

    @classmethod
    def of(cls, extra: Any) -> LaunchedRun:
        """Read an order. Raises ValueError for one of a version that this one does not understand."""
        try:
            kind: Any = cls
            order: LaunchedRun = _adapter(kind).validate_python(extra)
        except ValidationError as error:
            raise ValueError(
                "the order of Dagster cannot be read: it is of another version of sharequeue. Install the same one "
                "there and here"
            ) from error
        return order


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """Why a run has failed."""

    error: str
    """The code of the error and its message."""
    final: bool
    """Whether a retry cannot succeed until something is changed."""


def line_of(answer: FullRun | FailedRun) -> str:
    """Return an answer as a line of the log."""
    kind: Any = type(answer)
    return _MARK + json.dumps({_KINDS[kind]: _adapter(kind).dump_python(answer, mode="json")})


def answered(line: str) -> FullRun | FailedRun | None:
    """Return the answer that a line of the log is; None for any other line, and for an answer that was cut off or is
    of a version that this one does not understand.
    """
    if not line.startswith(_MARK):
        return None
    try:
        found = json.loads(line.removeprefix(_MARK))
        kind: Any = next(kind for kind, name in _KINDS.items() if name in found)
        answer: FullRun | FailedRun = _adapter(kind).validate_python(found[_KINDS[kind]])
    except (ValueError, TypeError, StopIteration):
        return None
    return answer


_KINDS: Mapping[Any, str] = {FullRun: "done", FailedRun: "failed"}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
