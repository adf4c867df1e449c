"""The job of a share group: its topics, handler, sink and limits.

A job names its group, its topics and its sink, and has a handler: a function from DataFrame to DataFrame that gives
every record an `outcome`, and for a failure an `error` and the earliest time of the next attempt (`not_before`).
`run.py` reads the records and acknowledges the outcomes. A handler can be called on any DataFrame with the same
columns, so it can be tested without a run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from pyspark.sql import DataFrame

from sharequeue.domain.names import is_folder_name
from sharequeue.spark.handler import Handler, check_without_row
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.reading.options import ReaderOptions
from sharequeue.spark.sinks.interface import Sink


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures stored in addition to a sink: partial sums by lease, merged when they are read.

    `partial` gets the accepted rows just written, with `lease_id`, and must group by `lease_id` among others. The
    result is computed and durable before the acknowledgement, and counts from it on, like the records themselves.
    """

    name: str
    partial: Handler


class RunBounds(TypedDict, total=False):
    """The bounds of a run and of its rounds, as `Pipeline.run` explains them."""

    max_rounds: int | None
    max_records: int
    max_bytes: int | None
    max_seconds: float | None
    replaces: str | None


@dataclass(frozen=True, slots=True)
class ShareGroupJob:
    """A share group's pipeline. It can be called like its handler.

    `without_row` is the outcome of a record for which the handler returned no row; None, the default, is an error.
    `deliveries_per_run` is how often one run leases a record that it has released; a delivery without an outcome (its
    process died) is not counted. A run stops when `failed_share` of at least a hundred records of a round have
    failed, or all of several Spark jobs with the same error before any has succeeded; never when `failed_share` is
    None. `try_empty` calls the handler on an empty DataFrame before anything is leased, except in a run that follows
    one without an error in the same session. `headers` may be switched off where they are not used, which saves
    decoding them. `reader_options` are those of Spark's Kafka connector that do not change which records are read;
    others are an error. `destination` is where accepted rows go (`sinks/`); None leaves them in files, by lease.
    `name` is the name under which the group stores the pipeline; None uses the module and the name of the handler.
    """

    group: str
    topics: tuple[str, ...]
    handler: Handler
    sink: str
    summaries: tuple[Summary, ...] = ()
    without_row: str | None = None
    headers: bool = True
    reader_options: Mapping[str, str] = field(default_factory=dict)
    destination: Sink | None = None
    deliveries_per_run: int = 1
    failed_share: float | None = 0.5
    try_empty: bool = True
    name: str | None = None

    def __post_init__(self) -> None:
        check_without_row(self.without_row)
        ReaderOptions.of(self.reader_options)
        if not self.topics:
            raise ValueError("topics must not be empty: name at least one topic")
        if self.deliveries_per_run < 1:
            raise ValueError(f"deliveries_per_run is {self.deliveries_per_run}: expected 1 or more")
        if self.failed_share is not None and not 0 < self.failed_share <= 1:
            raise ValueError(
                f"failed_share is {self.failed_share}: expected a share of a round, above 0 and at most 1, or None"
            )
        for name in (self.sink, *(summary.name for summary in self.summaries)):
            if not is_folder_name(name):
                raise ValueError(f"{name!r} cannot be the name of a sink: it becomes a folder's name")

    def __call__(self, records: DataFrame) -> DataFrame:
        """Return the handler's result for these records."""
        return self.handler(records)

    @property
    def pipeline_name(self) -> str:
        """The name under which the group stores this pipeline: its `name`, or for example `my_module:orders`."""
        return self.name or name_of(self.handler)

    @property
    def names(self) -> SinkNames:
        """The names under which the job's output is stored."""
        return SinkNames(self.group, self.sink, tuple(summary.name for summary in self.summaries))

    @property
    def exceptions_sink(self) -> str:
        """The sink of released and rejected records, with their errors."""
        return self.names.exceptions

    def summary_sink(self, summary: Summary) -> str:
        """Return the sink of a summary's partial sums."""
        return self.names.summary(summary.name)


def name_of(handler: Handler) -> str:
    """Return the module and the name of a handler, such as `my_module:orders`, the same whether its file is imported
    or run as a script. In a notebook the module is `__main__`.
    """
    named = handler if hasattr(handler, "__qualname__") else type(handler)
    module = str(named.__module__)
    main = sys.modules.get("__main__")
    if module == "__main__" and main is not None:
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file).stem if file else module
    return f"{module.removesuffix('.__main__')}:{named.__qualname__}"
