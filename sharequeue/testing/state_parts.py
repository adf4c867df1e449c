"""How do the parts of ``sharequeue.state.State`` work without a database?

As there: administration, outputs, dead letters, figures, each with the methods of its namesake in
``sharequeue.state`` as far as they need no database.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sharequeue.errors import InvalidRecordState, InvalidRequest, UnknownTopicId
from sharequeue.offsets import OffsetSet
from sharequeue.testing.groups import InMemoryShareGroups
from sharequeue.testing.records import Description, RecordState
from sharequeue.testing.share_partition import InMemorySharePartition
from sharequeue.values import (
    ArchivedRun,
    Attempt,
    DeadLetterBatch,
    DeliveryCount,
    ForcedRun,
    HeldDeadLetters,
    Lease,
    LeaseOutput,
    LeaseRow,
    OutputRow,
    SharePartition,
    SharePartitionStatus,
)

_FOLDER = re.compile(r"(?:sink:pending:)?(.+)/(?:leases?|compacted)=[^/]+(?:/[^/]*)?$")
"""A location of files, with the folder of its sink."""


class InMemoryAdministration:
    """What a person does to share-partitions, in memory."""

    def __init__(self, groups: InMemoryShareGroups) -> None:
        self.groups = groups

    def pause(
        self, group_id: str, reason: str | None, topic: str | None = None, partition: int | None = None
    ) -> int:
        """Stop leasing from a group or from some of its share-partitions; None resumes."""
        return self.groups.pause(group_id, reason, topic, partition)

    def force_release(
        self, at: SharePartition, offsets: OffsetSet, *, execute: bool = False
    ) -> list[ForcedRun]:
        """Make chosen offsets available at once, whoever holds them or whatever they wait for."""
        return self.groups.force_release(at, offsets, execute=execute)

    def force_dead_letter(
        self, at: SharePartition, offsets: OffsetSet, *, execute: bool = False
    ) -> list[ForcedRun]:
        """Send chosen offsets to the dead-letter topic as rejected, whoever holds them."""
        return self.groups.force_dead_letter(at, offsets, execute=execute)

    def extend_locks(self, amount: timedelta) -> int:
        """Extend every lock by this time; return how many leases were extended."""
        return self.groups.extend_locks(amount)

    def raise_state_epochs(self) -> int:
        """Fence every holder, and make what was leased available; return how many share-partitions."""
        return self.groups.raise_state_epochs()


class InMemoryOutputs:
    """The outputs that count, in memory. ``rows`` has each with its group and sink."""

    def __init__(self, groups: InMemoryShareGroups) -> None:
        self.groups = groups
        self.rows: list[tuple[str, str, OutputRow]] = []
        self.owners: dict[str, str] = {}
        """The groups to which folders of sinks belong."""

    def counted(self, group_id: str, sink: str) -> list[OutputRow]:
        """The outputs of a sink that count."""
        found = [row for group, name, row in self.rows if (group, name) == (group_id, sink)]
        return sorted(found, key=lambda row: row.lease_id)

    def check(self, lease: Lease, acknowledged: OffsetSet, outputs: Sequence[LeaseOutput]) -> None:
        """Raise InvalidRecordState where a lease may have no output, InvalidRequest where it has one of that sink, or
        lies in another group's folder; claim the folders.
        """
        sinks = [made.sink for made in outputs]
        held = self.groups.held(lease)
        if not held or acknowledged - held:
            raise InvalidRecordState(
                "an output needs a lease that is held, and every offset acknowledged with it held under that lease: "
                "its lock lapsed, it was acknowledged already, or another member holds it"
            )
        counted = {sink for _, sink, row in self.rows if row.lease_id == lease.lease_id}
        for sink in sinks:
            if sink in counted or sinks.count(sink) > 1:
                raise InvalidRequest(f"sink {sink} has one output of lease {lease.lease_id} at most")
        found = (_FOLDER.match(made.location) for made in outputs)
        folders = sorted({match[1] for match in found if match})
        group = lease.share_partition.group_id
        for folder in folders:
            if self.owners.get(folder, group) != group:
                raise InvalidRequest(
                    f"{folder} holds the output of group {self.owners[folder]}, not of {group}"
                )
        self.owners |= dict.fromkeys(folders, group)


class InMemoryDeadLetters:
    """The dead letters of all groups, in memory: ``runs`` has what is written, ``reasons`` why and since when some
    are held."""

    def __init__(self, groups: InMemoryShareGroups, outputs: InMemoryOutputs) -> None:
        self.groups = groups
        self._outputs = outputs
        self.runs: list[ArchivedRun] = []
        self.reasons: dict[SharePartition, tuple[str, datetime]] = {}

    def open(self, at: SharePartition, max_records: int) -> DeadLetterBatch | None:
        """The batch of dead letters to write next; None when none waits."""
        return self.groups.open_dead_letters(at, max_records)

    def close(self, at: SharePartition, sequence: int, *, dropped: bool = False) -> int:
        """Close the open batch of that number: its records become ARCHIVED. Return how many, 0 for another number."""
        batch = self.groups.open_dead_letters(at, 0)
        closed = self.groups.close_dead_letters(at, sequence)
        if closed:
            self.reasons.pop(at, None)
        if closed and batch is not None:
            self.runs += [
                ArchivedRun(
                    at, sequence, run.cause, run.delivery_count, run.offsets, self.groups.now(), dropped
                )
                for run in batch.letters
            ]
        return closed

    def written(self, group_id: str) -> list[ArchivedRun]:
        """Every closed run of dead letters of a group, in the order of writing."""
        return [run for run in self.runs if run.share_partition.group_id == group_id]

    def attempts(self, at: SharePartition, sequence: int) -> list[Attempt]:
        """The deliveries that the records of a batch went through in vain, oldest first."""
        batch = self.groups.open_dead_letters(at, 0)
        written = [run.offsets for run in self.runs if (run.share_partition, run.sequence) == (at, sequence)]
        if batch is not None and batch.sequence == sequence:
            written += [run.offsets for run in batch.letters]
        letters = {offset for offsets in written for offset in offsets.iter_offsets()}
        return [
            Attempt(
                lease.lease_id,
                lease.member_id,
                "",
                self.groups.at_second(lease.acquired_at),
                OffsetSet.from_offsets(offsets & letters),
                self._exceptions(lease.lease_id),
            )
            for lease, offsets in self.groups.share_partition(at).failed_attempts.values()
            if offsets & letters
        ]

    def _exceptions(self, lease_id: int) -> str | None:
        found = (row for _, sink, row in self._outputs.rows if sink.endswith("-exceptions") and row.records)
        return next((row.location for row in found if row.lease_id == lease_id), None)

    def topics_redriven_for_others(self, group_id: str) -> set[str]:
        """Return nothing: there is no broker here to put records back into."""
        return set()

    def hold(self, at: SharePartition, reason: str | None) -> None:
        """Say why what waits cannot be written; None takes it back, as closing a batch does."""
        if reason is None:
            self.reasons.pop(at, None)
        else:
            self.reasons[at] = (reason, self.reasons[at][1] if at in self.reasons else self.groups.now())

    def service_drains(self) -> bool:
        """Return False: whoever uses this state writes its dead letters."""
        return False

    def held(self, group_id: str | None = None) -> list[HeldDeadLetters]:
        """What no drain could write, of a group or of all."""
        groups = self.groups.group_ids() if group_id is None else [group_id]
        waiting = {
            at: states_of(self.groups.describe(at)).count(RecordState.ARCHIVING)
            for group in groups
            for at in self.groups.share_partitions(group)
        }
        return [
            HeldDeadLetters(at, waiting[at], *self.reasons[at])
            for at in sorted(self.reasons, key=lambda at: (at.group_id, at.topic, at.partition))
            if waiting.get(at)
        ]


class InMemoryFigures:
    """The figures, in memory. ``observed`` has when the log of a share-partition was last looked at."""

    def __init__(self, groups: InMemoryShareGroups, dead_letters: InMemoryDeadLetters) -> None:
        self.groups = groups
        self._dead_letters = dead_letters
        self.observed: dict[SharePartition, datetime] = {}

    def describe(self, group_id: str | None = None) -> list[SharePartitionStatus]:
        """The figures of every share-partition of a group, or of all groups."""
        names = [group_id] if group_id is not None else self.groups.group_ids()
        return [self._status(at) for name in names for at in self.groups.share_partitions(name)]

    def lost_topics(self, group_id: str, topics: Collection[str]) -> dict[str, UnknownTopicId]:
        """Return those of these topics that were made again since the group began on them. None is ever deleted here
        without being made again.
        """
        return {
            each.topic: UnknownTopicId(f"Topic {each.topic} was deleted and made again.")
            for each in self.describe(group_id)
            if each.topic in topics and each.status == "topic_recreated"
        }

    def some(
        self, group_id: str, *, skip: int = 0, most: int, by_lag: bool = False
    ) -> list[SharePartitionStatus]:
        """The figures of `most` share-partitions of a group, after `skip` others: by name, or most lag first."""
        found = self.describe(group_id)
        if by_lag:
            found.sort(key=lambda each: -each.lag)
        return found[skip : skip + most]

    def _status(self, at: SharePartition) -> SharePartitionStatus:
        found, view = self.groups.share_partition(at), self.groups.describe(at)
        states = states_of(view)
        counts = [seen.delivery_count for seen in view.offsets.values()]
        ended: Counter[str] = Counter()
        for (outcome, _), records in found.outcomes.items():
            ended[outcome] += records
        dropped = [run for run in self._dead_letters.runs if run.share_partition == at and run.dropped]
        available = [r for r in found.records.values() if r.state is RecordState.AVAILABLE]
        waits = [self.groups.at_second(r.not_before) for r in available if r.not_before is not None]
        expiries = [record.expires_at for record in found.records.values() if record.expires_at is not None]
        return SharePartitionStatus(
            group_id=at.group_id,
            topic=at.topic,
            partition=at.partition,
            topic_id=found.topic_id,
            status=status_of(found),
            state_epoch=view.state_epoch,
            spso=view.spso,
            speo=view.speo,
            log_start=found.log_start,
            log_end=found.log_end,
            last_stable_offset=found.log_end
            if found.last_stable_offset is None
            else found.last_stable_offset,
            observed_at=self.observed.get(at),
            lag=view.lag,
            in_flight=view.in_flight,
            available=states.count(RecordState.AVAILABLE),
            acquired=states.count(RecordState.ACQUIRED),
            archiving=states.count(RecordState.ARCHIVING),
            delivery_complete_count=view.delivery_complete_count,
            lost_records=view.lost_records,
            highest_delivery_count=max(counts, default=0),
            leases=len({lease.token for lease in found.leases.values()}),
            next_expiry=self.groups.at_second(min(expiries)) if expiries else None,
            waiting=view.waiting,
            waiting_until=min((until for until in waits if until > self.groups.now()), default=None),
            paused_reason=view.paused_reason,
            accepted=ended["accepted"],
            rejected=ended["rejected"],
            exhausted=ended["exceeded"],
            gap=ended["gap"],
            no_dlq=ended["rejected"] + ended["exceeded"] - found.closed_letters,
            dropped_letters=sum(run.offsets.count for run in dropped),
            held_reason=f"dead letters are held: {self._dead_letters.reasons[at][0]}"
            if at in self._dead_letters.reasons
            else None,
        )

    def leases(self, group_id: str) -> list[LeaseRow]:
        """Who holds what in a group, soonest to lapse first."""
        rows = []
        for at in self.groups.share_partitions(group_id):
            found = self.groups.share_partition(at)
            for lease in found.leases.values():
                held = [r.expires_at for r in found.records.values() if r.lease_id == lease.lease_id]
                expires_at = self.groups.at_second(min(moment for moment in held if moment is not None))
                rows.append(
                    LeaseRow(
                        lease_id=lease.lease_id,
                        topic=at.topic,
                        partition=at.partition,
                        member_id=lease.member_id,
                        records=len(held),
                        acquired_at=self.groups.at_second(lease.acquired_at),
                        expires_at=expires_at,
                        seconds_left=(expires_at - self.groups.now()) / timedelta(seconds=1),
                        isolation_level=lease.isolation_level,
                    )
                )
        return sorted(rows, key=lambda row: (row.expires_at, row.lease_id))

    def delivery_counts(self, group_id: str) -> list[DeliveryCount]:
        """The histogram of delivery counts over all records of a group that have ended, by outcome."""
        return [
            DeliveryCount(at.topic, at.partition, outcome, count, records)
            for at in self.groups.share_partitions(group_id)
            for (outcome, count), records in sorted(self.groups.share_partition(at).outcomes.items())
        ]

    def verify(self, group_id: str | None = None) -> list[str]:
        """The invariants of the state that do not hold, in words; empty when all do."""
        return [v for v in self.groups.verify() if group_id is None or v.startswith(f"{group_id} ")]


def status_of(found: InMemorySharePartition) -> str:
    """The status that ``observe`` returns."""
    return "topic_recreated" if found.recreated else "active"


def states_of(view: Description) -> list[RecordState]:
    """The state of every record in flight, those that the log start has overtaken too."""
    return [seen.state for seen in (*view.offsets.values(), *view.overtaken.values())]
