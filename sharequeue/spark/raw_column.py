"""Call a handler with the column of the raw record, if it passes that on.

Most handlers add columns to their frame, and so pass it on. One that selects its columns leaves it out. One that
gives its whole frame to Python (`mapInPandas`) would send each record there twice. Both get a frame without it, as
soon as that is known. What they release is kept when it is read again (`kept_records.keep_scanned`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from sharequeue.domain.errors import first_line
from sharequeue.spark.handled_columns import HandledColumns
from sharequeue.spark.handler import RAW, Handler, call_handler
from sharequeue.spark.known_handlers import KnownHandler
from sharequeue.spark.raw_records import kept_apart, with_raw
from sharequeue.spark.trace_headers import with_trace

_log = logging.getLogger(__name__)

_PYTHON = ("InPandas", "InArrow")
"""In the names of the nodes of a plan that give whole rows to Python."""


@dataclass(frozen=True, slots=True)
class HandlerCalls:
    """Calls the handler of a run, which may keep the raw records that it releases."""

    handler: Handler
    known: KnownHandler
    topics: Collection[str] | None
    """The topics whose records are kept; None if the group keeps none."""
    traced: bool
    """Whether the handler gets the records with their traces."""

    def __call__(self, records: DataFrame) -> DataFrame:
        """Return the handler's result (`call_handler`), with a row for each raw record that is to be kept.

        A handler that fails with the column in its first call is called without it: it may expect the columns that it
        knows.
        """
        given = with_trace(records) if self.traced else records
        if self.topics is None:
            return self._called(given, records)
        if (
            self.known.takes_raw is not False
            and (handled := self._with_raw(given, records, self.topics)) is not None
        ):
            self.known.takes_raw = True
            return kept_apart(handled)
        handled = kept_apart(self._called(given, records))
        self.known.takes_raw = False
        return handled

    def _called(self, given: DataFrame, records: DataFrame) -> DataFrame:
        """Return the handler's result for what it is given, which has the columns of the records and others. What the
        result says of its columns, if it is wanted, is read again only when these are others.
        """
        handled, known = call_handler(self.handler, given), self.known
        if known.columns_wanted and (
            known.columns is None or known.columns.names != tuple(handled.schema.names)
        ):
            known.columns = HandledColumns.of(handled, records)
        return handled

    def _with_raw(self, given: DataFrame, records: DataFrame, topics: Collection[str]) -> DataFrame | None:
        try:
            handled = self._called(with_raw(given, topics), records)
        except Exception as error:
            if self.known.takes_raw:
                raise
            _log.debug("the handler is called without `%s`: %s", RAW, first_line(error))
            return None
        if RAW not in handled.schema.names:
            return None
        # Asked once: Spark takes 0.1 s to write the plan of a wide handler as a text.
        return None if not self.known.takes_raw and _goes_to_python(handled) else handled


def _goes_to_python(handled: DataFrame) -> bool:
    """Return whether a function in Python gets the raw record with its whole rows. `by_row` takes it apart before."""
    plan: Any = handled._jdf.queryExecution().analyzed()
    text = plan.toString()
    if not any(name in text for name in _PYTHON):
        return False
    return any(
        f"{RAW}#" in child.output().mkString(",")
        for node in _nodes(plan)
        if any(name in node.nodeName() for name in _PYTHON)
        for child in _children(node)
    )


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _children(plan):
        yield from _nodes(child)


def _children(plan: Any) -> list[Any]:
    children = plan.children()
    return [children.apply(at) for at in range(children.size())]
