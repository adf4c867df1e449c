"""A sensor that reads the state in Postgres, and waits while Postgres is away.

Each tick logs one line instead of a stack trace, and the pauses grow, up to ten minutes: each attempt to connect may
take seconds. The number of failures is kept in the sensor's cursor, next to the sensor's own data.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any

import dagster as dg
from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError
from sqlalchemy.exc import SQLAlchemyError
from typing_extensions import TypedDict

from sharequeue.dagster.resources import StateResource
from sharequeue.database.schema_files import SchemaOutdated
from sharequeue.domain.errors import ShareError, first_line
from sharequeue.domain.settings import SettingMissing

LONGEST_PAUSE_SECONDS = 600.0

AWAY = (SQLAlchemyError, SettingMissing, SchemaOutdated, ShareError)
"""Errors while the state cannot be read: no server, no address, another version, no permission."""

_OUTAGE = "outage"


class _Outage(TypedDict):
    failures: Annotated[int, Field(ge=1, le=1_000_000)]
    until: FiniteFloat
    error: str


_STRICT = ConfigDict(strict=True)
_READ: Mapping[str, TypeAdapter[Any]] = {
    "progress": TypeAdapter(str, config=_STRICT),
    "share_partitions": TypeAdapter(list[str], config=_STRICT),
    "topics": TypeAdapter(dict[str, int], config=_STRICT),
    "waiting_since": TypeAdapter(FiniteFloat, config=_STRICT),
    _OUTAGE: TypeAdapter(_Outage),
}
"""The fields of all cursors that a tick reads, with their types. A person may set any cursor."""

SensorCursor = dict[str, Any]
"""What a sensor stores for its next tick."""
SensorAnswer = dg.SensorResult | dg.SkipReason
Tick = Callable[[dg.SensorEvaluationContext, StateResource, SensorCursor], SensorAnswer]


def sensor_on_state(
    name: str, tick: Tick, *, job_name: str, interval_seconds: int, enabled: bool, description: str
) -> dg.SensorDefinition:
    """Build a sensor. While the state cannot be read, a tick is skipped with the reason."""

    @dg.sensor(
        name=name,
        job_name=job_name,
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if enabled else dg.DefaultSensorStatus.STOPPED,
        description=description,
    )
    def sensor(context: dg.SensorEvaluationContext, sharequeue_state: StateResource) -> SensorAnswer:
        kept = _cursor_of(context)
        outage = kept.pop(_OUTAGE, None)
        left = outage["until"] - time.time() if outage else 0
        # No pause is longer: the clock was set back since.
        if outage and 0 < left <= LONGEST_PAUSE_SECONDS:
            return dg.SkipReason(
                f"the state could not be read: {outage['error']}; next attempt in {left:.0f} s"
            )
        try:
            return tick(context, sharequeue_state, kept)
        except AWAY as error:
            failures = outage["failures"] + 1 if outage else 1
            pause = min(LONGEST_PAUSE_SECONDS, interval_seconds * 2 ** min(failures, 16))
            reason = first_line(getattr(error, "orig", None) or error) or type(error).__name__
            kept[_OUTAGE] = {"failures": failures, "until": time.time() + pause, "error": reason}
            keep(context, kept)
            return dg.SkipReason(f"the state cannot be read: {reason}; next attempt in {pause:.0f} s")

    return sensor


def keep(context: dg.SensorEvaluationContext, kept: SensorCursor) -> None:
    """Store data for the next tick, whatever this one returns."""
    context.update_cursor(json.dumps(kept))


def _cursor_of(context: dg.SensorEvaluationContext) -> SensorCursor:
    """Return the fields of the sensor's cursor that a tick reads; empty at its first tick.

    What is not of ours is left out: it would fail each tick before a new cursor is stored.
    """
    try:
        stored = json.loads(context.cursor or "{}")
    except (ValueError, RecursionError):
        return {}
    found: SensorCursor = {}
    for name, kind in _READ.items() if isinstance(stored, dict) else ():
        with suppress(ValidationError):
            found[name] = kind.validate_python(stored.get(name))
    return found
