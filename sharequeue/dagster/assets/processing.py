"""What a run of `accepted` has and leaves, wherever its driver is: its bounds, its member, its metadata."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import dagster as dg
from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.dagster import reports
from sharequeue.dagster.columns import lineage_of, schema_of
from sharequeue.dagster.names import LEASES_TAG, MEMBER_TAG, lease_tag_value
from sharequeue.dagster.resources import (
    SETTINGS,
    SPARK,
    STATE,
    SettingsResource,
    SparkResource,
    StateResource,
)
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.tables import OF_RECORDS
from sharequeue.domain.errors import ShareError
from sharequeue.state.journal import Journal

if TYPE_CHECKING:
    from sharequeue.domain.results.runs import FullRun
    from sharequeue.spark.job import RunBounds


class Accepting(dg.Config):
    """The limits of this run. Defaults are in the `defs.yaml`; the remaining work is left to the next run."""

    max_seconds: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds after which no new round begins; the current one is finished.",
    )
    max_rounds: int | None = Field(
        default=None, ge=1, description="Maximum number of rounds of lease, read, write and acknowledge."
    )
    max_records: int | None = Field(default=None, ge=1, description="Maximum records leased in one round.")
    max_bytes: int | None = Field(
        default=None, ge=0, description="Maximum bytes leased in one round; 0 for no limit."
    )
    deliveries_per_run: int | None = Field(
        default=None, ge=1, description="How often this run leases a record that it has released."
    )


def needed_by(group: ShareGroup) -> set[str]:
    """Return the keys of the resources of the steps that use Spark, or launch it."""
    launch = group.run.launch
    return {SETTINGS, STATE, SPARK} | (set() if launch is None else {launch.client})


def resources_of(context: Any) -> tuple[SettingsResource, StateResource, SparkResource]:
    """Return our resources of such a step."""
    settings, state, spark = (getattr(context.resources, key) for key in (SETTINGS, STATE, SPARK))
    return settings, state, spark


@dataclass(frozen=True, slots=True)
class Processing:
    """The argument of `ShareGroupComponent.execute`: a run of `accepted`, and the resources that it may need."""

    context: dg.AssetExecutionContext
    group: ShareGroup
    bounds: Accepting
    settings: SettingsResource
    queue: StateResource
    spark: SparkResource

    @property
    def deliveries_per_run(self) -> int | None:
        """How often the run leases a record that it has released; None: as the pipeline says."""
        return self.bounds.deliveries_per_run or self.group.run.deliveries_per_run

    @property
    def run_bounds(self) -> "RunBounds":
        """The bounds of the run: those of its config, or else of the yaml."""
        bounds, limits = self.bounds, self.group.run
        return {
            "max_seconds": bounds.max_seconds or limits.max_seconds,
            "max_rounds": bounds.max_rounds,
            "max_records": bounds.max_records or limits.max_records,
            "max_bytes": limits.max_bytes if bounds.max_bytes is None else bounds.max_bytes,
            "replaces": limits.replaces,
        }


def described(group: ShareGroup) -> dict[str, Any]:
    """Return what `named_pipeline` needs to know of the pipeline of a group, as JSON has it."""
    to = group.destination
    return {
        "name": group.pipeline,
        "group": group.group,
        "topics": list(group.topics),
        "output": group.output,
        "destination": None if to is None else to.kafka_topic.model_dump(),
    }


@dataclass(frozen=True, slots=True)
class RunMember:
    """The member of a run."""

    run: Processing
    member_id: str
    since: datetime
    """When it began, by the clock of the state."""

    def leases(self) -> list[int]:
        """Return the ids of its leases. They are in the journal, also if the run fails and has no report."""
        journal = Journal(self.run.queue.database)
        return journal.leases_of(self.run.group.group, self.member_id, self.since)


@contextmanager
def member_of(run: Processing) -> Iterator[RunMember]:
    """Yield the member of a run, which the run's tags name; at the end of the block, they name its leases, too."""
    instance, run_id = run.context.instance, run.context.run.run_id
    member = RunMember(run, str(uuid4()), run.queue.state.now())
    instance.add_run_tags(run_id, {MEMBER_TAG: member.member_id})
    try:
        yield member
    finally:
        with suppress(SQLAlchemyError, ShareError):
            if leases := member.leases():
                instance.add_run_tags(run_id, {LEASES_TAG: lease_tag_value(leases)})


def metadata_of(done: "FullRun", member: RunMember) -> dict[str, Any]:
    """Return the metadata of a materialization of `accepted` by a run."""
    group, state, stored = member.run.group, member.run.queue.state, done.stored
    terms = {"uri": stored.uri, "table_name": stored.table, "storage_kind": stored.kind}
    return {
        "dagster/row_count": sum(row.records for row in state.outputs.counted(group.group, done.sink)),
        **({} if done.path is None else {"path": dg.MetadataValue.path(done.path)}),
        **{f"dagster/{name}": term for name, term in terms.items() if term is not None},
        **schema_of(done.columns, {**OF_RECORDS, **done.comments}, group.columns),
        **lineage_of(group.columns, done.sources, [*map(group.topic_key, group.topics)]),
        "member": member.member_id,
        **reports.run(done.report, state.figures.describe(group.group)),
        "swept_leases": done.swept_leases,
        "swept_records": done.swept_records,
        "removed_folders": done.removed_folders,
    }


__all__ = [
    "Accepting",
    "Processing",
    "RunMember",
    "described",
    "member_of",
    "metadata_of",
    "needed_by",
    "resources_of",
]
