"""End a cancelled run with one sentence.

A signal interrupts Spark in the middle of a call to its JVM, and the stack trace of that
call gives no information about the run.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg


@contextmanager
def cancelled_plainly(
    consequence: str = "its records are released, and no record is at fault",
) -> Iterator[None]:
    """End a block that Dagster interrupts with its exception, without the stack trace, and with the consequence for
    the block's work."""
    try:
        yield
    except dg.DagsterExecutionInterruptedError:
        raise dg.DagsterExecutionInterruptedError(f"the run was cancelled: {consequence}") from None


__all__ = ["cancelled_plainly"]
