"""P31: order by key, beside the same work without an order.

P31: flights to Parquet, each accepted; each key has two flights. First nothing has failed; then ten thousand keys
wait for a flight that failed before, and their second flights, which are leased, are held. Without an order, the
failed flights alone wait.

P31b: acquire and acknowledge, as a worker calls them, of a share-partition in which every tenth of the records before
has failed and waits. Under `key`, each is of a key of its own, and the worker also asks which keys are blocked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from itertools import product
from uuid import UUID

import numpy as np
import sqlalchemy as sa
from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from benchmarks.database import ALL_LOCKS, server, settle
from benchmarks.harness import Side, Table, case, in_turn, median, number, say, seconds, side_table
from benchmarks.stack import PARTITIONS, Holder, Stages, jobs, spent_note, stack
from pipelines.flights.pipeline import FLIGHT
from pipelines.flights.producer import CHUNK, TOPIC_CONFIGS
from pipelines.flights.records import records_of
from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.record_bytes import key_hash
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, Lease, LogSeen, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.spark import pipeline
from sharequeue.spark.formats import json
from sharequeue.spark.handler import KEPT_COLUMNS
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement

TOPIC = "flights-by-key"
NONE, KEY = "none", "key"
WAIT = timedelta(hours=1)
"""How long the records wait that have failed before: longer than a case."""
ORDER = "sharequeue.order"


def accept_flights(records: DataFrame) -> DataFrame:
    """Parse the flights, and accept each; keep the hash of the key where there is one."""
    kept = [name for name in (*KEPT_COLUMNS, "key_hash") if name in records.columns]
    return json(records, FLIGHT).select(*kept, "timestamp", "value.*").withColumn("outcome", fn.lit("accept"))


def key_of(number: int, keys: int) -> bytes:
    """Return the key of a flight; all of a key are in one partition."""
    return b"%d" % (number % keys)


def produce(settings: Settings, records: int, keys: int) -> None:
    """Produce flights with so many keys, in turn."""
    assert keys % PARTITIONS == 0, f"keys={keys}: expected a multiple of {PARTITIONS}"
    with Topics(settings) as topics:
        topics.create(TOPIC, PARTITIONS, TOPIC_CONFIGS)
    producer = Producer(
        client_config(settings, linger_ms=50, queue_buffering_max_messages=200_000, enable_idempotence=True)
        | {"compression.type": "lz4", "delivery.report.only.error": True, "log_level": 3}
    )
    for start in range(0, records, CHUNK):
        chosen = np.arange(min(CHUNK, records - start))
        for at, (value, _, timestamp) in enumerate(records_of(start, chosen), start):
            producer.produce(TOPIC, value, key_of(at, keys), partition=at % PARTITIONS, timestamp=timestamp)
        assert producer.flush(120) == 0


def release(
    state: State, at: SharePartition, records: int, failed: OffsetSet, key: Callable[[int], bytes] | None
) -> None:
    """Lease the next records, release the failed ones for an hour, with their keys if there are any, and accept all
    others."""
    (lease,) = state.acquire([at], "member", None, records, lock_duration_ms=60_000).leases
    assert lease.offsets.count == records
    keys: dict[UUID | None, OffsetSet] = {}
    if key is not None:
        keys = {key_hash(key(each)): OffsetSet.of((each, each + 1)) for each in failed.iter_offsets()}
    outcomes = {AcknowledgeType.RELEASE: failed, AcknowledgeType.ACCEPT: lease.offsets - failed}
    (done,) = state.acknowledge(
        [LeaseAcknowledgement(lease, outcomes, not_before=state.now() + WAIT, keys=keys)]
    )
    assert not isinstance(done, Exception), done


def with_failed(settings: Settings, order: str, failed: int, keys: int, holder: Holder) -> None:
    """Set a group's order; release the first flights of each partition."""
    each = failed // PARTITIONS
    with Database.open(settings) as database:
        alter_group_configs(database, holder.group, {ORDER: order})
        for at in holder.assignment if each else ():

            def key(offset: int, partition: int = at.partition) -> bytes:
                return key_of(offset * PARTITIONS + partition, keys)

            state = State(database)
            state.observe([LogSeen(at, topic_id_of(settings), 0, each, each)])
            release(state, at, each, OffsetSet.of((0, each)), key if order == KEY else None)


def topic_id_of(settings: Settings) -> str:
    """Return the id of the topic."""
    with Topics(settings) as topics:
        return topics.describe([TOPIC])[TOPIC].topic_id


