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

from pipelines.draining import DeadLettersLeft, Drained
from pipelines.failing import MostFailed
from pipelines.job import ShareGroupJob, Summary, pipeline
from pipelines.leasing import Answered, LeasedRecords, Unacknowledged, lease
from pipelines.rows import Reject, Release, by_row
from pipelines.run import RoundReport, RunReport, run_rounds
from pipelines.session import spark_session
from pipelines.sink_postgres import PostgresTable
from pipelines.sinks import AtLeastOnce, ParquetByLease, SinkRefused

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
