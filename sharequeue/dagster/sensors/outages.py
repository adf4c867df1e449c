"""Wait in a sensor while Postgres is away.

Each tick logs one line instead of a stack trace, and the pauses grow, up to ten minutes: each attempt to connect may
take seconds. The number of failures is kept in the sensor's cursor, next to the sensor's own data.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import dagster as dg
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database.schema_files import SchemaOutdated
from sharequeue.words.errors import ShareError
from sharequeue.words.settings import SettingMissing

LONGEST_PAUSE_SECONDS = 600.0

AWAY = (SQLAlchemyError, SettingMissing, SchemaOutdated, ShareError)
"""Errors while the state cannot be read: no server, no address, another version, no permission."""

_OUTAGE = "outage"

Tick = dg.SensorResult | dg.SkipReason


def cursor_of(context: dg.SensorEvaluationContext) -> dict[str, Any]:
    """Return the sensor's stored data; empty at its first tick, and if the cursor is not one of ours."""
    try:
        kept = json.loads(context.cursor or "{}")
    except ValueError:
        return {}
    return kept if isinstance(kept, dict) else {}


def keep(context: dg.SensorEvaluationContext, kept: dict[str, Any]) -> None:
    """Store data for the next tick, whatever this one returns."""
    context.update_cursor(json.dumps(kept))


def waiting_out(
    context: dg.SensorEvaluationContext, interval_seconds: float, tick: Callable[[dict[str, Any]], Tick]
) -> Tick:
    """Return the result of `tick` with the cursor; while the state cannot be read, the reason for skipping it."""
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
        reason = first_line(str(getattr(error, "orig", None) or error)) or type(error).__name__
        kept[_OUTAGE] = {"failures": failures, "until": time.time() + pause, "error": reason}
        keep(context, kept)
        return dg.SkipReason(f"the state cannot be read: {reason}; next attempt in {pause:.0f} s")


def first_line(text: str) -> str:
    """Return the first non-empty line."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
