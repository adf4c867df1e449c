"""How does the conformance suite acquire and acknowledge in Postgres?

The calls of a ShareFetch and a ShareAcknowledge, as any SQL client would make them: no tokens, no member epochs,
Kafka's arrays of batches. Everything else the suite asks is asked by ``postgres_engine``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.errors import InvalidRequest, ShareError, error_for
from sharequeue.offsets import OffsetSet
from sharequeue.state import State
from sharequeue.testing import AcknowledgementBatch, Acquired, AcquiredRange, SharePartition
from tests.conformance.engines import FetchOf, topic_id

RENEW = 4


class PostgresFetches:
    """Acquire, acknowledge, and both in one call."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.state = State(database)
        self.calls = 0

    def topic_id(self, at: SharePartition) -> str:
        """The id of a share-partition's topic."""
        return topic_id(at)

    def _run(self, query: str, **parameters: Any) -> list[sa.RowMapping]:
        with self.database.transaction() as connection:
            result = connection.execute(sa.text(query), parameters)
            return list(result.mappings()) if result.returns_rows else []

    def sweep(self) -> None:
        """Settle every lock that has lapsed."""
        self.state.sweep(1_000_000)

    def _notice_log_start(self, at: SharePartition, fetch: FetchOf) -> None:
        if fetch.log_start is None:
            return
        rows = self._run(
            "select sp.log_end, sp.last_stable_offset, coalesce((select min(lower(f.offsets))"
            " from sharequeue.in_flight_offsets f where f.share_partition_id = sp.share_partition_id"
            " and f.state = 0), sp.speo) as next from sharequeue.share_partitions sp"
            " where sp.group_id = :group and sp.topic = :topic and sp.partition = :partition",
            group=at.group_id,
            topic=at.topic,
            partition=at.partition,
        )
        if rows and fetch.log_start > rows[0]["next"]:
            row = rows[0]
            self.state.observe(
                at, self.topic_id(at), fetch.log_start, row["log_end"], row["last_stable_offset"]
            )

    def acquire(self, at: SharePartition, member_id: str, fetch: FetchOf) -> Acquired:
        self.sweep()  # a moved log start is looked at after what has lapsed
        self._notice_log_start(at, fetch)
        rows = self._run(
            "select * from sharequeue.acquire(:group, :topic, :partition, null, :member, null, :max_records, null,"
            " null, :redelivery, :mode, cast(:batch_size as bigint), cast(:firsts as bigint[]),"
            " cast(:lasts as bigint[]), cast(:aborted as int8multirange))",
            **self._fetch(at, member_id, fetch),
        )
        return self._acquired(rows)

    def _fetch(self, at: SharePartition, member_id: str, fetch: FetchOf) -> dict[str, Any]:
        return {
            "group": at.group_id,
            "topic": at.topic,
            "partition": at.partition,
            "member": member_id,
            "max_records": fetch.max_records,
            "redelivery": fetch.redelivery,
            "mode": fetch.mode,
            "batch_size": fetch.batch_size,
            "firsts": None if fetch.log is None else [b.first for b in fetch.log],
            "lasts": None if fetch.log is None else [b.last for b in fetch.log],
            "aborted": str(fetch.aborted),
        }

    def _acquired(self, rows: Sequence[sa.RowMapping]) -> Acquired:
        if not rows or rows[0]["error_code"] is None:
            return Acquired()
        if rows[0]["error_code"]:
            raise error_for(rows[0]["error_code"], rows[0]["error_message"])
        ranges = []
        for row in rows:
            for first, last in OffsetSet.parse(row["offsets"]).runs():
                ranges.append(AcquiredRange(first, last, row["delivery_count"]))
        counted = sum(r.last - r.first + 1 for r in ranges)
        return Acquired(tuple(ranges), None, counted, rows[0]["state_epoch"])

    def acknowledge(
        self,
        at: SharePartition,
        member_id: str,
        batches: Sequence[AcknowledgementBatch],
        state_epoch: int | None,
        renew_allowed: bool,
    ) -> None:
        rows = self._run(
            "select * from sharequeue.acknowledge_batches(:group, :topic, :partition, cast(:epoch as integer),"
            " :member, null, null, null, cast(:firsts as bigint[]), cast(:lasts as bigint[]),"
            " cast(:types as smallint[]), cast(:counts as integer[]), :renew)",
            group=at.group_id,
            topic=at.topic,
            partition=at.partition,
            epoch=state_epoch,
            member=member_id,
            firsts=[b.first for b in batches],
            lasts=[b.last for b in batches],
            types=[t for b in batches for t in b.types],
            counts=[len(b.types) for b in batches],
            renew=renew_allowed,
        )
        if rows[0]["error_code"]:
            raise error_for(rows[0]["error_code"], rows[0]["error_message"])

    def acknowledge_and_acquire(
        self,
        at: SharePartition,
        member_id: str,
        batches: Sequence[AcknowledgementBatch],
        state_epoch: int | None,
        max_wait_ms: int,
        fetch: FetchOf,
    ) -> tuple[ShareError | None, Acquired]:
        renews = any(RENEW in b.types for b in batches)
        if renews and (fetch.max_records or max_wait_ms):
            raise InvalidRequest
        self.sweep()
        plain = fetch.mode == "batch_optimized" and fetch.batch_size is None and not fetch.aborted
        if plain and fetch.log is None and not renews and all(len(b.types) == 1 for b in batches):
            return self._short(at, member_id, batches, state_epoch, fetch)
        rows = self._run(
            "select * from sharequeue.acknowledge_and_fetch(:group, :topic, :partition, cast(:epoch as integer),"
            " :member, null, null, null, cast(:ack_firsts as bigint[]), cast(:ack_lasts as bigint[]),"
            " cast(:types as smallint[]), cast(:counts as integer[]), :max_records, null, :redelivery, :mode,"
            " cast(:batch_size as bigint), cast(:firsts as bigint[]), cast(:lasts as bigint[]),"
            " cast(:aborted as int8multirange), :renews)",
            **self._fetch(at, member_id, fetch),
            epoch=state_epoch,
            ack_firsts=[b.first for b in batches],
            ack_lasts=[b.last for b in batches],
            types=[t for b in batches for t in b.types],
            counts=[len(b.types) for b in batches],
            renews=renews,
        )
        return self._refusal(rows), self._acquired(rows)

    def _short(
        self,
        at: SharePartition,
        member_id: str,
        batches: Sequence[AcknowledgementBatch],
        state_epoch: int | None,
        fetch: FetchOf,
    ) -> tuple[ShareError | None, Acquired]:
        """The call with the fast path, where it can say all there is to say; every second one is repeated."""
        self.calls += 1
        parameters = {
            "group": at.group_id,
            "topic": at.topic,
            "partition": at.partition,
            "epoch": state_epoch,
            "member": member_id,
            "request": str(uuid4()) if self.calls % 2 else None,
            "firsts": [b.first for b in batches],
            "lasts": [b.last for b in batches],
            "types": [b.types[0] for b in batches],
            "most": fetch.max_records,
            "redelivery": fetch.redelivery,
        }
        query = (
            "select * from sharequeue.acknowledge_and_acquire(:group, :topic, :partition, cast(:epoch as integer),"
            " :member, null, null, cast(:request as uuid), cast(:firsts as bigint[]), cast(:lasts as bigint[]),"
            " cast(:types as smallint[]), :most, :redelivery)"
        )
        rows = self._run(query, **parameters)
        if parameters["request"] and not rows[0]["acknowledge_error_code"] and rows[0]["lease_id"]:
            assert self._run(query, **parameters) == rows
        return self._refusal(rows), self._acquired(rows)

    def _refusal(self, rows: Sequence[sa.RowMapping]) -> ShareError | None:
        code = rows[0]["acknowledge_error_code"]
        return error_for(code, rows[0]["acknowledge_error_message"]) if code else None
