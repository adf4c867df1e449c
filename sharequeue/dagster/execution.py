"""How a queue's runs work: the limits of a run, its steps with Spark, and its jobs."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import Field, field_validator, model_validator

from sharequeue.dagster.launching import Launch
from sharequeue.dagster.names import require_no_own_tags
from sharequeue.dagster.references import NoSuchObject, Reference
from sharequeue.dagster.yaml_values import Count, NotNegative, Seconds, duration, lasting


class RunLimits(dg.Model, dg.Resolvable):
    """The limits of one run; the remaining work is left to the next one."""

    max_seconds: Seconds = Field(
        default=600, description="Seconds after which no new round begins; the current one is finished."
    )
    max_records: Count = Field(default=10_000_000, description="Maximum records leased in one round.")
    max_bytes: NotNegative | None = Field(
        default=None,
        description="Maximum bytes leased in one round, 0 for no limit; default: the pipeline's or its group's.",
    )
    deliveries_per_run: Count | None = Field(
        default=None,
        description="How often one run leases a record that it has released; default: the pipeline's value.",
    )
    replaces: str | None = Field(
        default=None,
        description="The pipeline that worked on the group before, if this one replaces it.",
    )
    launch: Launch | None = Field(
        default=None,
        description="A Pipes client that starts the driver elsewhere; default: in the run's process.",
    )

    @field_validator("replaces")
    @classmethod
    def _is_name(cls, name: str | None) -> str | None:
        if name is not None and not name.strip():
            raise ValueError(
                f"replaces is {name!r}: expected the name of a pipeline, such as my_module:orders; leave it out if "
                "this pipeline replaces none"
            )
        return name


class RetryFields(dg.Model, dg.Resolvable):
    """Retries of a step that failed, in the same run, with the fields of Dagster's `RetryPolicy`. Errors that stay
    until somebody changes something, and cancelled runs, are not retried.
    """

    max_retries: Count = Field(default=1, description="Retries of one step.")
    delay: Seconds | None = Field(default=None, description="Seconds before a retry.")
    backoff: Literal["LINEAR", "EXPONENTIAL"] | None = Field(
        default=None, description="How `delay` grows with each retry: `LINEAR` or `EXPONENTIAL`."
    )
    jitter: Literal["FULL", "PLUS_MINUS"] | None = Field(
        default=None, description="How `delay` is changed at random: `FULL` or `PLUS_MINUS`."
    )

    @model_validator(mode="after")
    def _has_delay(self) -> "RetryFields":
        for name, given in (("backoff", self.backoff), ("jitter", self.jitter)):
            if given is not None and self.delay is None:
                raise ValueError(f"retry_policy: {name} changes the delay: set delay, too")
        return self

    @property
    def policy(self) -> dg.RetryPolicy:
        """Dagster's policy."""
        return dg.RetryPolicy(
            self.max_retries,
            self.delay,
            None if self.backoff is None else dg.Backoff[self.backoff],
            None if self.jitter is None else dg.Jitter[self.jitter],
        )


class OpFields(dg.Model, dg.Resolvable):
    """The steps that use Spark: `accepted`, summaries, replays and their publication."""

    pool: str | None = Field(
        default="spark",
        description="Their concurrency pool; the deployment sets its limit. `null`: no pool.",
    )
    tags: Mapping[str, Any] = Field(
        default={},
        description="Their tags, such as `dagster-k8s/config`, which an executor with a process for each step reads.",
    )
    retry_policy: RetryFields | None = Field(
        default=None, description="Retries in the same run; default: only those of the whole run."
    )

    @field_validator("pool")
    @classmethod
    def _is_pool(cls, pool: str | None) -> str | None:
        if pool is not None and not re.fullmatch(r"\S+", pool):
            raise ValueError(f"pool is {pool!r}: expected a name without spaces, or null for no pool")
        return pool

    @property
    def retries(self) -> dg.RetryPolicy | None:
        """The policy of retries in the same run."""
        return None if self.retry_policy is None else self.retry_policy.policy


