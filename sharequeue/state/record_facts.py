"""What the state has of one record besides the journal: outputs, failed attempts, dead letters, an operator's acts.

Each is a lookup by lease, share-partition or group. `record_history` has the deliveries.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.values import SharePartition
from sharequeue.state.rows import share_partition_name

_GROUPS = sa.text(
    "select group_id from sharequeue.share_partitions where topic = :topic and partition = :partition"
    " order by group_id"
)
_OUTPUTS = sa.text(
    "select lease_id, sink, location from sharequeue.counted_outputs"
    " where lease_id = any(cast(:leases as bigint[])) and records > 0 order by lease_id, sink"
)
_ATTEMPTS = sa.text(
    "select f.lease_id, f.member_id, f.client_id, f.acquired_at, f.reason from sharequeue.failed_attempts f"
    " join sharequeue.share_partitions sp using (share_partition_id)"
    " where sp.group_id = :group_id and sp.topic = :topic and sp.partition = :partition"
    " and f.past > :offset and f.offsets @> cast(:offset as bigint) order by f.acquired_at, f.lease_id"
)
_CLIENTS = sa.text(
    "select member_id, client_id from sharequeue.members"
    " where group_id = :group_id and member_id = any(cast(:members as text[]))"
)
_LETTERS = sa.text(
    "select sequence, cause, delivery_count, opened_at, written_at, dropped from sharequeue.dead_letter_batch_runs"
    " where group_id = :group_id and topic = :topic and partition = :partition"
    " and offsets @> cast(:offset as bigint) order by opened_at, sequence"
)
_ACTS = sa.text(
    "select happened_at, principal, act from sharequeue.audit_log where group_id = :group_id and ("
    " act = 'alter_offsets' and after @> cast(:at as jsonb)"
    " or act in ('force_release', 'force_dead_letter') and after @> cast(:at as jsonb)"
    "  and cast(after ->> 'offsets' as int8multirange) @> cast(:offset as bigint)"
    " or act in ('delete_offsets', 'delete_group', 'remove_deleted_topic')"
    "  and before @> jsonb_build_array(cast(:at as jsonb))) order by audit_id"
)
_PUBLICATIONS = sa.text(
    "select p.replay, p.sink, p.requested_by, p.ended_at from sharequeue.publications p"
    " join sharequeue.published_records r using (publication_id)"
    " where p.group_id = :group_id and r.topic = :topic and r.partition = :partition and r.topic_id = :topic_id"
    " and p.ended_at is not null and r.offsets @> cast(:offset as bigint) order by p.ended_at"
)


@dataclass(frozen=True, slots=True)
class RecordOutput:
    """An output of a lease that counts. It has the rows of all records of the lease."""

    lease_id: int
    sink: str
    location: str


@dataclass(frozen=True, slots=True)
class RecordAttempt:
    """A delivery that failed, of a group with a dead-letter topic. Known until SPSO has passed the lease."""

    lease_id: int
    member_id: str
    client_id: str
    acquired_at: datetime
    reason: str | None
    """Why it ended without an acknowledgement."""


@dataclass(frozen=True, slots=True)
class RecordLetter:
    """The dead letter of a record: the number of its batch, and when that was opened and written."""

    sequence: int
    cause: str
    delivery_count: int
    opened_at: datetime
    written_at: datetime | None
    dropped: bool


@dataclass(frozen=True, slots=True)
class RecordAct:
    """An operator's act that concerns a record, from the audit log."""

    happened_at: datetime
    principal: str
    act: str


@dataclass(frozen=True, slots=True)
class RecordPublication:
    """A published replay that has put the rows of a record into the output of its group."""

    replay: str
    sink: str
    requested_by: str
    ended_at: datetime


class RecordFacts:
    """Facts about one record of a share-partition. The role needs the rights of a service."""

    def __init__(self, database: Database, at: SharePartition, offset: int) -> None:
        self._database = database
        self._names: dict[str, Any] = {**share_partition_name(at), "offset": offset}

    @staticmethod
    def groups(database: Database, topic: str, partition: int) -> list[str]:
        """Return the groups with state of a partition, by name."""
        return [row["group_id"] for row in database.rows(_GROUPS, topic=topic, partition=partition)]

    def outputs(self, lease_ids: Collection[int]) -> list[RecordOutput]:
        """Return the outputs of these leases that count and have rows."""
        return [RecordOutput(**row) for row in self._database.rows(_OUTPUTS, leases=list(lease_ids))]

    def attempts(self) -> list[RecordAttempt]:
        """Return the record's failed deliveries, oldest first."""
        return [RecordAttempt(**row) for row in self._database.rows(_ATTEMPTS, **self._names)]

    def clients(self, member_ids: Collection[str]) -> dict[str, str]:
        """Return the client ids of those of these members that are in the group."""
        rows = self._database.rows(_CLIENTS, group_id=self._names["group_id"], members=list(member_ids))
        return {row["member_id"]: row["client_id"] for row in rows}

    def letters(self) -> list[RecordLetter]:
        """Return the record's dead letters, oldest first; more than one if its offset was reset in between."""
        return [RecordLetter(**row) for row in self._database.rows(_LETTERS, **self._names)]

    def acts(self) -> list[RecordAct]:
        """Return what operators have done with the record, or with its share-partition's offsets, oldest first."""
        at = json.dumps({"topic": self._names["topic"], "partition": self._names["partition"]})
        return [RecordAct(**row) for row in self._database.rows(_ACTS, **self._names, at=at)]

    def publications(self, topic_id: str) -> list[RecordPublication]:
        """Return the published replays with rows of the record, oldest first."""
        rows = self._database.rows(_PUBLICATIONS, **self._names, topic_id=topic_id)
        return [RecordPublication(**row) for row in rows]
