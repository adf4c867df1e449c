"""The history of one record in one share group: its deliveries, and what became of it.

Read from the journal, which has every change of the state (`journal_search` finds the rows). Nothing is stored for
it. What the journal does not have any more, because its days were dropped, is not guessed: `RecordHistory.since`
says from when on it is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.values import SharePartition
from sharequeue.state.journal_search import JournalPosition, JournalSearch, JournalSpan
from sharequeue.state.record_places import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVING,
    AVAILABLE,
    RecordPlace,
    RecordWalk,
)
from sharequeue.state.rows import share_partition_name

_STATUSES = ("available", "acquired", "accepted", "archiving", "archived")
_FINISHED = frozenset(("accepted", "archived", "lost", "overtaken", "no record"))

# Small tables would be read whole, and large ones by the index of ages: a lookup must not depend on what the planner
# knows of the journal.
_AS_ONE_LOOK = sa.text(
    "set transaction isolation level repeatable read, read only;"
    " set local enable_seqscan = off; set local enable_bitmapscan = off"
)
_FOUND = sa.text(
    "select share_partition_id, topic_id, spso, speo from sharequeue.share_partitions"
    " where group_id = :group_id and topic = :topic and partition = :partition"
)


@dataclass(frozen=True, slots=True)
class RecordDelivery:
    """One delivery of a record: under one lease, also if only its part of the lease was renewed."""

    lease_id: int
    """The outputs of the delivery are under this id."""
    member_id: str | None
    """None where the journal no longer has the lease."""
    delivery_count: int
    acquired_at: datetime | None
    expires_at: datetime | None
    """When its lock ends, or would have ended."""
    ended_at: datetime | None = None
    outcome: str | None = None
    """``accepted``, ``released``, ``lapsed`` (its lock ended), ``returned`` (the delivery was given back and does not
    count), ``rejected``, ``exhausted``, ``gap``, ``lost`` (retention removed the record), ``overtaken`` (the same,
    and the holder has accepted this record or others of that kind), ``reset`` (the offsets were reset); None while
    it lasts."""
    not_before: datetime | None = None
    """When the next delivery may begin."""


@dataclass(frozen=True, slots=True)
class RecordHistory:
    """What is known of one record of a share-partition."""

    share_partition: SharePartition
    offset: int
    topic_id: str
    """The id of the topic whose offsets the group has now."""
    spso: int
    speo: int
    status: str
    """``not leased`` yet, ``available`` again, ``acquired``, ``accepted``, ``archiving`` (its dead letter is being
    written), ``archived``, ``lost`` to retention, ``overtaken`` by it, ``no record`` (SPSO passed the offset without
    a lease), ``skipped`` (the group began, or was reset to, a later offset), ``reset`` (in flight when the offsets
    were reset) or ``not known`` (finished before the journal begins)."""
    cause: str | None = None
    """Why it is archiving or archived: ``rejected``, ``exhausted`` or ``gap``."""
    status_at: datetime | None = None
    deliveries: tuple[RecordDelivery, ...] = ()
    resets: tuple[datetime, ...] = ()
    """When the offsets were reset after the record was in flight."""
    since: datetime | None = None
    """The journal is complete from then on; None if it has everything since the record was first leased."""
    is_cut: bool = False
    """Whether the record is in flight for so long that not all of its journal was read."""


class RecordHistories:
    """The histories of records. The role needs the rights of a service: it reads the journal's tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, at: SharePartition, offset: int) -> RecordHistory | None:
        """Return the history of one offset; None if the group has no state of the share-partition.

        The cost grows with the changes of the share-partition while the record was in flight, and not with the rest
        of the journal.
        """
        with self._database.transaction() as connection:
            connection.execute(_AS_ONE_LOOK)
            found = connection.execute(_FOUND, share_partition_name(at)).mappings().one_or_none()
            if found is None:
                return None
            head = {"topic_id": found["topic_id"], "spso": found["spso"], "speo": found["speo"]}
            search = JournalSearch(connection, found["share_partition_id"])
            start = search.start()
            if start is None:
                return RecordHistory(at, offset, **head, status="not known")
            spans, is_all = search.spans(start)
            lives = [_life(search, span, offset) for span in spans]
        begins = spans[0].first
        is_whole = (is_all and begins.kind == "initialized") or begins.speo <= offset
        since = None if is_whole else begins.at
        return _joined(RecordHistory(at, offset, **head, status="not known", since=since), spans, lives)


@dataclass(frozen=True, slots=True)
class _Life:
    """What became of an offset between two resets."""

    status: str
    cause: str | None = None
    at: datetime | None = None
    deliveries: tuple[RecordDelivery, ...] = ()
    is_cut: bool = False


