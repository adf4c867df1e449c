"""Whether a run that has failed may succeed if it is repeated, without any change."""

from __future__ import annotations

from collections.abc import Callable

from sharequeue.domain.settings import SettingInvalid, SettingMissing

__all__ = ["is_final"]

_NOT_CURED = (ImportError, SettingMissing, SettingInvalid)
_MISSING_IN_WORKER = ("ModuleNotFoundError: ", "ImportError: ")


def is_final(
    error: BaseException, verdict: Callable[[BaseException], bool | None] = lambda error: None
) -> bool:
    """Return whether a retry cannot succeed until something else is changed. The causes of an error count, too.

    An error that has an attribute `retriable` says it itself. `verdict` says it for other errors, and None for those
    that it does not know.
    """
    one: BaseException | None = error
    while one is not None:
        if (final := _judged(one, verdict)) is not None:
            return final
        one = one.__cause__
    return False


def _judged(error: BaseException, verdict: Callable[[BaseException], bool | None]) -> bool | None:
    """Return whether an error is final; None if it does not say."""
    if (known := verdict(error)) is not None:
        return known
    if isinstance(retriable := getattr(error, "retriable", None), bool):
        return not retriable
    if isinstance(error, _NOT_CURED):
        return True
    if type(error).__module__.startswith("pyspark.") and any(
        line.startswith(_MISSING_IN_WORKER) for line in str(error).splitlines()
    ):
        return True
    return None
