"""Help for a project's tests: load a share group as Dagster does, with everything that its `defs.yaml` names."""

from os import PathLike
from pathlib import Path

import dagster as dg

from sharequeue.dagster.assets.accepted import pipeline_of
from sharequeue.dagster.component import ShareGroupComponent
from sharequeue.dagster.references import NoSuchObject, Reference


def load_share_group(project: str | PathLike[str], queue: str) -> ShareGroupComponent:
    """Load the component in `defs/<queue>` of a project, import its pipeline and summaries, and compare them with it.

    `project` is the folder of `pyproject.toml`. Raises Dagster's error for an invalid `defs.yaml`, and
    AssertionError if the pipeline is missing or for another group or other topics, or a summary is not the
    pipeline's.
    """
    component = dg.ComponentTree.for_project(Path(project)).load_component(Path(queue), ShareGroupComponent)
    try:
        job = pipeline_of(component)
        for merge in component.summaries.values():
            Reference.parse(merge).load()
    except (dg.Failure, NoSuchObject) as error:
        raise AssertionError(f"{queue}: {getattr(error, 'description', None) or error}") from error
    unknown = set(component.summaries) - {summary.name for summary in job.summaries}
    if unknown:
        known = ", ".join(summary.name for summary in job.summaries) or "none"
        raise AssertionError(
            f"{queue}: {component.pipeline} has no summary {sorted(unknown)[0]!r} (it has: {known})"
        )
    return component


__all__ = ["load_share_group"]
