"""The Spark side of the queue: what was leased becomes a DataFrame, what was written becomes an
acknowledgement.

The way of a record, module by module: `job` says what is to be done (`rows`: record by record, in Python), `plan`
which scans, `read` makes the DataFrame, `write` lands it, `outcomes` reads back what was landed, `sinks` take what
was accepted as `answering` acknowledges it, `run` goes round again. `retries` says when a released record comes
again, `failing` when a run stops, `nothing` why there is nothing to lease, `interrupts` how a person stops it,
`draining` who writes the dead letters at its end.
`source` is all that is asked of the topics, `renewal` keeps the locks, `compaction` makes few files of many.
`leasing` gives the same to a program that does its own writing.
"""

from sharequeue.extras import require

require("spark", "pyspark", "pandas")

from sharequeue.spark.by_row import Reject, Release, by_row
from sharequeue.spark.draining import DeadLettersLeft, Drained
from sharequeue.spark.job import ShareGroupJob, Summary, pipeline
from sharequeue.spark.lease import Answered, LeasedRecords, Unacknowledged, lease
from sharequeue.spark.outcomes.failing import MostFailed
from sharequeue.spark.run import RoundReport, RunReport, run_rounds
from sharequeue.spark.session import spark_session
from sharequeue.spark.sinks.postgres import PostgresTable
from sharequeue.spark.sinks.sinks import AtLeastOnce, ParquetByLease, SinkRefused

__all__ = [
    "Answered",
    "AtLeastOnce",
    "DeadLettersLeft",
    "Drained",
    "LeasedRecords",
    "MostFailed",
    "ParquetByLease",
    "PostgresTable",
    "Reject",
    "Release",
    "RoundReport",
    "RunReport",
    "ShareGroupJob",
    "SinkRefused",
    "Summary",
    "Unacknowledged",
    "by_row",
    "lease",
    "pipeline",
    "run_rounds",
    "spark_session",
]
