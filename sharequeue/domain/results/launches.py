"""What Dagster tells a process that it launches elsewhere, and what that answers.

The order is a part of the Pipes context. The answers are lines of the Pipes log, because they arrive while the
process works, also if it fails: Pipes gives its other messages only to a client whose process has ended well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sharequeue.domain.results.replays import PublishReport, ReplayReport
from sharequeue.domain.results.runs import FullRun
from sharequeue.domain.results.summaries import MergedSummary

__all__ = [
    "EXTRA",
    "Answer",
    "FailedRun",
    "LaunchedPublication",
    "LaunchedReplay",
    "LaunchedRun",
    "LaunchedSummary",
    "LaunchedWindow",
    "Order",
    "answered",
    "extra_of",
    "line_of",
    "order_of",
]

EXTRA = "sharequeue"
"""The name of the order among the extras of the Pipes context."""
_MARK = "sharequeue answers: "
"""The beginning of a line that is an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedRun:
    """The order for a run: its pipeline, its member and its bounds. The answer is a FullRun."""

    pipeline: Mapping[str, Any]
    """The arguments of `named_pipeline`."""
    client_id: str
    member_id: str
    keep_seconds: float
    """The retention of the group's history."""
    deliveries_per_run: int | None
    bounds: Mapping[str, Any]
    """The bounds of `Pipeline.run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedSummary:
    """The order to merge a summary. The answer is a MergedSummary."""

    pipeline: Mapping[str, Any]
    """The arguments of `named_pipeline`."""
    summary: str
    merge: str
    """MODULE:NAME of the function that merges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedWindow:
    """A span of time to replay, and the name of the replay."""

    since: datetime
    until: datetime
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedReplay:
    """The order to replay records by time. The answers are a ReplayReport for each window."""

    pipeline: Mapping[str, Any]
    """The arguments of `named_pipeline`."""
    windows: Sequence[LaunchedWindow]
    allow_missing: bool
    """Whether to replay the rest of a time from which retention has removed records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedPublication:
    """The order to publish replays, and to merge the summaries again. The answers are a PublishReport for each
    replay, and a MergedSummary for each summary.
    """

    pipeline: Mapping[str, Any]
    """The arguments of `named_pipeline`."""
    replays: Sequence[str]
    """Their names."""
    execute: bool
    """Whether to publish them; otherwise they are only checked, and no summary is merged."""
    merges: Mapping[str, str]
    """By summary, MODULE:NAME of the function that merges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """Why a process has failed, in place of an answer."""

    error: str
    """The code of the error and its message."""
    final: bool
    """Whether a retry cannot succeed until something is changed."""


Order = LaunchedRun | LaunchedSummary | LaunchedReplay | LaunchedPublication
Answer = FullRun | MergedSummary | ReplayReport | PublishReport


def extra_of(order: Order) -> dict[str, Any]:
    """Return the extras of a Pipes context with an order."""
    kind: Any = type(order)
    return {EXTRA: {_ORDERS[kind]: _adapter(kind).dump_python(order, mode="json")}}


def order_of(extra: Any) -> Order:
    """Read an order. Raises ValueError for one of a version that this one does not understand."""
    try:
        ((name, given),) = extra.items()
        order: Order = _adapter(_named(_ORDERS, name)).validate_python(given)
    except (ValidationError, ValueError, AttributeError) as error:
        raise ValueError(
            "the order of Dagster cannot be read: it is of another version of sharequeue. Install the same one "
            "there and here"
        ) from error
    return order


def line_of(answer: Answer | FailedRun) -> str:
    """Return an answer as a line of the log."""
    kind: Any = type(answer)
    plain = (
        answer.plain()
        if isinstance(answer, ReplayReport)
        else _adapter(kind).dump_python(answer, mode="json")
    )
    return _MARK + json.dumps({_ANSWERS[kind]: plain})


def answered(line: str) -> Answer | FailedRun | None:
    """Return the answer that a line of the log is; None for any other line, and for an answer that was cut off or is
    of a version that this one does not understand.
    """
    if not line.startswith(_MARK):
        return None
    try:
        ((name, found),) = json.loads(line.removeprefix(_MARK)).items()
        kind = _named(_ANSWERS, name)
        answer: Answer | FailedRun = (
            ReplayReport.of_plain(found) if kind is ReplayReport else _adapter(kind).validate_python(found)
        )
    except (LookupError, ValueError, TypeError, AttributeError):
        return None
    return answer


_ORDERS: Mapping[Any, str] = {
    LaunchedRun: "run",
    LaunchedSummary: "summary",
    LaunchedReplay: "replay",
    LaunchedPublication: "publication",
}
_ANSWERS: Mapping[Any, str] = {
    FullRun: "done",
    MergedSummary: "merged",
    ReplayReport: "replayed",
    PublishReport: "published",
    FailedRun: "failed",
}


def _named(kinds: Mapping[Any, str], name: str) -> Any:
    """Return the kind of a name. Raises ValueError for an unknown one."""
    for kind, known in kinds.items():
        if known == name:
            return kind
    raise ValueError(name)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
