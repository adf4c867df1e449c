"""The asset `dead_letters`: it ends when all dead letters from before its start are written, by it or by others.

Its report has figures from Postgres, and samples of the newest letters in the topic. It also records the offsets of
the group's topics: of the source topics from Postgres, of the dead-letter topic from the broker.
"""

from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from confluent_kafka import KafkaException

from sharequeue.dagster import reports
from sharequeue.dagster.names import SUITE_STEP
from sharequeue.dagster.quality.context import imported_ahead
from sharequeue.dagster.resources import SettingsResource, StateResource
from sharequeue.dagster.retries import retried_if_useful
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.tables import table
from sharequeue.dagster.topics import observation, observed_topics
from sharequeue.deadletters.browsing import Browsed, browse
from sharequeue.deadletters.letters import DeadLetter
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.domain.errors import ShareError
from sharequeue.domain.record_bytes import text_of
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.topics import Topics
from sharequeue.reports.read import read_causes
from sharequeue.state import State

WRITTEN_UNTIL = "written_until"
"""The metadata key of the time up to which a materialization reports."""
SAMPLES = 5
"""The number of letters in the sample."""
SAMPLE_BYTES = 200
"""The number of bytes of a key or value in the sample."""
_ERROR_CHARACTERS = 500
_BROKER_SECONDS = 5.0
"""How long the broker may take for each request about the topic's offsets."""
_SAMPLE_COLUMNS = {
    "letter": "string",
    "record": "string",
    "cause": "string",
    "delivery_count": "int",
    "error": "string",
    "key": "string",
    "value": "string",
    "trace": "string",
}


def dead_letters_asset(spec: dg.AssetSpec, group: ShareGroup) -> dg.AssetsDefinition:
    """Build the asset of the dead letters of `group`.

    It writes together with the service, which may write all of them first, and then reports everything that either
    of them has written since its last materialization.
    """

    @dg.multi_asset(specs=[spec], name=f"{group.name}_dead_letters")
    @retried_if_useful
    def dead_letters(
        context: dg.AssetExecutionContext,
        sharequeue_settings: SettingsResource,
        sharequeue_state: StateResource,
    ) -> Any:
        configs = GroupConfigs.load(sharequeue_state.database, group.group)
        state = sharequeue_state.state
        since = reported_until(context.instance, spec.key, state.now())
        loaded = sharequeue_settings.load()
        is_to_check = checks_in_one_process(context.job_def, group.name) and letters_wait(state, group.group)
        with imported_ahead() if is_to_check else nullcontext():
            report = DeadLetterWriter(loaded, state, group.group, configs).write(progress=context.log.info)
        for held in report.held:
            context.log.warning(
                f"{held.records:,} dead letters of {held.share_partition} are held: {held.reason}"
            )
        archived, now = state.dead_letters.written(group.group), state.now()
        # What is in the future was reported before the database's clock was set back.
        new = [run for run in archived if since is None or since < run.written_at <= now]
        until = max((run.written_at for run in new if run.written_at <= now), default=since)
        for observed in (
            *observed_topics(group, state.figures.describe(group.group)),
            *observed_now(group, loaded, configs.dead_letter_topic),
        ):
            context.log_event(observed)
        causes = read_causes(sharequeue_state.database, group.group)
        return dg.MaterializeResult(
            metadata={
                **reports.dead_letters(report, archived, new, causes),
                **samples(loaded, configs.dead_letter_topic, group.group),
                **({} if until is None else {WRITTEN_UNTIL: dg.MetadataValue.timestamp(until)}),
            }
        )

    return dead_letters


def checks_in_one_process(job: dg.JobDefinition, name: str) -> bool:
    """Return whether a job checks the letters of the queue of this name, in the process that writes them."""
    return job.executor_def.name == "in_process" and job.has_node_named(f"{name}{SUITE_STEP}")


def letters_wait(state: State, group_id: str) -> bool:
    """Return whether dead letters of a group are to be written: otherwise there is nothing to wait for."""
    return any(status.archiving for status in state.figures.describe(group_id))


def observed_now(group: ShareGroup, settings: Settings, topic: str) -> list[dg.AssetObservation]:
    """Return the observation of a topic, read from the broker; none if it cannot be read."""
    try:
        with Topics(settings, timeout=_BROKER_SECONDS) as topics:
            found = topics.describe([topic]) if topic else {}
            logs = topics.offsets(topic) if found else {}
    except (KafkaException, ShareError):
        return []
    ends = {partition: (log.log_start, log.log_end) for partition, log in logs.items()}
    return [observation(group.topic_key(topic), ends)] if ends else []


def samples(settings: Settings, topic: str, group_id: str) -> dict[str, Any]:
    """Return the newest letters of a group in its topic as a table, or why there are none, if known."""
    if topic:
        newest = browse(settings, topic, lambda letter: letter.group == group_id, most=SAMPLES)
    else:
        newest = Browsed(remark="the topic does not exist")
    letters = (seen.letter for seen in newest.letters)
    return {
        "samples": table(_SAMPLE_COLUMNS, map(_sample, letters)),
        **({"samples_remark": newest.remark} if newest.remark else {}),
    }


def _sample(letter: DeadLetter) -> tuple[int | str | None, ...]:
    return (
        f"{letter.partition}:{letter.offset}",
        f"{letter.source_topic}-{letter.source_partition}@{letter.source_offset}",
        letter.cause or (letter.message or "")[:_ERROR_CHARACTERS] or None,
        letter.delivery_count,
        letter.error and letter.error[:_ERROR_CHARACTERS],
        text_of(letter.key, most=SAMPLE_BYTES),
        text_of(letter.value, most=SAMPLE_BYTES),
        letter.trace_command,
    )


def reported_until(instance: dg.DagsterInstance, key: dg.AssetKey, now: datetime) -> datetime | None:
    """Return the time up to which the last materialization of `key` has reported; None without one.

    None also for a time after `now`, the time by the database's clock, which was set back since then: letters that
    are written now would count as reported.
    """
    event = instance.get_latest_materialization_event(key)
    made = event.asset_materialization if event else None
    value = made.metadata.get(WRITTEN_UNTIL) if made else None
    if not isinstance(value, dg.TimestampMetadataValue):
        return None
    until = datetime.fromtimestamp(value.value, UTC)
    return until if until <= now else None


__all__ = ["dead_letters_asset", "reported_until"]
