"""Write a reminder once it is due; until then it waits, and no run is started for it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from sharequeue.spark import Reject, Release, by_row, pipeline

GROUP, TOPIC = "reminders", "reminders"


def remind(record: dict[str, Any]) -> dict[str, Any]:
    """Return the reminder to write.

    A reminder that is not yet due is released with `not_before`: it is not delivered earlier, and requests no run.
    """
    try:
        reminder = json.loads(bytes(record["value"]))
        due, whom, what = (
            datetime.fromisoformat(reminder["due"]),
            str(reminder["whom"]),
            str(reminder["what"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise Reject(f"not a reminder: {error!r}") from error
    if due.utcoffset() is None:
        raise Reject(f"due {reminder['due']!r} has no time zone")
    if due > datetime.now(UTC):
        raise Release("not due yet", not_before=due)
    return {"whom": whom, "what": what, "due": due}


reminders = pipeline(group=GROUP, topics=[TOPIC], sink="reminders")(
    by_row(remind, "whom string, what string, due timestamp")
)
