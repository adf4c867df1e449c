"""The pipeline that a configuration names, such as a `defs.yaml`, with what that configuration says of it.

A name may be that of a plain handler, which then becomes a pipeline. Whoever runs it, Dagster's process or one that
Dagster has launched elsewhere, gets the same pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sharequeue.domain.errors import PipelineError
from sharequeue.spark.pipelines import Pipeline, pipeline
from sharequeue.spark.sinks.kafka.topic import KafkaTopic

__all__ = ["WrongPipeline", "named_pipeline"]


class WrongPipeline(PipelineError):
    """An object is not the pipeline that its configuration describes; the message has both."""


def named_pipeline(
    found: object,
    name: str,
    *,
    group: str,
    topics: Sequence[str],
    output: str,
    destination: Mapping[str, Any] | None = None,
) -> Pipeline:
    """Return the pipeline that `name` is, which was imported as `found`. A plain handler becomes a pipeline with the
    output of this name. `destination` are the arguments of a `KafkaTopic`.

    Raises WrongPipeline if it is not a function, or has another group, other topics or another destination.
    """
    if not isinstance(found, Pipeline):
        if not callable(found) or isinstance(found, type):
            raise WrongPipeline(
                f"pipeline: {name} is of type {type(found).__name__}: expected a function from DataFrame "
                "to DataFrame, or a pipeline made with `@sharequeue.spark.pipeline(…)`"
            )
        found = pipeline(group=group, topics=tuple(topics), sink=output)(found)
    if found.group != group or sorted(found.topics) != sorted(topics):
        raise WrongPipeline(
            f"pipeline: {name} is for group {found.group} and topics {', '.join(found.topics)}, but "
            f"the defs.yaml has group {group} and topics {', '.join(topics)}: make them the same"
        )
    return found if destination is None else _with_destination(found, name, KafkaTopic(**destination))


def _with_destination(job: Pipeline, name: str, topic: KafkaTopic) -> Pipeline:
    """Return the pipeline with the destination of the yaml. Raises WrongPipeline if it has another of its own."""
    if job.destination == topic:
        return job
    if job.destination is not None:
        raise WrongPipeline(
            f"destination: the defs.yaml has topic {topic.topic}, but {name} has another destination of "
            f"its own ({type(job.destination).__name__}): remove one of them, or make them the same"
        )
    return replace(job, destination=topic)
