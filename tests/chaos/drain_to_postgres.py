"""The process that a kill test kills: drains a share-partition into a table and ends at a chosen step by SIGKILL.

`python -m tests.chaos.drain_to_postgres` reads lines of `DATABASE_URL GROUP TOPIC TABLE LEASE_RECORDS STEP NTH
DELAY_MS` from its input, and forks a process for each (`forked_processes.serve`). It is killed at the NTH time that
STEP is reached (`start` is before anything, `never` is never), after DELAY_MS more. All but Spark is the real thing:
the rows are made here and not read from a topic, and the copy that Spark's tasks make is made by this process.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from sharequeue.database import Database
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, Lease, LeaseOutput, SharePartition
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.outcomes.acknowledging import acknowledge, to_send
from sharequeue.spark.outcomes.outcomes import Acknowledgement
from sharequeue.spark.sinks.interface import AcceptedRows, SinkContext
from sharequeue.spark.sinks.postgres.copy import LEASE, OFFSET
from sharequeue.spark.sinks.postgres.sink import PostgresTable
from sharequeue.state import State
from tests import single
from tests.chaos.forked_processes import serve

COLUMNS = (
    StructType()
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("lease_id", LongType())
    .add("text", StringType())
)
BATCH_RECORDS = 50


def rejected(offset: int) -> bool:
    """What never gets in."""
    return offset % 97 == 13


def released(offset: int, delivery_count: int) -> bool:
    """What gets in at its second delivery."""
    return offset % 11 == 5 and delivery_count == 1


def drain_or_die(
    database_url: str,
    group: str,
    topic: str,
    table: str,
    lease_records: str,
    fatal_step: str,
    nth: str,
    delay_ms: str,
) -> None:
    """Drain, unless dead before."""
    left = int(nth)

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def on_step(step: str) -> None:
        nonlocal left
        left -= step == fatal_step
        if step == fatal_step and left == 0:
            if int(delay_ms):
                threading.Timer(int(delay_ms) / 1000, die).start()
            else:
                die()

    settings = Settings.load(database_url=database_url)
    with Database.open(settings) as database:
        drain(settings, State(database), group, topic, table, int(lease_records), on_step)
    # A timer still running has nothing left to kill.
    os._exit(0)


def drain(
    settings: Settings,
    state: State,
    group: str,
    topic: str,
    table: str,
    lease_records: int,
    on_step: Callable[[str], None] = lambda step: None,
) -> None:
    """Lease, copy, acknowledge, until there is nothing to lease."""
    job = job_of(group, topic, table, on_step)
    assert isinstance(job.destination, PostgresTable)
    no_spark: Any = None
    with job.destination.open(SinkContext(settings, state, no_spark, job.names)) as sink:
        sink.staging.match(COLUMNS)
        on_step("start")
        while (
            lease := single.acquire(state, SharePartition(group, topic, 0), "drain", None, lease_records)
        ) is not None:
            outcomes, rows = _handled(lease)
            copier = sink.staging.copier([lease.lease_id])
            receipts = [row for batch in copier(_batches(lease, rows)) for row in batch.to_pylist()]
            sink.staging.take(tuple(row.values()) for row in receipts)
            accepted = AcceptedRows(lease, None, len(rows), len(rows))
            output = LeaseOutput(job.sink, sink.put(accepted), accepted.count)
            given = to_send(lease, outcomes, [output])
            acknowledge(state, given, partial(sink.transaction, rows=accepted))


def job_of(
    group: str, topic: str, table: str, on_step: Callable[[str], None] = lambda step: None
) -> ShareGroupJob:
    """The job of such a drain."""
    return ShareGroupJob(
        group, (topic,), lambda records: records, "table", destination=PostgresTable(table, on_step=on_step)
    )


def _handled(lease: Lease) -> tuple[Acknowledgement, list[int]]:
    outcomes: dict[AcknowledgeType, list[int]] = {kind: [] for kind in AcknowledgeType}
    for delivery in lease.deliveries:
        for offset in delivery.offsets.iter_offsets():
            if rejected(offset):
                outcomes[AcknowledgeType.REJECT].append(offset)
            elif released(offset, delivery.delivery_count):
                outcomes[AcknowledgeType.RELEASE].append(offset)
            else:
                outcomes[AcknowledgeType.ACCEPT].append(offset)
    sets = {kind: OffsetSet.from_runs(offsets, offsets) for kind, offsets in outcomes.items() if offsets}
    return Acknowledgement(sets, 0, EMPTY), sorted(outcomes[AcknowledgeType.ACCEPT])


def _batches(lease: Lease, offsets: list[int]) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(offsets), BATCH_RECORDS):
        some = pa.array(offsets[first : first + BATCH_RECORDS], pa.int64())
        lease_ids = pa.repeat(pa.scalar(lease.lease_id), len(some))
        columns = {
            LEASE: lease_ids,
            OFFSET: some,
            "topic": pa.repeat(pa.scalar(lease.share_partition.topic), len(some)),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), len(some)),
            "offset": some,
            "lease_id": lease_ids,
            "text": pc.binary_join_element_wise(
                pa.repeat(pa.scalar('record "of"'), len(some)), pc.cast(some, pa.string()), "\n"
            ),
        }
        yield pa.RecordBatch.from_pydict(columns)


if __name__ == "__main__":
    serve(drain_or_die)
