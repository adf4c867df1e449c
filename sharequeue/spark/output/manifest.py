"""The contents of the folders of a sink that count, as a DataFrame of Spark.

Which folders count is in `sharequeue.outputs.manifest`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sharequeue.domain.settings import Settings
from sharequeue.domain.values import OutputRow
from sharequeue.outputs.errors import OutputDamaged, named_leases
from sharequeue.outputs.manifest import PENDING, leases_by_folder
from sharequeue.spark.handler import LEASE
from sharequeue.spark.output.damaged import reads_what_counts, refuse_emptied
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import SinkNames, sink_root
from sharequeue.spark.output.parquet import read_parquet
from sharequeue.state import State

_FOLDER = re.compile(rf"/(leases=[^/]+/{LEASE}=-?\d+|compacted=[^/]+)$")
_DATA_FILE = re.compile(rf"/(leases=[^/]+/{LEASE}=-?\d+|compacted=[^/]+)/[^_./][^/]*")


def read_output(
    spark: SparkSession,
    state: State,
    group: str,
    sink: str,
    schema: StructType | str | None = None,
    *,
    known: Collection[str] = (),
) -> DataFrame:
    """Return the current rows of a sink: rows of acknowledged leases only, each record once.

    Works for `<sink>-exceptions` and `<sink>-<summary>` too. Where nothing was accepted, the DataFrame is empty, and
    has columns only if `schema` names them. A column whose type was widened is read as the wider type. Raises
    ColumnChanged for a column with incompatible types, OutputDamaged for a missing folder, and NoSuchSink for a sink
    that never had an output, unless it is one of those `known` to exist.
    """
    folders = tuple(leases_by_folder(state, group, sink, known=known))
    if not folders:
        return spark.createDataFrame([], schema or StructType([]))
    return read_counted(spark, folders, schema)


def read_counted(
    spark: SparkSession, folders: Sequence[str], schema: StructType | str | None = None
) -> DataFrame:
    """Return the rows of folders that count. Raises ColumnChanged, and OutputDamaged for a missing folder."""
    with reads_what_counts(folders):
        rows = read_parquet(spark, folders, schema)
    jvm: Any = spark._jvm
    # In one text: each path would be a JVM call. Spark does not raise for a folder without files.
    files = str(getattr(jvm, "org.apache.hadoop.util.StringUtils").join("\n", rows._jdf.inputFiles()))
    refuse_emptied(folders, files.split("\n"))
    return rows


def missing_outputs(spark: SparkSession, state: State, group: str) -> list[str]:
    """Return what is missing of a group's outputs: a text for each folder that counts and has no file.

    Each sink is listed once. Raises OutputNotReachable for a file system that Spark does not know.
    """
    missing: list[str] = []
    for sink in state.outputs.sinks(group):
        folders: dict[str, list[OutputRow]] = {}
        for row in state.outputs.counted(group, sink):
            location = row.location.removeprefix(PENDING)
            if row.records and _FOLDER.search(location):
                folders.setdefault(location, []).append(row)
        roots = {folder: _FOLDER.sub("", folder) for folder in folders}
        there = {root: _with_files(Files(spark, root).listing(root)) for root in set(roots.values())}
        for folder, rows in folders.items():
            if folder.removeprefix(f"{roots[folder]}/") not in there[roots[folder]]:
                missing.append(
                    f"sink {sink} of group {group} counts {sum(row.records for row in rows)} records of "
                    f"{named_leases([row.lease_id for row in rows])} in {folder}: the folder has no file. Restore it "
                    "from a backup, or create its rows again with a replay"
                )
    return missing


def _with_files(listing: str) -> set[str]:
    """Return the folders of leases and compactions that have data files, by their names below the sink."""
    return {found[1] for found in _DATA_FILE.finditer(listing)}


def refuse_gone(files: Files, settings: Settings, state: State, names: SinkNames) -> None:
    """Raise OutputDamaged if the folder of a sink is missing although outputs in it count. A missing folder of a
    lease is noticed when it is read. Outputs outside the folder of the settings are not checked.
    """
    newest, root = state.outputs.newest(names.group, names.sink), sink_root(settings, names.sink)
    if newest is None or not newest.location.startswith(f"{root}/") or files.exists(root):
        return
    raise OutputDamaged(
        f"the folder {root} is missing, and with it outputs that count, such as the output of "
        f"{named_leases([newest.lease_id])} in {newest.location}. Nothing was leased. Restore the folder from a "
        "backup, or check whether SHAREQUEUE_OUTPUT is right. If it was deleted on purpose, give the pipeline a new "
        "sink (`sink=`). To continue with this sink, create the folder again, empty: the earlier rows stay lost, and "
        "reading the sink raises OutputDamaged"
    )