@case(
    "P31",
    "`key` ≥ 0.75 × as fast as `none`; with 10⁴ keys that wait ≥ 0.6 ×",
    records=400_000,
    keys=200_000,
    failed=2_000,
    rounds=2,
)
def order_by_key(
    records: int = 2_000_000, keys: int = 1_000_000, failed: int = 10_000, rounds: int = 5
) -> Iterator[Table]:
    """Compare a job on flights under order by key with the same without an order."""
    stages: dict[str, Stages] = {}
    with stack() as settings:
        say(f"producing {records:,} flights")
        produce(settings, records, keys)
        with jobs(settings) as job:
            handler = pipeline(group="flights", topics=(TOPIC,), sink="flights", headers=False)(
                accept_flights
            )

            def leased(order: str, waiting: int) -> float:
                held = waiting * (records // keys - 1) if order == KEY else 0
                return job.leased(
                    handler,
                    TOPIC,
                    records,
                    records - waiting - held,
                    stages.setdefault(f"{order}, {waiting:,} wait", {}),
                    prepare=partial(with_failed, settings, order, waiting, keys),
                )

            for waiting in (0, failed):
                sides: dict[str, Side] = {order: partial(leased, order, waiting) for order in (NONE, KEY)}
                measured = in_turn(sides, rounds, after=job.empty)
                notes = [f"{name}: {spent_note(each)}" for name, each in stages.items()]
                title = f"{records:,} flights of {keys:,} keys, of which {waiting:,} wait for a failed flight"
                yield side_table(measured, NONE, records, title, notes)
                stages.clear()


class Worker:
    """Accepts batches of one share-partition, and measures its calls."""

    def __init__(self, database: Database, group: str, order: str, failed: int, batch: int) -> None:
        self.state, self.order, self.batch = State(database), order, batch
        self.at = SharePartition(group, f"topic-of-{group}", 0)
        self.spent: dict[str, list[float]] = {}
        with database.transaction() as connection:
            connection.execute(
                sa.text("insert into sharequeue.share_groups (group_id) values (:group)"), {"group": group}
            )
        alter_group_configs(
            database,
            group,
            {
                "share.partition.max.record.locks": ALL_LOCKS,
                ORDER: order,
                "sharequeue.order.max.open.keys": 2 * failed + 1,
            },
        )
        self.state.initialize(self.at, "id", 0, 1)
        self.state.observe([LogSeen(self.at, "id", 0, 10**12, 10**12)])
        if failed:
            some = OffsetSet.from_offsets(range(0, 10 * failed, 10))
            key = (lambda offset: b"%d" % offset) if order == KEY else None
            release(self.state, self.at, 10 * failed, some, key)

    def step(self) -> float:
        """Accept one batch; return the seconds."""
        leases: list[Lease] = []

        def acquire() -> None:
            leases.extend(self.state.acquire([self.at], "member", None, self.batch).leases)

        def blocked() -> None:
            self.state.blocked_keys(self.at.group_id, [lease.token for lease in leases])

        def acknowledge() -> None:
            outcomes = {AcknowledgeType.ACCEPT: leases[0].offsets}
            (done,) = self.state.acknowledge([LeaseAcknowledgement(leases[0], outcomes)])
            assert not isinstance(done, Exception), done

        taken = {
            name: seconds(call)
            for name, call in {
                "acquire": acquire,
                "blocked keys": blocked,
                "acknowledge": acknowledge,
            }.items()
        }
        for name, figure in taken.items():
            self.spent.setdefault(name, []).append(figure)
        return taken["acquire"] + taken["acknowledge"]


@case(
    "P31b",
    "acquire and acknowledge with 10⁵ open keys ≤ 2 × the time without an order",
    failed=10_000,
    steps=50,
)
def order_in_the_state(
    failed: int = 100_000, steps: int = 300, batches: tuple[int, ...] = (500, 100_000)
) -> Iterator[Table]:
    """Compare the calls of a worker under order by key with the same calls without an order."""
    for batch in batches:
        with ExitStack() as closing:
            url = closing.enter_context(server())
            workers = {
                f"{order}, {waiting:,} wait": Worker(
                    closing.enter_context(Database(url, pool_size=1)), f"g{at}", order, waiting, batch
                )
                for at, (waiting, order) in enumerate(product((0, failed), (NONE, KEY)))
            }
            settle(url)
            measured = in_turn({name: worker.step for name, worker in workers.items()}, steps)
        calls = ("acquire", "blocked keys", "acknowledge")
        rows = []
        for name, figures in measured.items():
            spent = [number(median(workers[name].spent[call][1:]) * 1000) for call in calls]
            bases = (measured[f"{NONE}, {waiting:,} wait"] for waiting in (0, failed))
            ratios = [f"{median(figures) / median(base):.2f}" for base in bases]
            rows.append((name, *spent, *ratios))
        headings = ("side", *(f"{call}, ms" for call in calls), "× none, 0 wait", f"× none, {failed:,} wait")
        yield Table(
            headings,
            rows,
            f"batches of {batch:,} records, median of {steps}; the ratios without blocked keys",
        )
