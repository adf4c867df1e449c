"""The Spark side of the queue: what was leased becomes a DataFrame, what was written becomes an
acknowledgement.

The way of a record, module by module: `job` says what is to be done (`rows`: record by record, in Python), `plan`
which scans, `read` makes the DataFrame, `write` lands it, `outcomes` reads back what was landed, `missing` says what
became of the rest, `sinks` take what was accepted as `answering` acknowledges it, `run` goes round again.
"""

from pipelines.job import ShareGroupJob, Summary, pipeline
from pipelines.rows import Reject, Release, by_row
from pipelines.run import RoundReport, RunReport, run_rounds
from pipelines.session import spark_session
from pipelines.sink_postgres import PostgresTable
from pipelines.sinks import AtLeastOnce, ParquetByLease, SinkRefused

__all__ = [
    "AtLeastOnce",
    "ParquetByLease",
    "PostgresTable",
    "Reject",
    "Release",
    "RoundReport",
    "RunReport",
    "ShareGroupJob",
    "SinkRefused",
    "Summary",
    "by_row",
    "pipeline",
    "run_rounds",
    "spark_session",
]
