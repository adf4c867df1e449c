"""Compare times that were stored with the time now.

A stored time may be from another machine, whose clock differs by seconds, or from before a clock was set back. So a
time that is further ahead than clocks differ is never waited for.
"""

CLOCKS_DIFFER_SECONDS = 60.0
"""What the clocks of the machines of runs, sensors and Postgres may differ by."""


def is_ahead(stored: float, now: float) -> bool:
    """Return whether a stored time (Unix seconds) is from before the clock was set back."""
    return stored - now > CLOCKS_DIFFER_SECONDS


def has_passed(seconds: float, since: float, now: float) -> bool:
    """Return whether so many seconds have passed since a stored time; they have if it is ahead."""
    return is_ahead(since, now) or now - since >= seconds


__all__ = ["CLOCKS_DIFFER_SECONDS", "has_passed", "is_ahead"]
