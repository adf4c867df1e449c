"""Which folders of a sink count, and what do they hold?

Readers use the manifest that Postgres keeps (`State.outputs`), never a listing of folders: a folder counts once the
acknowledgement of its lease has committed. A sink that is no folder has rows in the manifest too; their location
begins with ELSEWHERE.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sharequeue.names import nearest
from sharequeue.spark.output.damaged import reads_what_counts, refuse_emptied
from sharequeue.spark.output.parquet import read_parquet
from sharequeue.state import State

ELSEWHERE = "sink:"
"""The beginning of a location in the manifest that is no folder."""
PENDING = f"{ELSEWHERE}pending:"
"""The beginning of a location whose rows lie in the folder that follows, and go on from there into a table. The
state's functions know it, too.
"""


class NotFiles(Exception):
    """What a sink's manifest counts is not in files; the message says where it is."""


class NoSuchSink(Exception):
    """Nothing was ever acknowledged with an output of this sink; the message names the sinks that there are."""


def read_manifest(state: State, group: str, sink: str) -> tuple[str, ...]:
    """Return the folders of a sink that count: the acknowledgements of their leases have committed.

    Raises NotFiles when the sink's rows went elsewhere.
    """
    folders = dict.fromkeys(row.location for row in state.outputs.counted(group, sink) if row.records)
    elsewhere = [folder for folder in folders if folder.startswith(ELSEWHERE)]
    if waiting := [folder for folder in elsewhere if folder.startswith(PENDING)]:
        raise NotFiles(
            f"the output of {sink} goes into a table; the rows of {len(waiting)} folders wait for that, until the "
            "next round or run"
        )
    if elsewhere:
        raise NotFiles(
            f"the output of {sink} is not in files: it went to {elsewhere[0].removeprefix(ELSEWHERE)}"
        )
    return tuple(folders)


def read_output(
    spark: SparkSession,
    state: State,
    group: str,
    sink: str,
    schema: StructType | str | None = None,
    *,
    known: Collection[str] = (),
) -> DataFrame:
    """Return what a sink holds now: rows of acknowledged leases only, each record once.

    Works for `<sink>-exceptions` and `<sink>-<summary>` too. Where nothing was accepted, the DataFrame is empty, and
    has columns only if `schema` names them. A column whose type was widened is read as the wider type. Raises
    ColumnChanged for a column whose types do not fit together, OutputDamaged for a folder that is gone, and
    NoSuchSink for a sink that never had an output, unless it is one of those `known` to exist.
    """
    folders = read_manifest(state, group, sink)
    if not folders:
        if sink not in known and sink not in (there := state.outputs.sinks(group)):
            raise NoSuchSink(
                f"group {group} has no output of a sink {sink!r}. {nearest(sink, [*there, *known], 'sinks')}"
            )
        return spark.createDataFrame([], schema or StructType([]))
    return read_counted(spark, folders, schema)


def read_counted(
    spark: SparkSession, folders: Sequence[str], schema: StructType | str | None = None
) -> DataFrame:
    """Return the rows of folders that count. Raises ColumnChanged, and OutputDamaged for one that is gone."""
    with reads_what_counts(folders):
        rows = read_parquet(spark, folders, schema)
    jvm: Any = spark._jvm
    # In one text: each path would be a call of the JVM. A folder without a file is no error of Spark's.
    files = str(jvm.org.apache.hadoop.util.StringUtils.join("\n", rows._jdf.inputFiles()))
    refuse_emptied(folders, files.split("\n"))
    return rows
