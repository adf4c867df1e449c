"""Many runs at once on one partition: each record goes to one of them."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.membership import Membership
from sharequeue.spark import lease
from sharequeue.state import State
from tests.fixtures.pipelines import Produce
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S

RUNS = 4
RECORDS = 4000
BY_LEASE = 500


def test_four_runs_drain_one_partition_together(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    service: str,
    settings: Settings,
    database: Database,
    state: State,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Four members of a group are all assigned the only partition, and hold leases of it at the same time. No offset
    is in two leases, every record is written once and accepted once, and nothing is left."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    alter_group_configs(
        database,
        group,
        {"share.auto.offset.reset": "earliest", "share.partition.max.record.locks": 10 * RECORDS},
    )
    folder = str(tmp_path / "output")
    all_hold_one = threading.Barrier(RUNS, timeout=PATIENCE_S)

    def drain(_: int) -> list[OffsetSet]:
        held: list[OffsetSet] = []
        with Membership(service, group, [topic]) as member:
            assert [sp.partition for sp in member.join()] == [0]
            while True:
                with lease(
                    group, [topic], max_records=BY_LEASE, settings=settings, spark=spark, membership=member
                ) as leased:
                    if not held:
                        all_hold_one.wait()
                    if not leased:
                        return held
                    (one,) = leased.leases
                    held.append(one.offsets)
                    accepted = leased.records.withColumn("outcome", fn.lit("accept"))
                    accepted.write.mode("append").parquet(f"{folder}/run={member.member_id}")
                    leased.acknowledge(f"{folder}/run={member.member_id}")

    with ThreadPoolExecutor(RUNS) as threads:
        runs = list(threads.map(drain, range(RUNS)))
    assert all(runs), "a run had nothing"
    together = EMPTY
    for offsets in (offsets for run in runs for offsets in run):
        assert not together & offsets, "leased twice"
        together |= offsets
    assert together == OffsetSet.of((0, RECORDS))
    written = spark.read.parquet(*(str(path) for path in Path(folder).iterdir())).select("offset", "lease_id")
    rows = written.collect()
    assert Counter(row["offset"] for row in rows) == dict.fromkeys(range(RECORDS), 1)
    assert len({row["lease_id"] for row in rows}) == sum(map(len, runs)) == RECORDS // BY_LEASE
    (status,) = state.figures.describe(group)
    assert (status.spso, status.lag, status.leases, status.acquired) == (RECORDS, 0, 0, 0)
    assert state.figures.verify(group) == []
