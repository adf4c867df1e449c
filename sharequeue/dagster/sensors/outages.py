"""How does a sensor wait while Postgres is away?

With one line at a tick instead of a stack, and with pauses that grow, up to ten minutes: each attempt to connect may
take seconds. How many failed is kept in the sensor's cursor, beside what the sensor itself keeps there.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import dagster as dg
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database.schema_files import SchemaOutdated
from sharequeue.errors import ShareError
from sharequeue.settings import SettingMissing

LONGEST_PAUSE_SECONDS = 600.0

AWAY = (SQLAlchemyError, SettingMissing, SchemaOutdated, ShareError)
"""What is raised while the state cannot be read: no server, no address, another version, no permission."""

_OUTAGE = "outage"

Tick = dg.SensorResult | dg.SkipReason


def cursor_of(context: dg.SensorEvaluationContext) -> dict[str, Any]:
    """What the sensor kept; empty at its first tick, and where somebody has set a cursor that is not ours."""
    try:
        kept = json.loads(context.cursor or "{}")
    except ValueError:
        return {}
    return kept if isinstance(kept, dict) else {}


def keep(context: dg.SensorEvaluationContext, kept: dict[str, Any]) -> None:
    """Keep it for the next tick, whatever this one returns."""
    context.update_cursor(json.dumps(kept))


def waiting_out(
    context: dg.SensorEvaluationContext, interval_seconds: float, tick: Callable[[dict[str, Any]], Tick]
) -> Tick:
    """Return what `tick` returns, given the cursor; while the state cannot be read, why this one is skipped."""
    kept = cursor_of(context)
    outage = kept.pop(_OUTAGE, None)
    if outage and time.time() < outage["until"]:
        return dg.SkipReason(
            f"the state could not be read: {outage['error']}; next attempt in {outage['until'] - time.time():.0f} s"
        )
    try:
        return tick(kept)
    except AWAY as error:
        failures = outage["failures"] + 1 if outage else 1
        pause = min(LONGEST_PAUSE_SECONDS, interval_seconds * 2 ** min(failures, 16))
        said = first_line(str(getattr(error, "orig", None) or error)) or type(error).__name__
        kept[_OUTAGE] = {"failures": failures, "until": time.time() + pause, "error": said}
        keep(context, kept)
        return dg.SkipReason(f"the state cannot be read: {said}; next attempt in {pause:.0f} s")


def first_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
