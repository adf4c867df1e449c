"""The life of one record: produced, leased, accepted or given up, its dead letter, and where a redrive has put it.

A reader: of the journal (`state.record_history`), the outputs, the failed attempts, the letters, the redrives, the
audit log and Kafka. It stores nothing. What one of them no longer has is an event, `note`, that says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sharequeue.database import Database
from sharequeue.deadletters.record_search import LoggedRecord, RecordSearch
from sharequeue.deadletters.trace_events import (
    TraceEvent,
    delivery_events,
    letter_events,
    origin_of,
    status_events,
    when,
)
from sharequeue.deadletters.traced_letters import TracedRedrive, trace_letter
from sharequeue.domain.errors import UnknownTopicOrPartition
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.state import State
from sharequeue.state.record_facts import RecordFacts
from sharequeue.state.record_history import RecordHistories

MOST_RECORDS_FOLLOWED = 20
"""How many records are traced for one: the record, and those that redrives have made of it."""
_ACTS = {
    "alter_offsets": "offsets reset",
    "delete_offsets": "offsets deleted",
    "delete_group": "group deleted",
    "remove_deleted_topic": "offsets deleted",
    "force_release": "released by hand",
    "force_dead_letter": "given up by hand",
}


@dataclass(frozen=True, slots=True)
class _Wanted:
    topic: str
    partition: int
    offset: int
    groups: tuple[str, ...] | None
    """None for all that have state of the partition."""


class Tracer:
    """Traces records of one state and one Kafka cluster. The role needs the rights of a service."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database, self._state = settings, database, State(database)

    def trace(
        self, topic: str, partition: int, offset: int, groups: Sequence[str] | None = None
    ) -> Iterator[TraceEvent]:
        """Yield the events of a record, group by group, each in its order; then those of the records that redrives
        have made of it.

        Raises UnknownTopicOrPartition if neither the broker nor a group has the partition.
        """
        todo = deque([_Wanted(topic, partition, offset, None if groups is None else tuple(groups))])
        seen = set[tuple[str, int, int]]()
        with RecordSearch(self._settings) as search:
            while todo:
                each = todo.popleft()
                place = each.topic, each.partition, each.offset
                if place in seen:
                    continue
                if len(seen) == MOST_RECORDS_FOLLOWED:
                    yield TraceEvent(*place, "note", detail=f"not followed: {len(seen)} records were traced")
                    return
                seen.add(place)
                for event, redriven in self._record(search, each):
                    yield event
                    todo.extend(redriven)

    def _record(
        self, search: RecordSearch, wanted: _Wanted
    ) -> Iterator[tuple[TraceEvent, Sequence[_Wanted]]]:
        """Yield the events of one record, each with the records that it leads to."""
        place = wanted.topic, wanted.partition, wanted.offset
        logged = search.logged(*place)
        known = RecordFacts.groups(self._database, wanted.topic, wanted.partition)
        if not known and logged.log is None:
            raise UnknownTopicOrPartition(
                f"No share group has state of {wanted.topic}-{wanted.partition}, and {logged.remark}."
            )
        if logged.produced_ms is not None:
            yield TraceEvent(*place, "produced", logged.produced_ms, detail=origin_of(logged)), ()
        if logged.remark:
            yield TraceEvent(*place, "note", detail=logged.remark), ()
        for group in known if wanted.groups is None else wanted.groups:
            at = SharePartition(group, wanted.topic, wanted.partition)
            yield from self._in_group(search, at, wanted, logged)
        if not known and wanted.groups is None:
            yield TraceEvent(*place, "note", detail="no share group has state of the partition"), ()

    def _in_group(
        self, search: RecordSearch, at: SharePartition, wanted: _Wanted, logged: LoggedRecord
    ) -> Iterator[tuple[TraceEvent, Sequence[_Wanted]]]:
        """Yield the events of one record in one group."""
        place = wanted.topic, wanted.partition, wanted.offset
        facts = RecordFacts(self._database, at, wanted.offset)
        history = RecordHistories(self._database).of(at, wanted.offset)
        acts = [
            TraceEvent(*place, _ACTS[act.act], act.happened_at, at.group_id, detail=f"by {act.principal}")
            for act in facts.acts()
        ]
        if history is None:
            for event in acts:
                yield event, ()
            why = "the group has no state of the partition"
            yield TraceEvent(*place, "note", group=at.group_id, detail=why), ()
            return
        letters = [
            trace_letter(search, self._database, at, wanted.offset, batch, self._state.now())
            for batch in facts.letters()
        ]
        events = [*acts, *delivery_events(place, history, facts, letters)]
        for letter in letters:
            events += letter_events(place, at.group_id, letter)
        for publication in facts.publications(history.topic_id):
            what = f"by replay {publication.replay}, of {publication.requested_by}"
            events.append(
                TraceEvent(
                    *place,
                    "published",
                    publication.ended_at,
                    at.group_id,
                    place=publication.sink,
                    detail=what,
                )
            )
        for event in sorted(events, key=when):
            yield event, ()
        for event in status_events(place, history, logged, lambda: self._held(at), has_letters=bool(letters)):
            yield event, ()
        for letter in letters:
            for redrive in letter.redrives:
                yield from _followed(place, at.group_id, redrive, wanted.groups)

    def _held(self, at: SharePartition) -> str | None:
        """Return why the dead letters of a share-partition cannot be written; None if they can, or none wait."""
        found = self._state.dead_letters.held(at.group_id)
        return next((each.reason for each in found if each.share_partition == at), None)


def _followed(
    place: tuple[str, int, int], group: str, redrive: TracedRedrive, groups: tuple[str, ...] | None
) -> Iterator[tuple[TraceEvent, Sequence[_Wanted]]]:
    """Yield a redrive, with the record that it has made."""
    who = f"by {redrive.requested_by}"
    if redrive.partition is None or redrive.offset is None:
        detail = f"{who}, to {redrive.target}: {redrive.remark}"
        yield TraceEvent(*place, "redriven", redrive.sent_at or redrive.opened_at, group, detail=detail), ()
        return
    where = f"{redrive.target}:{redrive.partition}:{redrive.offset}"
    only = groups if redrive.only_group is None else (redrive.only_group,)
    target = _Wanted(redrive.target, redrive.partition, redrive.offset, only)
    yield TraceEvent(*place, "redriven", redrive.sent_at, group, place=where, detail=who), (target,)
