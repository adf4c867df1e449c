"""The Spark side of the queue: what was leased becomes a DataFrame, what was written becomes an
acknowledgement.

Read the modules in the order in which a record meets them:

- `contract`: what a handler may write. `job`: what is to be done with the records of a group (`by_row`: record by
  record, in Python).
- `reading/`: from leased offsets to a DataFrame. `plan` chooses the scans, `frame` makes the DataFrame, `source` asks
  the topics.
- `leasing/`: how leases are taken and their locks kept (`renewal`), which run as a Spark job of their own
  (`isolation`).
- `output/`: the files of a lease, and which of them count (`manifest`).
- `outcomes/`: what became of each record. `read_back` reads it from the files, `missing` finds the offsets without an
  outcome, `acknowledging` sends it.
- `sinks/`: where accepted rows go.
- `run` goes round by round (`rounds`), and `lease` gives the same to a program that does its own writing.

Beside these: `session` makes the Spark session, `interrupts` lets a person stop a run, `draining` writes dead letters
at its end, `sweeping` removes what killed runs left, `report` has the figures.
"""

from sharequeue.extras import require

require("spark", "pyspark", "pandas")

from sharequeue.spark.by_row import Reject, Release, by_row
from sharequeue.spark.draining import DeadLettersLeft, Drained
from sharequeue.spark.job import ShareGroupJob, Summary, pipeline
from sharequeue.spark.lease import AcknowledgedRecords, LeasedRecords, Unacknowledged, lease
from sharequeue.spark.outcomes.failure_limits import MostFailed
from sharequeue.spark.run import RoundReport, RunReport, run_rounds
from sharequeue.spark.session import spark_session
from sharequeue.spark.sinks.at_least_once import AtLeastOnce
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sinks.parquet import ParquetByLease
from sharequeue.spark.sinks.postgres import PostgresTable

__all__ = [
    "AcknowledgedRecords",
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
