"""How does a run end that somebody cancels?

As cancelled, with one sentence. A signal interrupts Spark in the middle of a call to its JVM, and the stack of that
call says nothing about the run.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg


@contextmanager
def cancelled_plainly(
    consequence: str = "what it held is given back, and no record is at fault",
) -> Iterator[None]:
    """End a block that Dagster interrupts by its exception, without the stack of where it was, and with what became
    of the block's work."""
    try:
        yield
    except dg.DagsterExecutionInterruptedError:
        raise dg.DagsterExecutionInterruptedError(f"the run was cancelled: {consequence}") from None


__all__ = ["cancelled_plainly"]
