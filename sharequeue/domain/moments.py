"""Convert Kafka's times, which are integers, to moments; write durations for people.

Kafka counts milliseconds since 1970 in 64 bits. Python has years 1 to 9999 only, so a producer that writes
microseconds (year 58,874) has times without a moment: they stay integers until they are shown.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime.fromtimestamp(0, UTC)


def moment_of(milliseconds: int) -> datetime | None:
    """Return the moment of one of Kafka's times, UTC; None if Python has no such year."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def milliseconds_of(moment: datetime) -> int:
    """Return the first of Kafka's times that is not before a moment."""
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def span(length: timedelta) -> str:
    """Return a duration in its largest unit, such as `3 min`."""
    seconds = abs(length.total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
