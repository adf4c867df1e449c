"""The lives of records, from the model in memory, and what `RecordHistories` says of the same records.

The model writes down each delivery of a record and the state that ended it. The SQL functions keep no such list:
it is read from their journal. Random records of random histories must have the same life in both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from sharequeue.domain.values import SharePartition
from sharequeue.state.record_history import RecordHistories, RecordHistory
from tests.conformance.history import History
from tests.conformance.tally import Different
from tests.oracle import RecordState
from tests.oracle.records import Record
from tests.oracle.share_partition import InMemorySharePartition

ENDED_AS: dict[str | None, set[RecordState | None]] = {
    "accepted": {RecordState.ACKNOWLEDGED},
    "released": {RecordState.AVAILABLE},
    "lapsed": {RecordState.AVAILABLE},
    "returned": {RecordState.AVAILABLE},
    "rejected": {RecordState.ARCHIVING, RecordState.ARCHIVED},
    "exhausted": {RecordState.ARCHIVING, RecordState.ARCHIVED},
    "gap": {RecordState.ARCHIVED},
    "lost": {RecordState.ARCHIVED, None},
    "overtaken": {RecordState.ARCHIVED, RecordState.ACKNOWLEDGED},
    "reset": {None},
    None: {None},
}
"""The states of the model that a delivery with an outcome may end in; None: the offsets were reset before it ended,
perhaps after retention had removed the record."""
STATUSES = {
    RecordState.AVAILABLE: {"available"},
    RecordState.ACQUIRED: {"acquired"},
    RecordState.ACKNOWLEDGED: {"accepted", "overtaken"},
    RecordState.ARCHIVING: {"archiving"},
    RecordState.ARCHIVED: {"archived", "lost", "overtaken"},
}


@dataclass
class Lived:
    """The records of one share-partition, also those that SPSO has passed, each once for every reset."""

    model: InMemorySharePartition
    records: dict[int, list[Record]] = field(default_factory=dict)
    since_reset: set[int] = field(default_factory=set)
    """The offsets that have a record since the last reset."""


class Lives:
    """The lives of all records of a history."""

    def __init__(self, history: History, histories: RecordHistories) -> None:
        self.history, self.histories = history, histories
        self.found: dict[SharePartition, Lived] = {}
        history.after_calls.append(self.note)

    def note(self) -> None:
        """Remember the records that are there now: the model forgets those that SPSO has passed."""
        there = self.history.there()
        self.found = {at: lived for at, lived in self.found.items() if at in there}
        for at in there:
            model = self.history.memory.share_partition(at)
            lived = self.found.setdefault(at, Lived(model))
            if lived.model is not model:
                if model.state_epoch <= lived.model.state_epoch:
                    lived.records = {}  # it was deleted, and initialised again
                lived.model, lived.since_reset = model, set()
            lived.since_reset |= model.records.keys()
            for offset, record in model.records.items():
                known = lived.records.setdefault(offset, [])
                if not any(record is each for each in known):
                    known.append(record)

    def compare(self, some: int, draw: Random) -> None:
        """Compare so many records of each share-partition; of all if there are no more."""
        for at, lived in self.found.items():
            offsets = sorted(lived.records)
            for offset in draw.sample(offsets, min(some, len(offsets))):
                told = self.histories.of(at, offset)
                assert told is not None
                met = self.history.tally.met
                met["a life with several deliveries"] += len(told.deliveries) > 1
                met["a life across a reset"] += len(lived.records[offset]) > 1
                met.update(f"a delivery that ended: {each.outcome}" for each in told.deliveries)
                met[f"a life that is {told.status}"] += 1
                self._compare_one(told, lived.records[offset], offset in lived.since_reset)

    def _compare_one(self, told: RecordHistory, records: list[Record], is_there: bool) -> None:
        given = [each for record in records for each in record.given]
        traced = [(each.delivery_count, each.outcome) for each in told.deliveries]
        fits = [count for count, _ in traced] == [each.count for each in given] and all(
            each.ended_as in ENDED_AS[outcome] for each, (_, outcome) in zip(given, traced, strict=True)
        )
        last = records[-1]
        if is_there:
            fits = fits and told.status in STATUSES[last.state]
        if not fits or told.since is not None or told.is_cut:
            raise Different(
                f"{told.share_partition} of {told.share_partition.group_id}, offset {told.offset}: in memory"
                f" {[(each.count, each.ended_as) for each in given]}, now {last.state.name};"
                f" traced {traced}, now {told.status}, {told}; the last calls: {self.history.last}"
            )
