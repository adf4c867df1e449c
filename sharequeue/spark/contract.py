"""What may a handler write, and what happens when it writes something else?

The contract between a handler, or a program of the user's own, and the queue: the words for outcomes, the columns
that say which record a row comes from, and the error for a breach. Everything else in `sharequeue.spark` may import
this module; it imports nothing from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame

from sharequeue.values import AcknowledgeType

ACCEPT = "accept"
RELEASE = "release"
REJECT = "reject"

OUTCOMES: Mapping[str, AcknowledgeType] = {
    ACCEPT: AcknowledgeType.ACCEPT,
    RELEASE: AcknowledgeType.RELEASE,
    REJECT: AcknowledgeType.REJECT,
}
"""What a handler may write into the column `outcome`, and what it means to the queue."""

KEPT_COLUMNS = ("topic", "partition", "offset", "lease_id")
"""Columns a handler must pass on unchanged: they say which record a row comes from."""

RESULT_NAMES = ("outcome", "error", "not_before")
"""Columns of a handler's result that are for the queue, and are no value of a record."""
KEPT_AS_GIVEN = "every row must pass on topic, partition, offset and lease_id of its record as it got them"
"""What an error expects of rows that do not."""

Handler = Callable[[DataFrame], DataFrame]


class HandlerError(Exception):
    """A handler broke its contract; the message says what it did and what is expected."""


def check_meanings(dropped: str | None, unknown: str | None) -> None:
    """Raise ValueError when `dropped` or `unknown` is neither an outcome nor None."""
    for name, outcome in (("dropped", dropped), ("unknown", unknown)):
        if outcome is not None and outcome not in OUTCOMES:
            raise ValueError(
                f"{name}={outcome!r} is no outcome: expected one of {', '.join(OUTCOMES)}, or None"
            )


class MostFailed(Exception):
    """Most records of a round failed, or all of its Spark jobs with the same error. Nothing of it was acknowledged,
    and its deliveries were given back; the message has the most frequent error and an example.
    """


class RegistryNotAvailable(Exception):
    """The schema registry does not answer, or refuses the login; the message says which. No record is the cause:
    nothing was acknowledged, and what was leased has been given back, with its deliveries.
    """
