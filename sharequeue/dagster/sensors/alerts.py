"""What does somebody have to know who does not look at Dagster? Failed runs and failed checks of a share group.

Each failed run that touches the group's assets is sent once, whoever launched it. A check is sent when it begins to
fail, and not again while it keeps failing. What the receiver does not take is sent again at the next tick, for a day;
what it refuses is not. A tick sends for a bounded time, and leaves the rest to the next: one that Dagster ends would
send all of it again. The sensor begins with what happens after its first tick. It reads Dagster's storage alone, so
that it also works while the state is away.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)

from sharequeue.dagster.sensors.at_work import touches
from sharequeue.dagster.sensors.outages import cursor_of, first_line
from sharequeue.dagster.share_group import Alerts, ShareGroup
from sharequeue.dagster.webhook import Delivery, WebhookResource

MOST_RUNS = 50
"""Failed runs that one tick looks at."""
GIVEN_UP_AFTER_SECONDS = 86_400.0
SENDING_SECONDS = 20.0
"""No message is begun after so long in one tick. Dagster ends a tick after 60 s, and then keeps no cursor."""

Message = dict[str, Any]


class _Undelivered(Exception):
    """What comes after waits for the next tick; says why."""


def alerts_sensor(
    group: ShareGroup, given: Alerts, *, assets: Sequence[dg.AssetKey], checks: Sequence[dg.AssetCheckKey]
) -> dg.SensorDefinition:
    """A sensor that sends failures of runs on `assets` and of `checks` to the resource `given.webhook`."""

    @dg.sensor(
        name=f"{group.name}_alerts",
        required_resource_keys={given.webhook},
        minimum_interval_seconds=given.interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if given.enabled else dg.DefaultSensorStatus.STOPPED,
        description=f"Sends failed runs and failed checks of {group.group} to a webhook.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        webhook: WebhookResource = getattr(context.resources, given.webhook)
        kept, sent, began_at = cursor_of(context), 0, time.monotonic()

        def send(message: Message, happened: float) -> None:
            nonlocal sent
            if time.monotonic() - began_at >= SENDING_SECONDS:
                raise _Undelivered("the receiver is slow")
            became = webhook.send(message)
            if became is Delivery.FAILED and time.time() - happened < GIVEN_UP_AFTER_SECONDS:
                raise _Undelivered("the receiver does not answer")
            if became is not Delivery.SENT:
                context.log.warning(f"an alert was not delivered: {message['text']}")
            sent += became is Delivery.SENT

        try:
            _runs(context.instance, group, frozenset(assets), webhook, kept, send)
            _checks(context.instance, group, checks, given, webhook, kept, send)
        except _Undelivered as why:
            said = f"{sent} alerts sent; {why}: the rest is sent with the next tick"
        else:
            said = f"{sent} alerts sent"
        context.update_cursor(json.dumps(kept))
        return dg.SkipReason(said)

    return sensor


def _runs(
    instance: dg.DagsterInstance,
    group: ShareGroup,
    assets: frozenset[dg.AssetKey],
    webhook: WebhookResource,
    kept: dict[str, Any],
    send: Callable[[Message, float], None],
) -> None:
    """Send what failed since the last tick, oldest first; `kept` follows run by run."""
    if "runs" not in kept:
        newest = instance.fetch_run_status_changes(dg.DagsterEventType.RUN_FAILURE, limit=1).records
        kept["runs"] = newest[0].storage_id if newest else 0
        return
    after = dg.RunStatusChangeRecordsFilter(dg.DagsterEventType.RUN_FAILURE, after_storage_id=kept["runs"])
    for record in instance.fetch_run_status_changes(after, limit=MOST_RUNS, ascending=True).records:
        run = instance.get_run_by_id(record.event_log_entry.run_id)
        if run is not None and touches(instance, run, group, assets):
            at = record.event_log_entry.timestamp
            send(_run_message(instance, group, run, at, webhook), at)
        kept["runs"] = record.storage_id


def _run_message(
    instance: dg.DagsterInstance, group: ShareGroup, run: dg.DagsterRun, at: float, webhook: WebhookResource
) -> Message:
    steps, error = [], ""
    found = instance.get_records_for_run(
        run.run_id, of_type={dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
    )
    for record in found.records:
        event = record.event_log_entry.get_dagster_event()
        if event.is_step_failure:
            steps.append(str(event.step_key))
            error = error or _cause(event.step_failure_data.error)
        elif not error:
            error = first_line(event.message or "")
    what = f"run of {run.job_name}" + (f", {', '.join(steps)}" if steps else "")
    return _message(group, "run_failed", what, error, at, run.run_id, webhook)


def _cause(error: Any) -> str:
    """The first line of the error that a step's own error was raised from."""
    while error is not None and error.cause is not None:
        error = error.cause
    return first_line(error.message) if error is not None else ""


def _checks(
    instance: dg.DagsterInstance,
    group: ShareGroup,
    checks: Sequence[dg.AssetCheckKey],
    given: Alerts,
    webhook: WebhookResource,
    kept: dict[str, Any],
    send: Callable[[Message, float], None],
) -> None:
    """Send each check that has begun to fail; `kept` has the last result of each."""
    first = "checks" not in kept
    seen: dict[str, Any] = kept.setdefault("checks", {})
    for name, at, failing, record in _results(_completed(instance, checks)):
        before = seen.get(name, {"at": 0.0, "failing": None})
        if at <= before["at"]:
            continue
        wanted = failing == "ERROR" or (failing == "WARN" and given.warnings)
        if wanted and failing != before["failing"] and not first:
            evaluation = record.evaluation
            said = first_line((evaluation.description if evaluation else None) or "")
            message = _message(group, "check_failed", f"check {name}", said, at, record.run_id, webhook)
            send({**message, "severity": failing}, at)
        seen[name] = {"at": at, "failing": failing}


def _completed(
    instance: dg.DagsterInstance, checks: Sequence[dg.AssetCheckKey]
) -> Iterator[AssetCheckExecutionRecord]:
    """The latest result of each check, also where a later run has planned another, and may never make it."""
    storage = instance.event_log_storage
    for key, record in storage.get_latest_asset_check_execution_by_key(list(checks)).items():
        if record.status is AssetCheckExecutionRecordStatus.PLANNED:
            yield from storage.get_asset_check_execution_history(
                key, limit=1, status=COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
            )
        else:
            yield record


def _results(
    records: Iterable[AssetCheckExecutionRecord],
) -> Iterator[tuple[str, float, str | None, AssetCheckExecutionRecord]]:
    """The name of each check that has a result, when it came, its severity where it failed, and its record."""
    for record in records:
        if record.event is None:
            continue
        failed = record.status is AssetCheckExecutionRecordStatus.FAILED
        severity = record.evaluation.severity.value if failed and record.evaluation else None
        name = f"{record.key.asset_key.to_user_string()}:{record.key.name}"
        yield name, record.event.timestamp, severity, record


def _message(
    group: ShareGroup, kind: str, what: str, error: str, at: float, run_id: str, webhook: WebhookResource
) -> Message:
    """One alert. `text` is what chats show; the rest is for programs."""
    return {
        "text": f"{group.group}: {what} failed" + (f": {error}" if error else ""),
        "kind": kind,
        "group": group.group,
        "what": what,
        "error": error,
        "severity": "ERROR",
        "happened_at": datetime.fromtimestamp(at, UTC).isoformat(),
        "run_id": run_id,
        "run_url": webhook.run_url(run_id),
    }


__all__ = ["alerts_sensor"]
