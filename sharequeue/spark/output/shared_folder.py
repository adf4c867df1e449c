"""Check that the driver can write to the output and read what the tasks wrote.

On a cluster whose executors write to their own disks, the driver finds none of the files, or only some. A missing
record would look like one that the handler left out. So a path as output is refused on a cluster unless the settings
declare the folder as shared. In any case the tasks count the rows that they write, and this number is compared with
the rows read back, before anything is acknowledged.
"""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.errors import PipelineError
from sharequeue.domain.settings import Settings
from sharequeue.spark.output.files import Files

COUNTED_SECONDS = 60.0
"""Longest wait for a count after its write has ended. It is available at once, unless Spark has lost the event."""


class OutputNotShared(PipelineError):
    """The driver cannot read the files of the tasks: on a cluster every process needs the same output folder. Nothing
    was acknowledged.
    """


class Counted:
    """A counter of the rows of a DataFrame in the tasks that write it: `rows` is known after the write. It counts
    all of them, unless another aggregate is given.

    A task that runs twice counts once: the figures are those that Spark accepted for the last stage.
    """

    def __init__(self, records: DataFrame, rows: str = "count(1)") -> None:
        self._observation = Observation()
        self.records = records.observe(self._observation, fn.expr(f"{rows} as rows"))

    @property
    def rows(self) -> int:
        """The count. Raises OutputNotShared if Spark does not report it: the number of rows is then unknown."""
        observed: Any = self._observation._jo
        deadline = time.monotonic() + COUNTED_SECONDS
        while not observed.future().isCompleted():
            if time.monotonic() > deadline:
                raise OutputNotShared(
                    "Spark does not report how many rows its tasks wrote, so it is not known whether all of them "
                    "were read back: nothing was acknowledged, and the records are delivered again."
                )
            time.sleep(0.005)
        # `Observation.get` makes a separate call for every name and value.
        return int(observed.getAsJava().get("rows"))


def refuse_unshared(spark: SparkSession, settings: Settings, folder: str) -> None:
    """Raise OutputNotShared for a path on this machine when Spark works on a cluster, unless the settings declare it
    as shared.
    """
    master = str(spark.sparkContext.master)
    files = Files(spark, folder)
    if master.startswith("local") or settings.output_shared or not files.is_path(folder):
        return
    raise OutputNotShared(
        f"{folder} is a folder of this machine, and Spark works on a cluster ({master}): files that executors write "
        "to their own disks are not found here, and their records would count as left out. Nothing was leased, or "
        "the leases are given back. Set SHAREQUEUE_OUTPUT to a location that all of them can reach (hdfs://…, "
        "s3a://…); or, if each of them has this folder mounted, set SHAREQUEUE_OUTPUT_SHARED=true."
    )


def refuse_unusable(spark: SparkSession, settings: Settings, folder: str) -> None:
    """Raise OutputNotShared as `refuse_unshared` does, and OutputNotReachable for an output that cannot be written
    to.
    """
    refuse_unshared(spark, settings, folder)
    Files(spark, folder).reach(folder)


def all_read_back(what: str, written: int, read: int) -> None:
    """Raise OutputNotShared unless the driver has read as many rows as the tasks wrote."""
    if read != written:
        raise OutputNotShared(
            f"the tasks wrote {written} rows of {what}, and the driver reads {read}: nothing was acknowledged, and "
            "the records are delivered again. The output folder (SHAREQUEUE_OUTPUT) must be the same for the driver "
            "and every executor, and nobody may remove files there."
        )
