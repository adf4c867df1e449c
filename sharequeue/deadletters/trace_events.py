"""The events in the life of one record, made of what the state and Kafka have of it. `tracing` puts them together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from sharequeue.deadletters.attempts import error_at
from sharequeue.deadletters.record_search import LoggedRecord
from sharequeue.deadletters.traced_letters import TracedLetter
from sharequeue.outputs.manifest import ELSEWHERE, PENDING
from sharequeue.state.record_facts import RecordAttempt, RecordFacts, RecordOutput
from sharequeue.state.record_history import RecordHistory

_WITHOUT_ERROR = ("accepted", "gap", "lost", "overtaken", "reset")
_STATUSES = {
    "lost": "retention removed the record before it was processed",
    "overtaken": "retention removed the record while it was leased",
    "no record": "progress passed the offset: no record was at it",
    "skipped": "the group began, or was reset to, a later offset",
    "reset": "it was in flight when the offsets were reset",
    "accepted": "its delivery is no longer known",
    "archived": "its delivery is no longer known",
    "not known": "it was finished before the journal begins",
}
_SHOWN_BY = {
    "accepted": {"accepted"},
    "archived": {"rejected", "exhausted", "gap", "archived"},
    "lost": {"lost"},
    "overtaken": {"overtaken"},
}
"""The outcomes of a last delivery that show a status already."""


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event in the life of a record."""

    topic: str
    partition: int
    offset: int
    event: str
    """``produced``, ``leased``, an outcome of `RecordDelivery`, ``failed`` (the journal no longer says how),
    ``output``, ``published``, ``letter``, ``redriven``, ``discarded``, an operator's act, a status of
    `RecordHistory`, or ``note``."""
    at: datetime | int | None = None
    """When; milliseconds since 1970 for a time of Kafka. None if it has no time, or is not over."""
    group: str | None = None
    delivery: int | None = None
    """The delivery count."""
    lease: int | None = None
    member: str | None = None
    run: str | None = None
    """The client id of the member: of Dagster's runs `dagster-run-` and the run's id. None if it is not known."""
    place: str | None = None
    """Where: an output's location, or topic, partition and offset, joined by colons."""
    detail: str | None = None


def origin_of(logged: LoggedRecord) -> str | None:
    """Return what the headers of a record say of its origin."""
    parts = [f"redriven from {logged.redriven_from}"] if logged.redriven_from else []
    parts += [f"traceparent {logged.traceparent}"] if logged.traceparent else []
    return ", ".join(parts) or None


def status_events(
    place: tuple[str, int, int],
    history: RecordHistory,
    logged: LoggedRecord,
    held: Callable[[], str | None],
    *,
    has_letters: bool,
) -> Iterator[TraceEvent]:
    """Yield where the record is now, if its last event does not show it, and what is not known of it.

    `held` returns why the dead letters of the share-partition cannot be written.
    """
    group, told = history.share_partition.group_id, _present(history, logged)
    if history.status == "archiving" and not has_letters:
        reason = held()
        told = f"its dead letter is held: {reason}" if reason else "its dead letter waits to be written"
    if told is not None:
        yield TraceEvent(*place, history.status, history.status_at, group, detail=told)
    for note in notes_of(history, logged):
        yield TraceEvent(*place, "note", group=group, detail=note)


def _present(history: RecordHistory, logged: LoggedRecord) -> str | None:
    """Return where the record is now; None if its last event, or what Kafka has of it, shows that."""
    status, log = history.status, logged.log if logged.topic_id == history.topic_id else None
    last = history.deliveries[-1] if history.deliveries else None
    if log is not None and history.offset < log.log_start and status in ("available", "not leased"):
        return (
            "retention has removed the record: the group counts it as lost when it next reads the log's start"
        )
    if status == "not leased":
        if logged.log is not None and history.offset >= logged.log.log_end:
            return None
        since = f" since the offsets were reset at {_utc(history.resets[-1])}" if history.resets else ""
        return f"the group has leased no offset from {history.speo} on{since}"
    if status == "available":
        until = None if last is None else last.not_before
        return "it is delivered again" + (f", not before {_utc(until)}" if until else "")
    if status == "acquired":
        until = None if last is None else last.expires_at
        return f"its lock ends at {_utc(until)}" if until else "it is leased"
    if last is not None and last.outcome in _SHOWN_BY.get(status, ()):
        return None
    if status == "archived" and last is not None:
        return f"it was given up: {history.cause}"
    return _STATUSES.get(status)


