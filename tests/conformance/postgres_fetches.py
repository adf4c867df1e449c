"""Acquire and acknowledge in Postgres for the conformance suite.

The calls of a ShareFetch and a ShareAcknowledge, as any SQL client would make them: no tokens, no member epochs,
Kafka's arrays of batches. Everything else the suite asks is asked by ``postgres_engine``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import error_for
from sharequeue.domain.offsets import OffsetSet
from sharequeue.state import State
from tests import single
from tests.conformance.engines import FetchOf, topic_id
from tests.oracle import AcknowledgementBatch, Acquired, AcquiredRange, SharePartition


class PostgresFetches:
    """Acquire and acknowledge."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.state = State(database)

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
            single.observe(
                self.state, at, self.topic_id(at), fetch.log_start, row["log_end"], row["last_stable_offset"]
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
