"""Share groups in Spark: leased records become a DataFrame, written outcomes become an acknowledgement.

The public names, by purpose:

- a pipeline, which leases, writes and acknowledges without further code: `pipeline` makes a `Pipeline` of a function
  from DataFrame to DataFrame, `by_row` makes such a function from one that gets one record at a time (`Reject`,
  `Release`), `Summary` keeps figures beside its output; `job.run()` returns a `RunReport` of `RoundReport`s,
  `job.try_on()` a `Trial`; `job.follow()` continues as records arrive, and returns a `FollowReport`;
- values that become columns: `sharequeue.spark.formats`, with `json` and `avro`;
- where accepted rows go: the sinks. `ParquetByLease` is the default, and `docs/howto/sinks.md` lists them;
- a lease in any other Spark program: `lease` returns `LeasedRecords`, and their acknowledgement returns
  `AcknowledgedRecords`;
- replays of past records, separate from the live group: `job.replay()` returns a `ReplayReport`; `job.publish()`
  replaces the rows of the live output with the replay (`PublishReport`);
- the output: `read_output`, or `job.output()`; `job.sweep()` removes the files that killed runs left;
- the Spark session: `spark_session`;
- errors: `HandlerError`, `MostFailed`, `ProcessKilled`, `LockLost`, `GroupTaken`, `SinkTaken`, `SinkRefused`,
  `NotFiles`, `NoSuchSink`, `OutputDamaged`, `OutputFull`, `OutputNotReachable`, `OutputNotShared`,
  `RegistryNotAvailable`, `SparkNotReady`; and the warning `Unacknowledged`.

The modules, in the order in which a record passes through them:

- `handler`: what a handler may write. `job`: a group's topics, handler, sink and limits (`row_handlers`: a handler
  made from a Python function that gets one record). `pipelines`: a job that needs only settings.
- `run` opens and reports a run, `rounds` has the sequence of its rounds, `round` is one of them, `isolated_jobs` runs
  its Spark jobs, each separate from the others, and `lease_results` reads back and acknowledges its leases.
  `following` starts a run whenever there are records, and `leased_records` offers the same to a program that does its
  own writing.
- `leasing/`: the checks of the group (`group`), acquiring leases and renewing their locks (`renewal`), and what a
  dead process means (`crashes`).
- `reading/`: from leased offsets to a DataFrame. `plan` chooses the scans, `frame` makes the DataFrame, `source`
  queries the topics.
- `output/`: the files of a lease, and which of them count (`manifest`).
- `outcomes/`: the outcome of each record. `outcomes` reads it from the files and finds the offsets without one,
  `acknowledging` sends it.
- `ordering/`: the order by key of a group that has it. `frames` gives a handler the records whose turn it is, `cut`
  holds those behind the first one of their key that was not accepted.
- `sinks/`: where accepted rows go.
- `replays/`: the handler on records outside the group's leases: on past records, or for a trial.
- `full_runs`: a run with its member, its history and its sweeps, as Dagster has it, in its own process or elsewhere.
  `merged_summaries`: a summary in its file. `full_publications`: replays published. `named_pipelines`: the pipeline
  that a configuration names.

In addition: `session` makes the Spark session (`submitted`: that of `spark-submit`), `registry` reads schemas from a
schema registry, `spark_jobs` cancels its jobs of a run, `signals` lets a user stop a run, `dead_letters` writes dead
letters at its end, `sweep` removes the files that killed runs left, `progress` shows the progress. The reports are
values that need no Spark: `sharequeue.domain.results`.
"""

from __future__ import annotations

from sharequeue.domain.extras import require, require_classic_spark

require("spark", "pyspark", "pandas")  # before the imports: the error names the extra to install
require_classic_spark()

from sharequeue.domain.results.replays import PublishReport, ReplayReport
from sharequeue.domain.results.runs import AcknowledgedRecords, FollowReport, RoundReport, RunReport
from sharequeue.outputs.errors import NoSuchSink, NotFiles, OutputDamaged, OutputNotReachable
from sharequeue.spark.handler import HandlerError, MostFailed, RegistryNotAvailable
from sharequeue.spark.job import Summary
from sharequeue.spark.leased_records import LeasedRecords, Unacknowledged, lease
from sharequeue.spark.leasing.crashes import ProcessKilled
from sharequeue.spark.leasing.group import GroupTaken
from sharequeue.spark.leasing.renewal import LockLost
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.output.owners import SinkTaken
from sharequeue.spark.output.reachable import OutputFull
from sharequeue.spark.output.shared_folder import OutputNotShared
from sharequeue.spark.pipelines import Pipeline, pipeline
from sharequeue.spark.replays.trial import Trial
from sharequeue.spark.row_handlers import Reject, Release, by_row
from sharequeue.spark.session import SparkNotReady, spark_session
from sharequeue.spark.sinks.at_least_once import AtLeastOnce
from sharequeue.spark.sinks.delta import DeltaTable
from sharequeue.spark.sinks.iceberg import IcebergTable
from sharequeue.spark.sinks.interface import SinkRefused
from sharequeue.spark.sinks.kafka.topic import KafkaTopic
from sharequeue.spark.sinks.parquet import ParquetByLease
from sharequeue.spark.sinks.postgres.sink import PostgresTable

__all__ = [
    "AcknowledgedRecords",
    "AtLeastOnce",
    "DeltaTable",
    "FollowReport",
    "GroupTaken",
    "HandlerError",
    "IcebergTable",
    "KafkaTopic",
    "LeasedRecords",
    "LockLost",
    "MostFailed",
    "NoSuchSink",
    "NotFiles",
    "OutputDamaged",
    "OutputFull",
    "OutputNotReachable",
    "OutputNotShared",
    "ParquetByLease",
    "Pipeline",
    "PostgresTable",
    "ProcessKilled",
    "PublishReport",
    "RegistryNotAvailable",
    "Reject",
    "Release",
    "ReplayReport",
    "RoundReport",
    "RunReport",
    "SinkRefused",
    "SinkTaken",
    "SparkNotReady",
    "Summary",
    "Trial",
    "Unacknowledged",
    "by_row",
    "lease",
    "pipeline",
    "read_output",
    "spark_session",
]