# In one process the assets of a run share one JVM, and killing the run ends all of its work.
_EXECUTORS: Mapping[str, dg.ExecutorDefinition | None] = {
    "in_process": dg.in_process_executor,
    "multiprocess": dg.multiprocess_executor,
    "location": None,
}


_FIELDS = {"dagster/priority": "priority", "dagster/max_runtime": "max_runtime"}
"""The tags that fields set."""
_OF_DAGSTER = frozenset(
    f"dagster/{name}"
    for name in (
        *(
            "run_key",
            "tick",
            "schedule_name",
            "sensor_name",
            "from_automation_condition",
            "asset_evaluation_id",
        ),
        *("backfill", "parent_backfill_id", "root_backfill_id", "parent_run_id", "root_run_id"),
        *("partition", "partition_set", "asset_partition_range_start", "asset_partition_range_end"),
        *("retry_number", "will_retry", "auto_retry_run_id", "is_resume_retry", "is_asset_resume_retry"),
        *("step_selection", "solid_selection", "code_location", "failure_reason"),
    )
)
"""By these, Dagster finds runs, their partitions and their retries: with a given one, a run is taken for another."""


class JobFields(dg.Model, dg.Resolvable):
    """All jobs of the queue."""

    tags: Mapping[str, Any] = Field(
        default={},
        description="Tags of their runs, such as `dagster-k8s/config`, which a launcher with a process for each run "
        "reads.",
    )
    priority: int | None = Field(
        default=None, description="The priority of their runs in Dagster's queue (`dagster/priority`)."
    )
    max_runtime: Annotated[str, lasting("1s")] | None = Field(
        default=None,
        description="The time after which run monitoring ends a run, such as `6h` (`dagster/max_runtime`); longer "
        "than `run.max_seconds`.",
    )
    executor: str = Field(
        default="in_process",
        description="`in_process`: one process, and one Spark session, for the whole run. `multiprocess`: one for "
        "each step. `location`: the executor of the code location. Or MODULE:NAME of an executor.",
    )

    @field_validator("executor")
    @classmethod
    def _is_executor(cls, named: str) -> str:
        # Dagster also reads the yaml before it has filled in templates.
        if named not in _EXECUTORS and "{{" not in named:
            try:
                Reference.parse(named).check()
            except NoSuchObject as error:
                raise ValueError(
                    f"executor: {error}. Expected MODULE:NAME, or {', '.join(_EXECUTORS)}"
                ) from error
        return named

    @model_validator(mode="after")
    def _has_free_tags(self) -> "JobFields":
        require_no_own_tags(self.tags)
        for tag in self.tags:
            if tag in _FIELDS and getattr(self, _FIELDS[tag]) is not None:
                raise ValueError(f"tags: {tag!r} is set by `{_FIELDS[tag]}` as well: keep one of the two")
            if tag.startswith(".dagster/") or tag in _OF_DAGSTER:
                raise ValueError(f"tags: {tag!r} is a tag that Dagster gives to a run itself: leave it out")
        return self

    @property
    def executor_def(self) -> dg.ExecutorDefinition | None:
        """The executor; None for that of the code location. Raises ValueError if the text names something else."""
        if self.executor in _EXECUTORS:
            return _EXECUTORS[self.executor]
        found = Reference.parse(self.executor).load()
        if not isinstance(found, dg.ExecutorDefinition):
            raise ValueError(
                f"executor: {self.executor} is of type {type(found).__name__}: expected an executor"
            )
        return found

    @property
    def run_tags(self) -> dict[str, Any]:
        """The tags of the runs of each job."""
        of_fields = {
            "dagster/priority": None if self.priority is None else str(self.priority),
            "dagster/max_runtime": None
            if self.max_runtime is None
            else f"{duration(self.max_runtime).total_seconds():.0f}",
        }
        return {**self.tags, **{name: value for name, value in of_fields.items() if value is not None}}
