"""Give a handler the leased records whose turn it is: those that no earlier record of their key blocks.

The state returns the blocked keys of each lease, with the offset of the record for which they wait. A leased record
behind it never reaches the handler: it becomes a row with the outcome `hold`, which costs it no delivery. Without a
blocked key the frame only gets the column `key_hash`. With one, the records are shuffled by key once, and both the
handler and the held rows read the result, so that the topic is read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from sharequeue.domain.values import Lease
from sharequeue.groups.configs import GroupConfigs
from sharequeue.spark.handler import HOLD, KEPT_COLUMNS, KEY_HASH
from sharequeue.state import State
from sharequeue.state.calls import BlockedKeys

BY_KEY = ("lease_id", f"if({KEY_HASH} = '', cast(offset as string), {KEY_HASH})")
"""The expressions by which records are shuffled: those of a key are in one task, those without a key in any."""
BY_LEASE, KEY, FIRST = ("sharequeue_lease_id", "sharequeue_key", "sharequeue_first")
"""The columns of a table of open keys: the lease, the hash, and the offset for which later records wait."""
_HELD = "sharequeue_held"


def hashed(records: DataFrame) -> DataFrame:
    """Return the records with the hash of their key, empty for a record without a key."""
    return records.withColumn(KEY_HASH, fn.expr("coalesce(md5(key), '')"))


def without_order(records: DataFrame, configs: GroupConfigs) -> DataFrame:
    """Return records that are not leased, as a handler of the group expects them: `key_hash`, if the group is
    ordered, is empty, because none of them waits for another.
    """
    return records.withColumn(KEY_HASH, fn.lit("")) if configs.ordered else records


def in_key_order(records: DataFrame) -> DataFrame:
    """Return the records with those of a key in one task, by offset. Those of a lease with blocked keys are by key
    already, and are not shuffled again.
    """
    by_key = _by_key(records)
    if _last_shuffle(records) == _last_shuffle(by_key):
        by_key = records
    return by_key.sortWithinPartitions("lease_id", "offset")


def _last_shuffle(records: DataFrame) -> str | None:
    """Return the expressions of the shuffle that has put these records into their tasks; None if something other than
    a filter or a selection came after it. The expressions name columns by Spark's ids: a column that was computed
    anew is another one.
    """
    plan: Any = records._jdf.queryExecution().analyzed()
    while plan.nodeName() in ("Project", "Filter"):
        plan = plan.child()
    return str(plan.partitionExpressions()) if plan.nodeName() == "RepartitionByExpression" else None


def _by_key(records: DataFrame) -> DataFrame:
    """Shuffle records by key, to a task for each core: a session's number of shuffle tasks is for small results."""
    session = records.sparkSession
    tasks = max(
        session.sparkContext.defaultParallelism, int(str(session.conf.get("spark.sql.shuffle.partitions")))
    )
    return records.repartition(tasks, *map(fn.expr, BY_KEY))


@dataclass(frozen=True, slots=True)
class Offered:
    """The records that a handler gets, and rows for those that wait for a record outside the lease."""

    records: DataFrame
    held: DataFrame | None = None

    def with_held(self, handled: DataFrame) -> DataFrame:
        """Return the handler's result, with a row for each held record."""
        return handled if self.held is None else handled.unionByName(self.held, allowMissingColumns=True)


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """The order of some leases: the keys of each lease that an open record outside it blocks, by lease id."""

    blocked: Mapping[int, BlockedKeys]

    @classmethod
    def of(cls, state: State, leases: Sequence[Lease], configs: GroupConfigs) -> Self | None:
        """Return the order of leases; None if their group was not ordered when they were acquired. Without a lease,
        `configs` decides.
        """
        if not leases:
            return cls({}) if configs.ordered else None
        by_token = {lease.token: lease.lease_id for lease in leases if lease.ordered}
        if not by_token:
            return None
        found = state.blocked_keys(configs.group_id, list(by_token))
        return cls({by_token[token]: blocked for token, blocked in found.items()})

    def firsts(self, leases: Sequence[Lease]) -> pa.Table:
        """Return the blocked keys of these leases: `BY_LEASE, KEY, FIRST`."""
        of = {
            lease.lease_id: self.blocked[lease.lease_id] for lease in leases if lease.lease_id in self.blocked
        }
        ids = [at for at, blocked in of.items() for _ in blocked.hashes]
        keys = [key.hex for blocked in of.values() for key in blocked.hashes]
        firsts = [first for blocked in of.values() for first in blocked.first_offsets]
        columns = pa.array(ids, pa.int64()), pa.array(keys, pa.string()), pa.array(firsts, pa.int64())
        return pa.table(dict(zip((BY_LEASE, KEY, FIRST), columns, strict=True)))

    def offered(self, records: DataFrame, leases: Sequence[Lease]) -> Offered:
        """Return the records of these leases that a handler gets."""
        firsts = self.firsts(leases)
        if not firsts.num_rows:
            return Offered(hashed(records))
        shared = _read_once(_by_key(_marked(records, firsts)))
        names = [*KEPT_COLUMNS, KEY_HASH, f"'{HOLD}' as outcome", "cast(null as string) as error"]
        return Offered(_in_turn(shared), shared.where(_HELD).selectExpr(*names))

    def in_turn(self, records: DataFrame, leases: Sequence[Lease]) -> DataFrame:
        """Return the records of these leases that wait for none outside them."""
        firsts = self.firsts(leases)
        return _in_turn(_marked(records, firsts)) if firsts.num_rows else hashed(records)


def _marked(records: DataFrame, firsts: pa.Table) -> DataFrame:
    waits = fn.expr(f"coalesce(offset > {FIRST}, false)")
    return with_firsts(hashed(records), firsts).withColumn(_HELD, waits).drop(FIRST)


def _in_turn(marked: DataFrame) -> DataFrame:
    return marked.where(f"not {_HELD}").drop(_HELD)


def with_firsts(rows: DataFrame, firsts: pa.Table) -> DataFrame:
    """Return the rows with the offset for which their key waits in the column `sharequeue_first`, or null."""
    given = fn.broadcast(rows.sparkSession.createDataFrame(firsts))
    same = (rows["lease_id"] == given[BY_LEASE]) & (rows[KEY_HASH] == given[KEY])
    return rows.join(given, same, "left").drop(BY_LEASE, KEY)


def _read_once(shuffled: DataFrame) -> DataFrame:
    """Return the shuffled rows so that all parts of a plan that read them share one shuffle.

    Spark reuses a shuffle only if its plan is the same everywhere. Its optimizer would move each reader's own filter
    and columns below it. It moves nothing below a filter that is not deterministic, and keeps the columns that this
    one names; the hash is never computed.
    """
    names = ", ".join(f"`{name}`" for name in shuffled.columns)
    return shuffled.where(f"spark_partition_id() >= 0 or hash({names}) = 0")
