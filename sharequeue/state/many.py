"""What may be done to many share-partitions of a group in one call and one commit?

The operations of ``sharequeue.state.State`` on more than one: a run with a thousand share-partitions
would ask a thousand times. Refusals come as values, lease by lease, and none undoes another. A call holds the rows of
its share-partitions locked until it commits: send ``A_CALL`` of them at once, and the rest in the next call
(``in_calls``). Kafka's requests name many partitions too (KIP-932: ShareFetch, ShareAcknowledge).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any, TypeVar
from uuid import UUID, uuid4

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.errors import ShareError
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.state.offset_sets import Parameters
from sharequeue.state.rows import (
    ACQUIRED,
    OUTCOMES,
    AcquireMode,
    Redelivery,
    acknowledged_of,
    acquisition,
    lease_of,
    outputs_of,
    refusal,
)
from sharequeue.values import Acknowledged, AcknowledgeType, Lease, LeaseOutput, LogSeen, SharePartition

A_CALL = 200
"""Share-partitions in one call: their rows are locked for about 0.1 s. The functions refuse more than a thousand."""
OBSERVED_AT_ONCE = 10_000
"""Of these only the rows are locked whose log offsets have changed."""


@dataclass(frozen=True, slots=True)
class LeaseAcknowledgement:
    """The acknowledgement of one lease, with the arguments of ``State.acknowledge``."""

    lease: Lease
    outcomes: Mapping[AcknowledgeType, OffsetSet]
    outputs: Sequence[LeaseOutput] = ()
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class AcquiredMany:
    """What one acquire over many share-partitions leased, and which of them refused it."""

    leases: tuple[Lease, ...]
    refusals: Mapping[SharePartition, ShareError]


_T = TypeVar("_T")


def in_calls(items: Sequence[_T], most: int = A_CALL) -> Iterator[Sequence[_T]]:
    """The items in order, in parts that fit into one call."""
    for first in range(0, len(items), most):
        yield items[first : first + most]


class Many:
    """The operations of ``State`` on many share-partitions of one group at once; ``State.many``.

    All of a call are of one group, and of one member with one epoch where it has a holder; ValueError otherwise.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def observe(self, seen: Sequence[LogSeen]) -> dict[SharePartition, str | None]:
        """Record the offsets of many logs of one group, as ``State.observe``; return their status.

        Only what changed is written. In several calls where there are more than ``OBSERVED_AT_ONCE``.
        """
        statuses: dict[SharePartition, str | None] = {}
        for part in in_calls(seen, OBSERVED_AT_ONCE):
            at = [each.share_partition for each in part]
            rows = self._database.call(
                sa.text(
                    "select * from sharequeue.observe_many(:group_id, :topics, :partitions, :topic_ids,"
                    " cast(:log_starts as bigint[]), cast(:log_ends as bigint[]), cast(:stable as bigint[]))"
                ),
                **_names(at),
                topic_ids=[each.topic_id for each in part],
                log_starts=[each.log_start for each in part],
                log_ends=[each.log_end for each in part],
                stable=[each.last_stable_offset for each in part],
            )
            for row in rows:
                statuses[SharePartition(at[0].group_id, row["topic"], row["partition"])] = row["status"]
        return statuses

    def acquire(
        self,
        share_partitions: Sequence[SharePartition],
        member_id: str,
        member_epoch: int | None,
        max_records: int,
        *,
        max_bytes: int | None = None,
        mean_bytes: Mapping[str, float] | None = None,
        lock_duration_ms: int | None = None,
        request_id: UUID | None = None,
        redelivery: Redelivery = "fan_out",
        mode: AcquireMode = "batch_optimized",
        leave_outs: Sequence[OffsetSet] | None = None,
        parts: int = 1,
        last_attempt: bool = True,
    ) -> AcquiredMany:
        """Lease from these share-partitions, in this order, up to ``max_records`` records together.

        ``max_bytes`` bounds them further, by the mean size of a topic's records (``mean_bytes``); the first lease
        has at least one record. ``leave_outs`` are the offsets of each that are not leased again. Of the suspects
        of a share-partition up to ``parts`` parts are leased, one lease each. The last attempt of a suspect is
        leased alone: with ``last_attempt`` it comes first and nothing else does, without it is left where it is.
        """
        if not share_partitions:
            return AcquiredMany((), {})
        sets = Parameters(leave_outs=None)
        left_out = "cast(:leave_outs as int8multirange[])"
        if leave_outs is not None:
            left_out = sets.offset_sets("leave_outs", leave_outs)
        means = None if max_bytes is None else [(mean_bytes or {})[at.topic] for at in share_partitions]
        rows = self._database.call(
            sa.text(
                f"select topic, partition, suspects, last_attempt, {ACQUIRED}"  # noqa: S608  (no value is in it)
                " from sharequeue.acquire_many(:group_id, :topics, :partitions, :member_id,"
                " cast(:member_epoch as integer), :max_records, cast(:lock_duration_ms as integer),"
                " cast(:request_id as uuid), :redelivery, :mode, cast(:max_bytes as bigint),"
                f" cast(:means as double precision[]), {left_out}, :parts, :last_attempt) as a"
            ),
            **_names(share_partitions),
            member_id=member_id,
            member_epoch=member_epoch,
            **acquisition(max_records, lock_duration_ms, request_id, redelivery, mode),
            max_bytes=max_bytes,
            means=means,
            **sets,
            parts=parts,
            last_attempt=last_attempt,
        )
        leases: list[Lease] = []
        refusals: dict[SharePartition, ShareError] = {}
        group_id = share_partitions[0].group_id
        for _, of_lease in groupby(rows, lambda row: (row["topic"], row["partition"], row["lease_id"])):
            ranges = list(of_lease)
            at = SharePartition(group_id, ranges[0]["topic"], ranges[0]["partition"])
            refused = refusal(ranges[0])
            if refused is None:
                leases.append(lease_of(ranges, at, member_id, member_epoch))
            else:
                refusals[at] = refused
        return AcquiredMany(tuple(leases), refusals)

    def renew(self, leases: Sequence[Lease]) -> list[datetime | ShareError]:
        """Renew each of these leases, as ``State.renew``; return the new expiry of each, or why it was refused."""
        if not leases:
            return []
        rows = self._database.call(
            sa.text(
                "select * from sharequeue.renew_many(:group_id, :topics, :partitions, :state_epochs, :member_id,"
                " cast(:member_epoch as integer), cast(:tokens as uuid[]))"
            ),
            **_holders(leases),
        )
        return [refusal(row) or row["expires_at"] for row in rows]

    def acknowledge(
        self, acknowledgements: Sequence[LeaseAcknowledgement], *, request_id: UUID | None = None
    ) -> list[Acknowledged | ShareError]:
        """Acknowledge many leases, each whole or not at all, as ``State.acknowledge``.

        The outputs of the leases that were not refused count from this commit on.
        """
        if not acknowledgements:
            return []
        if any(AcknowledgeType.RENEW in each.outcomes for each in acknowledgements):
            raise ValueError("many.acknowledge() acknowledges records; to keep locks, call many.renew()")

        sets = Parameters()
        accepts, releases, rejects, gaps = (
            sets.offset_sets(kind.name, [each.outcomes.get(kind, EMPTY) for each in acknowledgements])
            for kind in OUTCOMES
        )
        rows = self._database.call(
            sa.text(
                "select * from sharequeue.acknowledge_many("  # noqa: S608  (no value is in it)
                ":group_id, :topics, :partitions, :state_epochs,"
                " :member_id, cast(:member_epoch as integer), cast(:tokens as uuid[]), cast(:request_id as uuid),"
                f" {accepts}, {releases}, {rejects}, {gaps}, cast(:outputs as jsonb),"
                " cast(:not_befores as timestamptz[]))"
            ),
            **_holders([each.lease for each in acknowledgements]),
            **sets,
            request_id=str(request_id or uuid4()),
            outputs=json.dumps([outputs_of(each.outputs) for each in acknowledgements]),
            not_befores=[each.not_before for each in acknowledgements],
        )
        return [refusal(row) or acknowledged_of(row) for row in rows]

    def release(self, leases: Sequence[Lease], *, cancelled: bool = False, refund: bool = False) -> int:
        """Give back what these leases still hold, as ``State.release_lease``; return how many records that was.
        Suspects stay suspects."""
        if not leases:
            return 0
        # Under whichever epoch each was acquired: whoever gives back is not asked for one.
        names = _holders([replace(lease, member_epoch=None) for lease in leases])
        del names["state_epochs"], names["member_epoch"]
        rows = self._database.call(
            sa.text(
                "select coalesce(sum(records), 0) as released from sharequeue.release_many(:group_id, :topics,"
                " :partitions, :member_id, cast(:tokens as uuid[]), :cancelled, :refund,"
                " cast(:suspects as boolean[]))"
            ),
            **names,
            cancelled=cancelled,
            refund=refund,
            suspects=[lease.suspects for lease in leases],
        )
        return int(rows[0]["released"])


def _names(share_partitions: Sequence[SharePartition]) -> dict[str, Any]:
    group_ids = {at.group_id for at in share_partitions}
    if len(group_ids) != 1:
        raise ValueError(f"a call is for one group, not for {sorted(group_ids)}")
    return {
        "group_id": group_ids.pop(),
        "topics": [at.topic for at in share_partitions],
        "partitions": [at.partition for at in share_partitions],
    }


def _holders(leases: Sequence[Lease]) -> dict[str, Any]:
    members = {(lease.member_id, lease.member_epoch) for lease in leases}
    if len(members) != 1:
        raise ValueError("a call is for the leases of one member, all under one epoch")
    member_id, member_epoch = members.pop()
    return {
        **_names([lease.share_partition for lease in leases]),
        "state_epochs": [lease.state_epoch for lease in leases],
        "member_id": member_id,
        "member_epoch": member_epoch,
        "tokens": [str(lease.token) for lease in leases],
    }