def _utc(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def notes_of(history: RecordHistory, logged: LoggedRecord) -> Iterator[str]:
    """Yield what is not known of a record, and why."""
    if logged.topic_id is not None and logged.topic_id != history.topic_id:
        yield (
            f"the group has state of the topic with id {history.topic_id}, and the broker's topic has id "
            f"{logged.topic_id}: it was created again, so this is another record than the broker's"
        )
    if history.since is not None:
        yield f"the journal begins at {_utc(history.since)}: earlier events are not known"
    if history.is_cut:
        yield "the record is in flight for so long that not all of its journal was read"


def delivery_events(
    place: tuple[str, int, int], history: RecordHistory, facts: RecordFacts, letters: Collection[TracedLetter]
) -> Iterator[TraceEvent]:
    """Yield the deliveries of a record: the lease, the outcome, and the outputs of the lease."""
    group = history.share_partition.group_id
    attempts = {each.lease_id: each for each in facts.attempts()}
    deliveries = history.deliveries
    outputs: dict[int, list[RecordOutput]] = {}
    for output in facts.outputs({each.lease_id for each in deliveries} | attempts.keys()):
        outputs.setdefault(output.lease_id, []).append(output)
    clients = facts.clients({each.member_id for each in deliveries if each.member_id})
    clients |= {each.member_id: each.client_id for each in attempts.values() if each.client_id}
    known = {each.lease_id for each in deliveries}
    for attempt in attempts.values():
        if attempt.lease_id not in known and history.since is not None:
            error = _error(attempt, outputs.get(attempt.lease_id, []), place[2])
            failed = TraceEvent(
                *place, "failed", attempt.acquired_at, group, lease=attempt.lease_id, detail=error
            )
            yield replace(failed, member=attempt.member_id, run=attempt.client_id or None)
    last_error = next((each.error for each in reversed(tuple(letters)) if each.error), None)
    for delivery in deliveries:
        run, member = clients.get(delivery.member_id or "") or None, delivery.member_id
        leased = TraceEvent(*place, "leased", delivery.acquired_at, group, delivery.delivery_count)
        leased = replace(leased, lease=delivery.lease_id, member=member, run=run, detail=run or member)
        yield leased
        own = outputs.get(delivery.lease_id, [])
        if delivery.outcome is not None:
            error = None
            if delivery.outcome not in _WITHOUT_ERROR:
                error = _error(attempts.get(delivery.lease_id), own, place[2])
                if error is None and delivery is deliveries[-1]:
                    error = last_error
            yield replace(leased, event=delivery.outcome, at=delivery.ended_at, detail=error)
        if delivery.outcome in ("accepted", "overtaken"):
            for output in own:
                if not output.sink.endswith("-exceptions"):
                    yield _output(replace(leased, at=delivery.ended_at), output)


def _error(attempt: RecordAttempt | None, outputs: Collection[RecordOutput], offset: int) -> str | None:
    """Return the error of a failed delivery: why its lease ended, else what its run has stored."""
    if attempt is not None and attempt.reason is not None:
        return attempt.reason
    stored = next((each.location for each in outputs if each.sink.endswith("-exceptions")), None)
    return None if stored is None else error_at(stored, offset)


def _output(accepted: TraceEvent, output: RecordOutput) -> TraceEvent:
    """Return where the rows of an accepted record are, as far as the state knows."""
    where, what = output.location, f"of sink {output.sink}"
    if where.startswith(PENDING):
        where, what = where.removeprefix(PENDING), f"{what}: waits for its table or topic"
    elif where.startswith(ELSEWHERE):
        where = where.removeprefix(ELSEWHERE)
    return replace(accepted, event="output", place=where, detail=what)


def letter_events(place: tuple[str, int, int], group: str, letter: TracedLetter) -> Iterator[TraceEvent]:
    """Yield what became of a dead letter; redrives are apart."""
    batch = letter.batch
    where = None if letter.offset is None else f"{letter.topic}:{letter.partition}:{letter.offset}"
    what = f"{batch.cause}: {letter.error}" if letter.error else batch.cause
    if batch.dropped:
        what = f"{batch.cause}; dropped: it could not be written, and the group's config drops such letters"
    elif batch.written_at is None:
        what = f"{batch.cause}; batch {batch.sequence} is being written"
    elif letter.remark:
        what = f"{batch.cause}; its place is not known: {letter.remark}"
    at = batch.written_at or batch.opened_at
    yield TraceEvent(*place, "letter", at, group, batch.delivery_count, place=where, detail=what)
    if letter.is_discarded:
        who = f"by {letter.discarded_by}" if letter.discarded_by else None
        yield TraceEvent(*place, "discarded", letter.discarded_at, group, place=where, detail=who)


def when(event: TraceEvent) -> float:
    """Return the place of an event in the order of its group; what has no time is last."""
    return event.at.timestamp() if isinstance(event.at, datetime) else float("inf")
