"""Merge the partial sums of a summary into its file, as Dagster has it, in its own process or elsewhere."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_scalar
from pyspark.sql import DataFrame, SparkSession

from sharequeue.domain.results.summaries import MergedSummary, Plain
from sharequeue.domain.settings.addresses import is_uri
from sharequeue.outputs.manifest import read_manifest
from sharequeue.outputs.summaries import summary_file
from sharequeue.spark.named_pipelines import WrongPipeline
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.pipelines import Pipeline
from sharequeue.state import State

__all__ = ["first_rows", "merge_summary"]

SHOWN_ROWS = 10


def merge_summary(
    job: Pipeline,
    summary: str,
    merge: Callable[[DataFrame], DataFrame],
    *,
    root: str,
    output: str,
    state: State,
    spark: Callable[[], SparkSession],
) -> MergedSummary:
    """Merge the partial sums of all leases that count into one Parquet file, which is replaced as a whole.

    The file is below `root`, in the folder of `output`, the name of the queue's output. `spark` gives the session
    when it is needed. Raises WrongPipeline if the pipeline has no such summary, and what reading an output raises.
    """
    found = [each for each in job.summaries if each.name == summary]
    if not found:
        known = ", ".join(each.name for each in job.summaries) or "none"
        raise WrongPipeline(f"summaries: {job.pipeline_name} has no summary {summary!r} (it has: {known})")
    sink = job.summary_sink(found[0])
    if not read_manifest(state, job.group, sink):
        return MergedSummary(summary=summary)
    session = spark()
    rows = merge(read_output(session, state, job.group, sink))
    merged = rows.toPandas()
    file = summary_file(root, output, summary)
    _replace(session, merged, file)
    shown, first = first_rows(merged, SHOWN_ROWS)
    return MergedSummary(
        summary=summary,
        path=file,
        uri=file if is_uri(file) else Path(file).absolute().as_uri(),
        rows=len(merged),
        columns={each.name: each.dataType.simpleString() for each in rows.schema.fields},
        shown=shown,
        first_rows=first,
    )


def _replace(spark: SparkSession, frame: pd.DataFrame, file: str) -> None:
    """Write a frame as one Parquet file. A reader sees the old file or the new one."""
    if is_uri(file):
        with tempfile.TemporaryDirectory() as folder:
            staged = Path(folder) / "summary.parquet"
            frame.to_parquet(staged, engine="pyarrow", index=False, write_page_checksum=True)
            Files(spark, file).put(staged, file)
        return
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    frame.to_parquet(staged, engine="pyarrow", index=False, write_page_checksum=True)
    staged.replace(path)


def first_rows(frame: pd.DataFrame, rows: int) -> tuple[dict[str, str], list[list[Plain]]]:
    """Return the columns of a small table, with the names of their types in Dagster, and its first rows for JSON."""
    kinds = {"i": "int", "u": "int", "f": "float", "b": "bool"}
    columns = {str(name): kinds.get(kind.kind, "string") for name, kind in frame.dtypes.items()}
    return columns, [
        [_plain(value, kind) for value, kind in zip(row, columns.values(), strict=True)]
        for row in frame.head(rows).itertuples(index=False)
    ]


_MADE: Mapping[str, type[int | float | bool]] = {"int": int, "float": float, "bool": bool}


def _plain(value: Any, kind: str) -> Plain:
    """Return a cell as a JSON value: JSON does not support numpy's numbers."""
    if is_scalar(value) and pd.isna(value):
        return None
    # JSON has no infinity, and Dagster's page would not show the row.
    if kind == "float" and not isfinite(value):
        return str(value)
    return _MADE.get(kind, str)(value)
