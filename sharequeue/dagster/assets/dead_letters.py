"""The asset `dead_letters`: what was given up by the time it began is written when it ends, whoever writes it.

Its report has figures from Postgres, and samples of the newest letters from the topic.
"""

from codecs import getincrementaldecoder
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from sharequeue.dagster import reports
from sharequeue.dagster.resources import SettingsResource, StateResource
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.deadletters.letters import DeadLetter
from sharequeue.deadletters.reading import Newest, newest_letters
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.groups.configs import GroupConfigs
from sharequeue.settings import Settings
from sharequeue.state.group_report import read_causes

WRITTEN_UNTIL = "written_until"
"""The metadata key of the time up to which a materialization reports."""
SAMPLES = 5
"""Letters that are shown."""
SAMPLE_BYTES = 200
"""Of a key or a value that is shown."""
_ERROR_CHARACTERS = 500
_SAMPLE_COLUMNS = {
    "dlq_partition": "int",
    "dlq_offset": "int",
    "source_topic": "string",
    "source_partition": "int",
    "source_offset": "int",
    "cause": "string",
    "delivery_count": "int",
    "error": "string",
    "key": "string",
    "value": "string",
}


def dead_letters_asset(spec: dg.AssetSpec, group: ShareGroup) -> dg.AssetsDefinition:
    """The asset of `group`. It drains beside the service, which may write all of it first, and then reports
    everything that was written since its last materialization, by either.
    """

    @dg.multi_asset(specs=[spec], name=f"{group.name}_dead_letters")
    def dead_letters(
        context: dg.AssetExecutionContext, settings: SettingsResource, queue: StateResource
    ) -> Any:
        configs = GroupConfigs.load(queue.database, group.group)
        since = reported_until(context.instance, spec.key)
        loaded = settings.load()
        report = DeadLetterWriter(loaded, queue.state, group.group, configs).drain(progress=context.log.info)
        for held in report.held:
            context.log.warning(
                f"{held.records:,} dead letters of {held.share_partition} are held: {held.reason}"
            )
        written = [
            run
            for run in queue.state.dead_letters.written(group.group)
            if since is None or run.written_at > since
        ]
        until = max((run.written_at for run in written), default=since)
        return dg.MaterializeResult(
            metadata={
                **reports.dead_letters(report, written, read_causes(queue.database, group.group)),
                **samples(loaded, configs.dead_letter_topic, group.group),
                **({} if until is None else {WRITTEN_UNTIL: dg.MetadataValue.timestamp(until)}),
            }
        )

    return dead_letters


def samples(settings: Settings, topic: str, group_id: str) -> dict[str, Any]:
    """The newest letters of a group that its topic has, as a table; and why there are none, where that is known."""
    newest = newest_letters(settings, topic, group_id, SAMPLES) if topic else Newest([], "there is no topic")
    rows = [_sample(letter) for letter in newest.letters]
    columns = [dg.TableColumn(name, kind) for name, kind in _SAMPLE_COLUMNS.items()]
    return {
        "samples": dg.MetadataValue.table(records=rows, schema=dg.TableSchema(columns=columns)),
        **({"samples_remark": newest.remark} if newest.remark else {}),
    }


def _sample(letter: DeadLetter) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "dlq_partition": letter.partition,
            "dlq_offset": letter.offset,
            "source_topic": letter.source_topic,
            "source_partition": letter.source_partition,
            "source_offset": letter.source_offset,
            "cause": letter.cause or (letter.message or "")[:_ERROR_CHARACTERS] or None,
            "delivery_count": letter.delivery_count,
            "error": letter.error and letter.error[:_ERROR_CHARACTERS],
            "key": beginning(letter.key),
            "value": beginning(letter.value),
        }
    )


def beginning(content: bytes | None) -> str | None:
    """The first bytes of a key or a value: as text, or in hexadecimal digits where that is no text."""
    if content is None:
        return None
    first, more = content[:SAMPLE_BYTES], len(content) > SAMPLE_BYTES
    try:
        # The last character may be cut.
        text = getincrementaldecoder("utf-8")().decode(first, final=not more)
    except UnicodeDecodeError:
        text = "\0"
    if not all(character.isprintable() or character in "\t\r\n" for character in text):
        text = f"0x{first.hex()}"
    return f"{text}…" if more else text


def reported_until(instance: dg.DagsterInstance, key: dg.AssetKey) -> datetime | None:
    """The time up to which the last materialization of `key` has reported; None before the first one."""
    event = instance.get_latest_materialization_event(key)
    made = event.asset_materialization if event else None
    value = made.metadata.get(WRITTEN_UNTIL) if made else None
    return datetime.fromtimestamp(value.value, UTC) if isinstance(value, dg.TimestampMetadataValue) else None


__all__ = ["dead_letters_asset", "reported_until"]
