"""The trace of a record (W3C Trace Context) on its way through a handler, for a sink that passes it on.

It is in the column TRACE of the records: a handler that passes on all columns passes it on, and `by_row` always does.
A handler that does not costs nothing: Spark leaves out what nobody uses.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from sharequeue.domain.traces import FORM, HEADER
from sharequeue.spark.handler import TRACE
from sharequeue.spark.sql_texts import text_literal

TRACE_BYTES = 55
"""The length of a valid trace."""


def with_trace(records: DataFrame) -> DataFrame:
    """Return records with the column TRACE: the first header `traceparent`, null without one or if it is invalid."""
    # Not by `filter`: Spark generates no code for a stage with it.
    place = f"cast(array_position(headers.key, {text_literal(HEADER)}) as int) - 1"
    text = f"cast(get(headers.value, {place}) as string)"
    return records.withColumn(TRACE, fn.expr(f"if({text} rlike {text_literal(f'^{FORM}$')}, {text}, null)"))
