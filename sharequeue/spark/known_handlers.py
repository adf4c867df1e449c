"""What a session knows of the handlers that it has run.

A handler whose last run in the session has succeeded needs no trial on no records. A trial costs as much as planning
a round, which calls the handler again. What it finds is found by the round, too: then the leases are given back, with
their deliveries, and the next run tries the handler first.

A handler that leaves out the column of the raw record is not given it again (`raw_column.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from sharequeue.spark.handled_columns import HandledColumns
from sharequeue.spark.handler import Handler


@dataclass(slots=True)
class KnownHandler:
    """What is known of one handler in one session."""

    ran: set[tuple[str, bool]] = field(default_factory=set)
    """The groups, and whether they were ordered by key, with which its last run has succeeded."""
    takes_raw: bool | None = None
    """Whether it passes on the column of the raw record; None if that is not known yet."""
    columns_wanted: bool = False
    """Whether somebody wants to know the columns of its result."""
    columns: HandledColumns | None = None
    """Those of its last result; None until they were wanted."""

    @contextmanager
    def needs_trial(self, group: str, ordered: bool) -> Iterator[bool]:
        """Yield whether the handler must be tried on no records before this run of a group leases any. It need not be
        in the next run if the block, which is the run, raises nothing.
        """
        run = (group, ordered)
        needed = run not in self.ran
        self.ran.discard(run)
        yield needed
        self.ran.add(run)


_KNOWN: WeakKeyDictionary[SparkSession, WeakKeyDictionary[Handler, KnownHandler]] = WeakKeyDictionary()


def known_handler(spark: SparkSession, handler: Handler) -> KnownHandler:
    """Return what the session knows of a handler."""
    of_session = _KNOWN.setdefault(spark, WeakKeyDictionary())
    try:
        return of_session.setdefault(handler, KnownHandler())
    except TypeError:  # an object without a hash, or without weak references
        return KnownHandler()