def _life(search: JournalSearch, span: JournalSpan, offset: int) -> _Life:
    """Return what became of an offset in a span."""
    after = search.birth(span, offset)
    if after is None:
        return _Life("not leased")
    passed = search.first(span, lambda row: row.spso > offset)
    walk, until, known = RecordWalk(), after, set[int]()
    for rows, reached in search.pieces(span, after, offset, known):
        walk.take(rows)
        known |= walk.known
        until = reached
        if walk.is_finished or (passed is not None and reached >= passed.journal_id and walk.current is None):
            break
    if not walk.stays:
        return _never_leased(search, span, passed)
    outcome = _outcome_at_end(search, walk, passed)
    lease_ids = {stay.place.lease_id for stay in walk.stays if stay.place.lease_id is not None}
    deliveries = _deliveries(walk, search.leases(after, until, lease_ids), outcome)
    is_cut = walk.current is not None and not walk.is_finished and until < span.end - 1
    last = walk.stays[-1]
    at = last.since if walk.left_at is None or walk.is_finished else walk.left_at[1]
    return _Life(outcome or _STATUSES[last.place.state], last.place.cause, at, deliveries, is_cut)


def _never_leased(search: JournalSearch, span: JournalSpan, passed: JournalPosition | None) -> _Life:
    """Return why an offset below SPEO has no rows."""
    if passed is None:
        return _Life("not leased")
    if passed.journal_id == span.first.journal_id:
        return _Life("not known" if passed.kind == "snapshot" else "skipped", at=passed.at)
    before = search.previous(passed.journal_id)
    is_lost = before is not None and passed.lost_records > before.lost_records
    return _Life("lost" if is_lost else "no record", at=passed.at)


def _outcome_at_end(search: JournalSearch, walk: RecordWalk, passed: JournalPosition | None) -> str | None:
    """Return what became of a record that has left its last place without another one; None if it has not."""
    if walk.left_at is None or walk.is_finished:
        return None
    if passed is None:
        return "reset"
    state = walk.stays[-1].place.state
    if state == ARCHIVING:
        return "archived"
    before = search.previous(passed.journal_id)
    if before is None or passed.lost_records <= before.lost_records:
        # An acknowledgement of all records at SPSO removes them at once.
        return "accepted" if state == ACQUIRED else "no record"
    if state == ACQUIRED:
        # What its holder has accepted no longer counts as lost. The journal has their number, and not their offsets.
        after, before = search.next(walk.left_at[0]), search.previous(walk.left_at[0])
        if after is not None and before is not None and after.lost_records < before.lost_records:
            return "overtaken"
    return "lost"


def _deliveries(
    walk: RecordWalk, leases: Sequence[Mapping[Any, Any]], outcome: str | None
) -> tuple[RecordDelivery, ...]:
    """Return the deliveries of a record; `outcome` is that of the last one if it has left its last place."""
    found: list[tuple[RecordDelivery, object]] = []
    for stay in walk.stays:
        if stay.place.state != ACQUIRED:
            continue
        ended = stay.ended or (walk.left_at if outcome is not None else None)
        images = [
            row
            for row in leases
            if row["lease_id"] == stay.place.lease_id and (ended is None or row["journal_id"] <= ended[0])
        ]
        lease: Mapping[Any, Any] = images[-1] if images else {}
        token, lease_id, count = lease.get("token"), stay.place.lease_id or 0, stay.place.delivery_count
        if found and token is not None and found[-1][1] == token and found[-1][0].ended_at is None:
            # A part of the lease was renewed alone: it has the same token, and another id. Or the circuit breaker
            # has given the delivery of a probe back.
            before, _ = found.pop()
            lease_id, count = before.lease_id, before.delivery_count
        delivery = RecordDelivery(
            lease_id,
            lease.get("member_id"),
            count,
            lease.get("acquired_at"),
            lease.get("expires_at"),
        )
        if ended is not None and (stay.next is None or stay.next.state != ACQUIRED):
            delivery = replace(
                delivery,
                ended_at=ended[1],
                outcome=outcome if stay.next is None else _outcome(delivery, stay.next, ended[1]),
                not_before=None if stay.next is None else stay.next.not_before,
            )
        found.append((delivery, token))
    return tuple(delivery for delivery, _ in found)


def _outcome(delivery: RecordDelivery, after: RecordPlace, ended_at: datetime) -> str:
    """Return how a delivery has ended, by the place of its record afterwards."""
    if after.state == ACKNOWLEDGED:
        return "accepted"
    if after.state != AVAILABLE:
        return after.cause or "archived"
    if after.delivery_count < delivery.delivery_count:
        return "returned"
    has_lapsed = delivery.expires_at is not None and delivery.expires_at <= ended_at
    return "lapsed" if has_lapsed else "released"


def _joined(found: RecordHistory, spans: Sequence[JournalSpan], lives: Sequence[_Life]) -> RecordHistory:
    """Return a history from what became of the record before and after each reset."""
    last = lives[-1]
    if last.status == "skipped":
        # A reset to a later offset leaves a finished record finished.
        last = next((life for life in reversed(lives[:-1]) if life.status in _FINISHED), last)
    return replace(
        found,
        status=last.status,
        cause=last.cause,
        status_at=last.at,
        deliveries=tuple(delivery for life in lives for delivery in life.deliveries),
        resets=tuple(span.first.at for span in spans[1:]),
        is_cut=any(life.is_cut for life in lives),
    )
