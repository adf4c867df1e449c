"""The assets of a pipeline's summaries: the partial sums of all leases that count, merged."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from sharequeue.dagster.assets.accepted import cancelled_plainly, pipeline_of
from sharequeue.dagster.io_manager import summary_file
from sharequeue.dagster.references import NoSuchObject, Reference
from sharequeue.dagster.resources import SettingsResource, SparkResource, StateResource
from sharequeue.dagster.retries import retried_if_useful
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.tables import column_schema, preview
from sharequeue.domain.settings import Settings
from sharequeue.state import State

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

SHOWN_ROWS = 10


def summary_asset(spec: dg.AssetSpec, group: ShareGroup, name: str) -> dg.AssetsDefinition:
    """Build the asset of one summary: one Parquet file, which is replaced as a whole."""

    @dg.multi_asset(specs=[spec], name=f"{group.name}_{name}", pool=group.op.pool, op_tags=group.op.tags)
    @partial(retried_if_useful, policy=group.op.retries)
    def summary(
        context: dg.AssetExecutionContext,
        sharequeue_settings: SettingsResource,
        sharequeue_state: StateResource,
        sharequeue_spark: SparkResource,
    ) -> Any:
        session, settings = sharequeue_spark.session(group.name), sharequeue_settings.load()
        with cancelled_plainly():
            merged = merge_summary(group, name, settings, sharequeue_state.state, session)
        return dg.MaterializeResult(metadata=merged)

    return summary


def merge_summary(
    group: ShareGroup, name: str, settings: Settings, state: State, session: "SparkSession"
) -> Mapping[str, Any]:
    """Merge the partial sums of a summary into its file, and return the metadata of its materialization.

    Raises dg.Failure where the pipeline has no such summary, or the function that merges it cannot be loaded.
    """
    from sharequeue.outputs.manifest import read_manifest
    from sharequeue.spark.output.manifest import read_output

    job = pipeline_of(group)
    found = [each for each in job.summaries if each.name == name]
    if not found:
        known = ", ".join(each.name for each in job.summaries) or "none"
        raise dg.Failure(
            f"summaries: {group.pipeline} has no summary {name!r} (it has: {known})", allow_retries=False
        )
    try:
        merge = Reference.parse(group.summaries[name]).load()
    except NoSuchObject as error:
        raise dg.Failure(f"summaries: {name}: {error}", allow_retries=False) from error
    sink = job.summary_sink(found[0])
    if not read_manifest(state, group.group, sink):
        return {"dagster/row_count": 0}
    partials = read_output(session, state, group.group, sink)
    rows = merge(partials)
    merged = rows.toPandas()
    path = _replace_parquet(merged, summary_file(settings, group.group, name))
    return {
        "dagster/row_count": len(merged),
        "path": dg.MetadataValue.path(path),
        "dagster/uri": path.absolute().as_uri(),
        "dagster/storage_kind": "parquet",
        **column_schema({each.name: each.dataType.simpleString() for each in rows.schema.fields}),
        "first_rows": preview(merged, SHOWN_ROWS),
    }


def _replace_parquet(frame: "pd.DataFrame", path: Path) -> Path:
    """Write ``frame`` as one Parquet file and return its path; a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    frame.to_parquet(staged, index=False)
    staged.replace(path)
    return path


__all__ = ["merge_summary", "summary_asset"]
