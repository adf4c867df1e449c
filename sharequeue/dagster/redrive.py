"""Redrive dead letters from Dagster.

It is a job of its own, with one op: launch it after the cause is removed, with a config that selects the letters.
The asset `redriven` is external, so that "Materialize all" never starts a redrive. Without `execute` the job only
shows what it would do, as an observation of that asset; letters that were sent are a materialization. It gives the
same guarantees as the command, which `sharequeue.deadletters.redrive` implements: each letter is sent once, even if
others redrive at the same time or a run is killed.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from pydantic import Field

from sharequeue.dagster.resources import SettingsResource, StateResource
from sharequeue.dagster.retries import retried_if_useful
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.tables import table
from sharequeue.deadletters.redrive.redrive import MAX_REDRIVES, MIN_RATE, Redrive, RedrivePlan, RedriveReport
from sharequeue.deadletters.redrive.redriven_letters import refused_by_reason
from sharequeue.deadletters.redrive.selection import RedriveRefused, Selection, parse_header, parse_offsets
from sharequeue.groups.configs import GroupConfigs


class Redriving(dg.Config):
    """The letters, the target, and whether to send them. Without any condition all letters are selected."""

    execute: bool = Field(
        default=False, description="Send the letters; without this the run only shows what it would do."
    )
    cause: str | None = Field(
        default=None, description="Only letters with this cause: rejected or exhausted."
    )
    since: str | None = Field(
        default=None, description="Only letters written at or after this time (ISO 8601; UTC)."
    )
    until: str | None = Field(
        default=None, description="Only letters written before this time (ISO 8601; UTC)."
    )
    source_topic: str | None = Field(default=None, description="Only records of this topic.")
    source_partition: int | None = Field(default=None, ge=0, description="Only records of this partition.")
    header: str | None = Field(default=None, description="Only letters with this header: NAME=VALUE.")
    offsets: list[str] = Field(
        default=[], description="Only at these offsets of the dead-letter topic: PARTITION:FIRST-LAST."
    )
    target: str | None = Field(
        default=None, description="The target topic; default: each record's source topic."
    )
    only_group: bool = Field(
        default=False, description="For this group only: runs of other share groups skip the records."
    )
    by_key: bool = Field(
        default=False,
        description="Choose partitions by the records' keys; otherwise the records return to their own partitions.",
    )
    rate: float | None = Field(
        default=None, ge=MIN_RATE, allow_inf_nan=False, description="Maximum records per second."
    )
    max_redrives: int = Field(
        default=MAX_REDRIVES,
        ge=1,
        description="Records that were sent back this often are not sent back again.",
    )

    def selection(self, group_id: str) -> Selection:
        """Return the selected letters of ``group_id``. Raises ``dg.Failure`` with the field that cannot be read."""
        if self.cause not in (None, "rejected", "exhausted"):
            raise dg.Failure(f"cause: {self.cause!r}: expected rejected or exhausted", allow_retries=False)
        try:
            return Selection(
                cause=self.cause,
                since=_time(self.since),
                until=_time(self.until),
                group=group_id,
                source_topic=self.source_topic,
                source_partition=self.source_partition,
                header=parse_header(self.header) if self.header is not None else None,
                offsets=parse_offsets(self.offsets),
            )
        except ValueError as error:
            raise dg.Failure(f"the redrive's config cannot be read: {error}", allow_retries=False) from error


def redrive_job(group: ShareGroup, asset: dg.AssetKey) -> dg.JobDefinition:
    """Build the job that sends dead letters of `group` back, and records that as events of `asset`."""
    group_id = group.group

    @dg.op(name=f"{group.name}_redriven")
    @retried_if_useful
    def redriven(
        context: dg.OpExecutionContext,
        config: Redriving,
        sharequeue_settings: SettingsResource,
        sharequeue_state: StateResource,
    ) -> None:
        """Dead letters sent back, each once; a dry run unless the config has `execute`."""
        topic = GroupConfigs.load(sharequeue_state.database, group_id).dead_letter_topic
        if not topic:
            raise dg.Failure(f"group {group_id} has no dead-letter topic", allow_retries=False)
        selection = config.selection(group_id)
        try:
            work = Redrive(
                sharequeue_settings.load(),
                sharequeue_state.database,
                topic,
                selection,
                target=config.target,
                only_group=group_id if config.only_group else None,
                rate=config.rate,
                by_key=config.by_key,
                max_redrives=config.max_redrives,
            )
            plan = work.plan()
            report = work.run(plan, context.log.info) if config.execute else None
        except RedriveRefused as error:
            # An immediate retry would not help, and what was sent is recorded.
            raise dg.Failure(str(error), allow_retries=False) from error
        shown = metadata(topic, selection, plan, report)
        for hidden in plan.hidden:
            context.log.warning(str(hidden))
        for reason, letters in refused_by_reason(report.refused if report else ()).items():
            context.log.warning(f"not sent: {', '.join(letters)}: {reason}")
        if report is None:
            context.log.info(f"a dry run: {plan.letters:,} letters would be sent; set execute to send them")
            context.log_event(dg.AssetObservation(asset, metadata=shown))
        else:
            context.log_event(dg.AssetMaterialization(asset, metadata=shown))

    @dg.job(
        name=f"{group.name}_redrive",
        executor_def=group.job.executor_def,
        tags={**group.job.run_tags, **group.run_tags},
        description=f"Sends dead letters of share group {group_id} back; a dry run by default.",
    )
    def job() -> None:
        redriven()

    return job


def metadata(
    topic: str, selection: Selection, plan: RedrivePlan, report: RedriveReport | None
) -> dict[str, Any]:
    """Return what was selected and what was sent, in letters; keys and units are the same for a dry run."""
    return {
        "dead_letter_topic": topic,
        "selection": str(selection),
        "dry_run": report is None,
        "chosen_records": plan.letters,
        "sent_records": report.sent if report else 0,
        "resumed_records": report.resumed if report else 0,
        "gone_records": report.gone if report else plan.gone,
        "without_headers_records": report.without_headers if report else plan.without_headers,
        "refused_records": len(report.refused) if report else 0,
        "refused": refused_by_reason(report.refused) if report else {},
        "hidden": [str(hidden) for hidden in plan.hidden],
        "sent_before_records": plan.sent_before,
        "discarded_records": plan.discarded,
        "held_by_loop_guard_records": plan.looping,
        "published_records": plan.published,
        "freed_keys": (report or plan).freed.keys,
        "freed_records": (report or plan).freed.records,
        "redrive_seconds": round(report.seconds, 3) if report else 0.0,
        "redrive_id": str(report.redrive_id) if report else "",
        "other_groups": sorted({group for groups in plan.other_groups.values() for group in groups}),
        "by_target": _counts("target", plan.targets),
        "by_cause": _counts("cause", plan.causes),
    }


def _counts(name: str, counts: Mapping[str, int]) -> dg.TableMetadataValue:
    return table({name: "string", "letters": "int"}, sorted(counts.items()))


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    given = datetime.fromisoformat(text)
    return given if given.tzinfo else given.replace(tzinfo=UTC)
