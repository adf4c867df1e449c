"""The assets of a pipeline's summaries: the partial sums of all leases that count, merged."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg

from sharequeue.dagster.assets.accepted import cancelled_plainly, pipeline_of
from sharequeue.dagster.assets.drivers import Driver
from sharequeue.dagster.assets.processing import described, needed_by, resources_of
from sharequeue.dagster.io_manager import summaries_root
from sharequeue.dagster.references import NoSuchObject, Reference
from sharequeue.dagster.retries import retried_if_useful
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.tables import column_schema, table
from sharequeue.domain.results.launches import LaunchedSummary
from sharequeue.domain.results.summaries import MergedSummary
from sharequeue.domain.settings import Settings
from sharequeue.state import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def summary_asset(spec: dg.AssetSpec, group: ShareGroup, name: str) -> dg.AssetsDefinition:
    """Build the asset of one summary: one Parquet file, which is replaced as a whole.

    With `run.launch` in the yaml, the driver merges it where a Pipes client starts it.
    """

    @dg.multi_asset(
        specs=[spec],
        name=f"{group.name}_{name}",
        pool=group.op.pool,
        op_tags=group.op.tags,
        required_resource_keys=needed_by(group),
    )
    @partial(retried_if_useful, policy=group.op.retries)
    def summary(context: dg.AssetExecutionContext) -> Any:
        with cancelled_plainly():
            if group.run.launch is not None:
                order = LaunchedSummary(pipeline=described(group), summary=name, merge=group.summaries[name])
                ended = Driver(context, group.run.launch).do(order)
                ended.require(1, context.log, "the file is that of before. The next run merges it again")
                (merged,) = (each for each in ended.answers if isinstance(each, MergedSummary))
                return dg.MaterializeResult(
                    metadata={**ended.metadata, **metadata_of_summary(merged)},
                    check_results=ended.check_results,
                )
            settings, queue, spark = resources_of(context)
            session = spark.session(group.name)
            merged = _merge_here(group, name, settings.load(), queue.state, session)
            return dg.MaterializeResult(metadata=metadata_of_summary(merged))

    return summary


def _merge_here(
    group: ShareGroup, name: str, settings: Settings, state: State, session: "SparkSession"
) -> MergedSummary:
    """Merge the partial sums of a summary into its file, in this process.

    Raises dg.Failure where the pipeline has no such summary, or the function that merges it cannot be loaded.
    """
    from sharequeue.spark.merged_summaries import merge_summary
    from sharequeue.spark.named_pipelines import WrongPipeline

    job = pipeline_of(group)
    try:
        return merge_summary(
            job,
            name,
            merges_of(group, [name])[name],
            root=summaries_root(settings, launched=False),
            output=group.output,
            state=state,
            spark=lambda: session,
        )
    except WrongPipeline as error:
        raise dg.Failure(str(error), allow_retries=False) from error


def merges_of(group: ShareGroup, names: Iterable[str]) -> dict[str, Any]:
    """Import the functions that merge summaries, by name. Raises dg.Failure if one is missing."""
    found = {}
    for name in names:
        try:
            found[name] = Reference.parse(group.summaries[name]).load()
        except NoSuchObject as error:
            raise dg.Failure(f"summaries: {name}: {error}", allow_retries=False) from error
    return found


def metadata_of_summary(merged: MergedSummary) -> Mapping[str, Any]:
    """Return the metadata of a materialization of a summary."""
    if merged.path is None:
        return {"dagster/row_count": 0}
    return {
        "dagster/row_count": merged.rows,
        "path": dg.MetadataValue.path(merged.path),
        "dagster/uri": merged.uri,
        "dagster/storage_kind": "parquet",
        **column_schema(merged.columns),
        "first_rows": table(merged.shown, merged.first_rows),
    }


__all__ = ["merges_of", "metadata_of_summary", "summary_asset"]
