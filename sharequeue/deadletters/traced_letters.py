"""The dead letters of one record: their place in the topic, and where redrives have put the record."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.deadletters.letters import SEQUENCE, DeadLetter
from sharequeue.deadletters.record_search import RecordSearch, SearchedRecord
from sharequeue.deadletters.redrive.batches import UNHANDLED, RedriveBatches
from sharequeue.deadletters.redrive.selection import REDRIVE_BATCH, REDRIVE_FROM
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import GroupConfigs
from sharequeue.state.record_facts import RecordLetter

_REDRIVES = sa.text(
    "select b.sequence, b.redrive_id, b.opened_at, b.sent_at, r.requested_by, r.target_topic, r.only_group, r.by_key,"
    " r.target_logs from sharequeue.redrive_batches b join sharequeue.redrives r using (redrive_id)"
    " where b.dead_letter_topic = :topic and b.topic_id = :topic_id and b.partition = :partition"
    " and b.offsets @> cast(:offset as bigint) order by b.sequence"
)
_DISCARDED = sa.text(
    "select happened_at, principal from sharequeue.audit_log"
    " where (group_id = :group_id or group_id is null) and act = 'discard_letters'"
    " and after @> jsonb_build_object('dead_letter_topic', cast(:topic as text), 'topic_id', cast(:topic_id as text))"
    " and cast(after -> 'offsets' ->> cast(:partition as text) as int8multirange) @> cast(:offset as bigint)"
    " order by audit_id limit 1"
)


@dataclass(frozen=True, slots=True)
class TracedRedrive:
    """A redrive that has sent the record of a letter, or is sending it."""

    redrive_id: str
    requested_by: str
    target: str
    only_group: str | None
    opened_at: datetime
    sent_at: datetime | None
    """None while it is being sent, or if the redrive has died."""
    partition: int | None = None
    offset: int | None = None
    """Where the record is now; None if it was not found."""
    remark: str = ""
    """Why it was not found."""


@dataclass(frozen=True, slots=True)
class TracedLetter:
    """A dead letter with its place, and what was done with it."""

    batch: RecordLetter
    topic: str | None
    """The dead-letter topic of the group, as it is configured now."""
    partition: int | None = None
    offset: int | None = None
    """None while it is not written, or if it was not found."""
    error: str | None = None
    discarded_at: datetime | None = None
    discarded_by: str | None = None
    is_discarded: bool = False
    redrives: tuple[TracedRedrive, ...] = ()
    remark: str = ""
    """Why its place is not known."""


def trace_letter(
    search: RecordSearch,
    database: Database,
    at: SharePartition,
    offset: int,
    batch: RecordLetter,
    until: datetime,
) -> TracedLetter:
    """Return the letter of a record; `until` is the present, by the database's clock.

    Raises nothing of the broker: the remark has the reason.
    """
    topic = GroupConfigs.load(database, at.group_id).dead_letter_topic or None
    if batch.dropped:
        return TracedLetter(batch, topic)
    if topic is None:
        return TracedLetter(batch, None, remark="the group has no dead-letter topic now")

    def is_it(letter: DeadLetter) -> bool:
        return (
            letter.group == at.group_id
            and letter.source_topic == at.topic
            and (letter.source_partition, letter.source_offset) == (at.partition, offset)
            and letter.header(SEQUENCE) == str(batch.sequence)
        )

    found = search.first(topic, is_it, since=batch.opened_at, until=batch.written_at or until)
    if found.letter is None:
        return TracedLetter(batch, topic, remark=found.remark)
    letter = found.letter
    names = {
        "topic": topic,
        "topic_id": found.topic_id,
        "partition": letter.partition,
        "offset": letter.offset,
    }
    handled = RedriveBatches(database, topic, found.topic_id).handled().get(letter.partition, UNHANDLED)
    discards = database.rows(_DISCARDED, **names, group_id=at.group_id)
    is_discarded = letter.offset in handled.discarded
    return TracedLetter(
        batch,
        topic,
        letter.partition,
        letter.offset,
        letter.error,
        discards[0]["happened_at"] if is_discarded and discards else None,
        discards[0]["principal"] if is_discarded and discards else None,
        is_discarded,
        tuple(
            _redrive(search, at, f"{topic}:{letter.partition}:{letter.offset}", row, until)
            for row in database.rows(_REDRIVES, **names)
        ),
    )


def _redrive(
    search: RecordSearch, at: SharePartition, origin: str, row: sa.RowMapping, until: datetime
) -> TracedRedrive:
    """Return a redrive, with the place to which it has sent the letter `origin`."""
    target = row["target_topic"] or at.topic
    identity = f"{row['redrive_id']}:{row['sequence']}"
    log: dict[str, Any] = (row["target_logs"] or {}).get(target, {})
    ends = {int(partition): int(end) for partition, end in log.get("ends", {}).items()}

    def is_it(record: DeadLetter) -> bool:
        return record.header(REDRIVE_FROM) == origin and record.header(REDRIVE_BATCH) == identity

    found = SearchedRecord(remark="it is not sent yet: its redrive is at work, or has died")
    if row["sent_at"] is not None:
        found = search.first(
            target,
            is_it,
            since=row["opened_at"],
            until=row["sent_at"],
            topic_id=log.get("topic_id"),
            # A record goes to the partition from which it came, if the target had it then.
            partition=at.partition if at.partition in ends and not row["by_key"] else None,
            first=ends,
        )
    return TracedRedrive(
        str(row["redrive_id"]),
        row["requested_by"],
        target,
        row["only_group"],
        row["opened_at"],
        row["sent_at"],
        None if found.letter is None else found.letter.partition,
        None if found.letter is None else found.letter.offset,
        found.remark,
    )
