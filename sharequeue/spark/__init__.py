"""Share groups in Spark: what was leased becomes a DataFrame, what was written becomes an acknowledgement.

The names that a program needs, by what they are for:

- a pipeline, which leases, writes and acknowledges by itself: `pipeline` makes a `Pipeline` of a function from
  DataFrame to DataFrame, `by_row` makes such a function of one that gets a record at a time (`Reject`, `Release`),
  `Summary` keeps figures beside its output; `job.run()` returns a `RunReport` of `RoundReport`s, `job.try_on()` a
  `Trial`; `job.follow()` goes on as records come, and returns a `FollowReport`; `run_rounds` is what a run calls;
- values that become columns: `sharequeue.spark.formats`, with `json`, `avro` and `protobuf`;
- where accepted rows go: `ParquetByLease` (the default), `PostgresTable`, `DeltaTable`, `IcebergTable`,
  `AtLeastOnce`;
- a lease of one's own, in any program: `lease` gives `LeasedRecords`, whose acknowledgement is `AcknowledgedRecords`;
- records of the past once more, beside the live group: `job.replay()`, or `replay`, gives a
  `ReplayReport`; `job.publish()`, or `publish`, puts it in the place of the live output's rows (`PublishReport`);
- the output: `read_output`, `sweep_outputs`, `compact`, `sweep_compactions`;
- the Spark session: `spark_session`;
- errors: `HandlerError`, `MostFailed`, `LockLost`, `GroupTaken`, `SinkTaken`, `SinkRefused`, `NotFiles`,
  `NoSuchSink`, `OutputDamaged`, `OutputFull`, `OutputNotReachable`, `OutputNotShared`, `RegistryNotAvailable`,
  `SparkNotReady`; and warnings: `Unacknowledged`, `DeadLettersLeft`.

A name is imported when it is first used: importing this package loads neither Spark nor SQLAlchemy.

Who reads the modules reads them in the order in which a record meets them:

- `contract`: what a handler may write. `job`: what is to be done with the records of a group (`by_row`: record by
  record, in Python). `pipeline`: a job that needs nothing but settings.
- `reading/`: from leased offsets to a DataFrame. `plan` chooses the scans, `frame` makes the DataFrame, `source` asks
  the topics.
- `leasing/`: how leases are taken and their locks kept (`renewal`), which run as a Spark job of their own
  (`isolation`).
- `output/`: the files of a lease, and which of them count (`manifest`).
- `outcomes/`: what became of each record. `read_back` reads it from the files, `missing` finds the offsets without an
  outcome, `acknowledging` sends it.
- `sinks/`: where accepted rows go.
- `replays/`: the handler once more on records of the past, apart from the group.
- `run` goes round by round (`rounds`), `following` runs whenever there is something, and `lease` gives the same to a
  program that does its own writing.

Beside these: `session` makes the Spark session, `interrupts` lets a person stop a run, `draining` writes dead letters
at its end, `sweeping` removes what killed runs left, `trial` tries a handler, `report` has the figures, `showing`
prints them, `progress` shows how far a run is.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from sharequeue.extras import require

if TYPE_CHECKING:
    from sharequeue.spark.by_row import Reject, Release, by_row
    from sharequeue.spark.contract import HandlerError, MostFailed, RegistryNotAvailable
    from sharequeue.spark.draining import DeadLettersLeft
    from sharequeue.spark.following import FollowReport
    from sharequeue.spark.job import Summary
    from sharequeue.spark.lease import LeasedRecords, Unacknowledged, lease
    from sharequeue.spark.leasing.claiming import GroupTaken
    from sharequeue.spark.leasing.renewal import LockLost
    from sharequeue.spark.output.compaction import compact, sweep_compactions
    from sharequeue.spark.output.folders import SinkTaken
    from sharequeue.spark.output.manifest import NoSuchSink, NotFiles, read_output
    from sharequeue.spark.output.reachable import OutputDamaged, OutputFull, OutputNotReachable
    from sharequeue.spark.output.shared_folder import OutputNotShared
    from sharequeue.spark.pipeline import Pipeline, pipeline
    from sharequeue.spark.replays.publishing import PublishReport, publish
    from sharequeue.spark.replays.replay import replay
    from sharequeue.spark.replays.report import ReplayReport
    from sharequeue.spark.report import AcknowledgedRecords, RoundReport, RunReport
    from sharequeue.spark.run import run_rounds
    from sharequeue.spark.session import SparkNotReady, spark_session
    from sharequeue.spark.sinks.at_least_once import AtLeastOnce
    from sharequeue.spark.sinks.delta import DeltaTable
    from sharequeue.spark.sinks.iceberg import IcebergTable
    from sharequeue.spark.sinks.interface import SinkRefused
    from sharequeue.spark.sinks.parquet import ParquetByLease
    from sharequeue.spark.sinks.postgres import PostgresTable
    from sharequeue.spark.sweeping import sweep_outputs
    from sharequeue.spark.trial import Trial

__all__ = [
    "AcknowledgedRecords",
    "AtLeastOnce",
    "DeadLettersLeft",
    "DeltaTable",
    "FollowReport",
    "GroupTaken",
    "HandlerError",
    "IcebergTable",
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
    "compact",
    "lease",
    "pipeline",
    "publish",
    "read_output",
    "replay",
    "run_rounds",
    "spark_session",
    "sweep_compactions",
    "sweep_outputs",
]

_MODULES = {
    "by_row": ("Reject", "Release", "by_row"),
    "contract": ("HandlerError", "MostFailed", "RegistryNotAvailable"),
    "draining": ("DeadLettersLeft",),
    "following": ("FollowReport",),
    "job": ("Summary",),
    "lease": ("LeasedRecords", "Unacknowledged", "lease"),
    "leasing.claiming": ("GroupTaken",),
    "leasing.renewal": ("LockLost",),
    "output.compaction": ("compact", "sweep_compactions"),
    "output.folders": ("SinkTaken",),
    "output.manifest": ("NoSuchSink", "NotFiles", "read_output"),
    "output.reachable": ("OutputDamaged", "OutputFull", "OutputNotReachable"),
    "output.shared_folder": ("OutputNotShared",),
    "pipeline": ("Pipeline", "pipeline"),
    "replays.publishing": ("PublishReport", "publish"),
    "replays.replay": ("replay",),
    "replays.report": ("ReplayReport",),
    "report": ("AcknowledgedRecords", "RoundReport", "RunReport"),
    "run": ("run_rounds",),
    "session": ("SparkNotReady", "spark_session"),
    "sinks.at_least_once": ("AtLeastOnce",),
    "sinks.delta": ("DeltaTable",),
    "sinks.iceberg": ("IcebergTable",),
    "sinks.interface": ("SinkRefused",),
    "sinks.parquet": ("ParquetByLease",),
    "sinks.postgres": ("PostgresTable",),
    "sweeping": ("sweep_outputs",),
    "trial": ("Trial",),
}
"""Where each name comes from."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


require("spark", "pyspark", "pandas")


class _Face(ModuleType):
    """Some functions have the name of the module that they are in. The import system sets a package's attribute to
    a module once that is imported; here the name stays the function's.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULE_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
