"""The operations on the state of share-partitions, many in one call.

A typed layer over the SQL functions in ``sql/functions``: one method, one function, one round trip, one
transaction. The rules are in SQL, so that they are the same for every client. This module turns rows
into values, error codes into errors by Kafka's name, and repeats a call whose reply was lost: acquire and
acknowledge carry a request id for that, the others are idempotent. Terms and rules: KIP-932, KIP-1191, KIP-1222,
KIP-1226.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from itertools import groupby
from typing import Self
from uuid import UUID, uuid4, uuid5

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.pool import Joined
from sharequeue.domain.errors import ShareError
from sharequeue.domain.names import whole_number
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import (
    Acknowledged,
    AcknowledgeType,
    Lease,
    LogSeen,
    SharePartition,
    Swept,
)
from sharequeue.state.administration import Administration
from sharequeue.state.calls import (
    OBSERVED_AT_ONCE,
    RANGES,
    AcquiredLeases,
    BlockedKeys,
    LeaseAcknowledgement,
    holders_of,
    in_calls,
    keys_to_json,
    names_of,
)
from sharequeue.state.dead_letters import DeadLetters
from sharequeue.state.fetches import Fetches
from sharequeue.state.figures import Figures
from sharequeue.state.kept import Kept
from sharequeue.state.offset_sets import Parameters
from sharequeue.state.outputs import Outputs
from sharequeue.state.rows import (
    ACQUIRED,
    OUTCOMES,
    AcquireMode,
    Redelivery,
    acknowledged_of,
    error_of_row,
    lease_of,
    share_partition_name,
    statement,
)
from sharequeue.state.runs import Runs


class State:
    """The operations on share-partition state, over one database. Safe to share between threads.

    ``observe``, ``acquire``, ``renew``, ``acknowledge`` and ``release`` take many share-partitions or leases, all of
    one group, and leases of one member under one epoch; ValueError otherwise. Refusals are returned as values, one by
    one, and none undoes another. Everything else is in a part:

    - ``fetches``: acknowledgements in Kafka's batches,
    - ``dead_letters``: the state's part of writing dead letters,
    - ``outputs``: the outputs of a sink that count, and their compaction,
    - ``kept``: where raw records of released offsets are kept,
    - ``figures``: the current state, read only,
    - ``administration``: operations of administrators and of the service,
    - ``runs``: what a run of a pipeline records about itself.

    Each part is also a class over a ``Database``: ``Figures(database)`` is ``State(database).figures``. The parts
    raise refusals as errors of ``sharequeue.domain.errors``; nothing has changed then.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.fetches = Fetches(database)
        self.dead_letters = DeadLetters(database)
        self.outputs = Outputs(database)
        self.kept = Kept(database)
        self.figures = Figures(database)
        self.administration = Administration(database)
        self.runs = Runs(database)

    @contextmanager
    def transaction(self) -> Iterator[tuple[sa.Connection, Self]]:
        """Open one transaction for the caller's own statements and for calls of the yielded state: all or nothing.

        An exception rolls back the caller's statements too; a refusal is a value. Nothing is repeated when
        the connection is lost: the caller repeats the block, with the same request ids.
        """
        with self.database.transaction() as connection:
            yield connection, type(self)(Joined(connection))

    def now(self) -> datetime:
        """Return the time by which locks expire."""
        clock: datetime = self.database.rows(sa.text("select sharequeue.clock() as clock"))[0]["clock"]
        return clock

    def initialize(self, at: SharePartition, topic_id: str, start_offset: int, state_epoch: int) -> bool:
        """Give a share-partition its start offset (R-IN); return whether it was new. Calling it again changes
        nothing."""
        rows = self.database.call(
            sa.text(
                "select sharequeue.initialize(:group_id, :topic, :partition, :topic_id, :start_offset, :state_epoch)"
                " as created"
            ),
            **share_partition_name(at),
            topic_id=topic_id,
            start_offset=start_offset,
            state_epoch=state_epoch,
        )
        return bool(rows[0]["created"])

    def observe(self, seen: Sequence[LogSeen]) -> dict[SharePartition, str | None]:
        """Record the log offsets that the broker returned; a log start past SPSO moves SPSO (R-LS).

        Return the status of each share-partition, None if it is not initialised. Only changes are written. More than
        ``OBSERVED_AT_ONCE`` are sent in several calls.
        """
        statuses: dict[SharePartition, str | None] = {}
        for part in in_calls(seen, OBSERVED_AT_ONCE):
            at = [each.share_partition for each in part]
            rows = self.database.call(
                sa.text(
                    "select * from sharequeue.observe_many(:group_id, :topics, :partitions, :topic_ids,"
                    " cast(:log_starts as bigint[]), cast(:log_ends as bigint[]), cast(:stable as bigint[]))"
                ),
                **names_of(at),
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
    ) -> AcquiredLeases:
        """Lease from these share-partitions, in this order, up to ``max_records`` records together.

        Redeliverable records come first, then new ones up to the log end. With ``member_epoch`` the member must be
        live in the group.
        ``max_bytes`` limits them further, by the mean size of a topic's records (``mean_bytes``); the first lease
        has at least one record. ``leave_outs`` are offsets of each share-partition that are not leased again. Of the
        suspects of a share-partition up to ``parts`` parts are leased, one lease each. The last attempt of a suspect
        is leased alone: with ``last_attempt`` it comes first and nothing else is leased, without it is not leased.
        """
        if not share_partitions:
            return AcquiredLeases((), {})
        sets = Parameters(leave_outs=None)
        left_out = "cast(:leave_outs as int8multirange[])"
        if leave_outs is not None:
            left_out = sets.offset_sets("leave_outs", leave_outs)
        means = None if max_bytes is None else [(mean_bytes or {})[at.topic] for at in share_partitions]
        rows = self.database.call(
            statement(
                f"select topic, partition, suspects, last_attempt, ordered, {ACQUIRED}"  # noqa: S608  (no value is in it)
                " from sharequeue.acquire_many(:group_id, :topics, :partitions, :member_id,"
                " cast(:member_epoch as integer), :max_records, cast(:lock_duration_ms as integer),"
                " cast(:request_id as uuid), :redelivery, :mode, cast(:max_bytes as bigint),"
                f" cast(:means as double precision[]), {left_out}, :parts, :last_attempt) as a"
            ),
            **names_of(share_partitions),
            member_id=member_id,
            member_epoch=member_epoch,
            max_records=whole_number("max_records", max_records),
            lock_duration_ms=lock_duration_ms,
            request_id=str(request_id or uuid4()),
            redelivery=redelivery,
            mode=mode,
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
            refused = error_of_row(ranges[0])
            if refused is None:
                leases.append(lease_of(ranges, at, member_id, member_epoch))
            else:
                refusals[at] = refused
        return AcquiredLeases(tuple(leases), refusals)

    def blocked_keys(
        self, group_id: str, tokens: Sequence[UUID], hashes: Collection[UUID] | None = None
    ) -> dict[UUID, BlockedKeys]:
        """Return which keys each of these leases must hold; nothing for leases of a group that is not ordered by key.

        A lease of an ordered group without such keys has an entry without keys. ``hashes``: only of these keys, which
        is faster for leases of few records.
        """
        rows = self.database.call(
            statement(
                "select * from sharequeue.blocked_keys(:group_id, cast(:tokens as uuid[]), cast(:hashes as uuid[]))"
            ),
            group_id=group_id,
            tokens=[str(token) for token in tokens],
            hashes=None if hashes is None else [str(key) for key in hashes],
        )
        return {
            UUID(str(row["token"])): BlockedKeys(row["key_hashes"], row["first_offsets"], row["untils"])
            for row in rows
        }

    def renew(self, leases: Sequence[Lease]) -> list[datetime | ShareError]:
        """Renew the locks of what these leases still hold, for a full lock duration from now (KIP-1222).

        Return the new expiry of each, or its refusal: InvalidRecordState if its lock has expired or the group
        forbids renewal.
        """
        if not leases:
            return []
        rows = self.database.call(
            statement(
                "select * from sharequeue.renew_many(:group_id, :topics, :partitions, :state_epochs, :member_id,"
                " cast(:member_epoch as integer), cast(:tokens as uuid[]))"
            ),
            **holders_of(leases),
        )
        return [error_of_row(row) or row["expires_at"] for row in rows]

    def acknowledge(
        self, acknowledgements: Sequence[LeaseAcknowledgement], *, request_id: UUID | None = None
    ) -> list[Acknowledged | ShareError]:
        """Acknowledge records of leases, each lease as a whole or not at all.

        The outputs of leases that were not refused count from this commit on. Offsets in no set stay leased.
        A refusal is InvalidRecordState if an offset is not held under the lease, and FencedStateEpoch,
        UnknownMemberId or FencedMemberEpoch if its holder has been fenced.

        A lease with more than ``RANGES`` ranges of offsets is acknowledged in several statements of one transaction.
        """
        if not acknowledgements:
            return []
        if any(AcknowledgeType.RENEW in each.outcomes for each in acknowledgements):
            raise ValueError("acknowledge() acknowledges records; to keep a lock, call renew()")
        if len({each.backoff for each in acknowledgements}) != 1:
            raise ValueError("backoff must be the same for all leases of one call")
        request_id = request_id or uuid4()
        if sum(each.range_count for each in acknowledgements) <= RANGES:
            return self._acknowledge(acknowledgements, request_id)
        return [
            self._acknowledge_in_parts(each, uuid5(request_id, str(place)))
            for place, each in enumerate(acknowledgements)
        ]

    def _acknowledge_in_parts(
        self, acknowledgement: LeaseAcknowledgement, request_id: UUID
    ) -> Acknowledged | ShareError:
        """Acknowledge one lease with so many ranges that no single statement would end in time."""
        done: list[Acknowledged] = []
        try:
            with self.transaction() as (connection, both), connection.begin_nested():
                for part in acknowledgement.parts(RANGES):
                    (result,) = both._acknowledge([part], uuid5(request_id, str(len(done))))
                    if isinstance(result, ShareError):
                        raise result
                    done.append(result)
        except ShareError as refused:
            return refused
        counts = ("accepted", "released", "rejected", "gaps", "exhausted")
        return replace(done[-1], **{name: sum(getattr(each, name) for each in done) for name in counts})

    def _acknowledge(
        self, acknowledgements: Sequence[LeaseAcknowledgement], request_id: UUID
    ) -> list[Acknowledged | ShareError]:
        sets = Parameters()
        accepts, releases, rejects, gaps = (
            sets.offset_sets(kind.name, [each.outcomes.get(kind, EMPTY) for each in acknowledgements])
            for kind in OUTCOMES
        )
        holds = "cast(:holds as int8multirange[])"
        if any(each.holds for each in acknowledgements):
            holds = sets.offset_sets("holds", [each.holds for each in acknowledgements])
        else:
            sets["holds"] = None
        rows = self.database.call(
            statement(
                "select * from sharequeue.acknowledge_many("  # noqa: S608  (no value is in it)
                ":group_id, :topics, :partitions, :state_epochs,"
                " :member_id, cast(:member_epoch as integer), cast(:tokens as uuid[]), cast(:request_id as uuid),"
                f" {accepts}, {releases}, {rejects}, {gaps}, cast(:outputs as jsonb),"
                f" cast(:not_befores as timestamptz[]), :backoff, cast(:delays as jsonb), {holds},"
                " cast(:keys as jsonb), cast(:kept as jsonb))"
            ),
            **holders_of([each.lease for each in acknowledgements]),
            **sets,
            request_id=str(request_id),
            outputs=json.dumps([[asdict(output) for output in each.outputs] for each in acknowledgements]),
            not_befores=[each.not_before for each in acknowledgements],
            backoff=acknowledgements[0].backoff,
            delays=_delays_of(acknowledgements),
            keys=_keys_of(acknowledgements),
            kept=_kept_of(acknowledgements),
        )
        return [error_of_row(row) or acknowledged_of(row) for row in rows]

    def release(
        self,
        leases: Sequence[Lease],
        *,
        cancelled: bool = False,
        refund: bool = False,
        reasons: Sequence[str | None] | None = None,
    ) -> int:
        """Release all records that these leases still hold; return their number.

        They are redelivered as suspects, unless ``cancelled`` or with a ``refund`` (see ``release_member``). Suspects
        stay suspects. ``reasons`` has for each lease why it was not acknowledged, as ``Class: message``: the dead
        letter of a record that is exhausted by this has it.
        """
        if not leases:
            return 0
        # Under any member epoch: a release does not check it.
        names = holders_of([replace(lease, member_epoch=None) for lease in leases])
        del names["state_epochs"], names["member_epoch"]
        rows = self.database.call(
            sa.text(
                "select coalesce(sum(records), 0) as released from sharequeue.release_many(:group_id, :topics,"
                " :partitions, :member_id, cast(:tokens as uuid[]), :cancelled, :refund,"
                " cast(:suspects as boolean[]), cast(:reasons as text[]))"
            ),
            **names,
            cancelled=cancelled,
            refund=refund,
            suspects=[lease.suspects for lease in leases],
            reasons=None if reasons is None else [each and each.replace("\0", "") for each in reasons],
        )
        return int(rows[0]["released"])

    def release_member(
        self, group_id: str, member_id: str, *, cancelled: bool = False, refund: bool = False
    ) -> int:
        """Release all records that a member holds in a group; return their number.

        ``cancelled``: a person or the scheduler stopped the run. Its records are not suspects, and if
        the group config ``sharequeue.cancelled.run.refund.enable`` is on, they get their delivery back.
        ``refund``: the same for a run in which no record was at fault; the delivery is given back in any case.
        """
        rows = self.database.call(
            sa.text(
                "select sharequeue.release(:group_id, :member_id, null, :cancelled, :refund) as released"
            ),
            group_id=group_id,
            member_id=member_id,
            cancelled=cancelled,
            refund=refund,
        )
        return int(rows[0]["released"])

    def sweep(self, limit: int = 1000) -> Swept:
        """Release expired locks on idle share-partitions, at most ``limit`` leases, oldest first."""
        rows = self.database.call(sa.text("select * from sharequeue.sweep(:limit)"), limit=limit)
        return Swept(rows[0]["leases"], rows[0]["records"], rows[0]["stuck"])


def _delays_of(acknowledgements: Sequence[LeaseAcknowledgement]) -> str | None:
    """Return the released offsets that have their own times, as JSON; None without any."""
    if not any(each.delays for each in acknowledgements):
        return None
    return json.dumps(
        [
            [{"offsets": str(offsets), "until": at.isoformat()} for at, offsets in each.delays.items()]
            for each in acknowledgements
        ]
    )


def _keys_of(acknowledgements: Sequence[LeaseAcknowledgement]) -> str | None:
    """Return the reported keys, as JSON; None without any."""
    if not any(each.keys for each in acknowledgements):
        return None
    return json.dumps([keys_to_json(each.keys) for each in acknowledgements])


def _kept_of(acknowledgements: Sequence[LeaseAcknowledgement]) -> str | None:
    """Return the kept records, as JSON; None without any."""
    if not any(each.kept for each in acknowledgements):
        return None
    return json.dumps(
        [
            each.kept and {"location": each.kept.location, "offsets": str(each.kept.offsets)}
            for each in acknowledgements
        ]
    )
