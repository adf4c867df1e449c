"""Tables of Delta and Iceberg through everything that a table does by age: each record stays there once.

Checkpoints of the log and its clean-up, compaction, vacuum, expiry of snapshots, rewritten manifests.
`deep_spark_versions.py` repeats this file with each series of Spark that has jars of both.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.fixtures.lakes import RECORDS, Lake, once
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1500)]

AGED = {
    "delta": (
        "optimize delta.`{name}`",
        "alter table delta.`{name}` set tblproperties ('delta.checkpointInterval' = '2',"
        " 'delta.logRetentionDuration' = 'interval 0 seconds',"
        " 'delta.deletedFileRetentionDuration' = 'interval 0 seconds')",
        "vacuum delta.`{name}`",
        "alter table delta.`{name}` set tblproperties ('delta.checkpointPolicy' = 'v2')",
        "alter table delta.`{name}` set tblproperties ('delta.enableDeletionVectors' = 'true')",
        "delete from delta.`{name}` where `offset` = 0 and partition = 0",
        "reorg table delta.`{name}` apply (purge)",
    ),
    "iceberg": (
        "call {catalog}.system.rewrite_data_files(table => 'db.orders', options => map('min-input-files', '2'))",
        "call {catalog}.system.rewrite_manifests('db.orders')",
        "call {catalog}.system.expire_snapshots(table => 'db.orders', older_than => timestamp '2999-01-01',"
        " retain_last => 1)",
        "alter table {name} set tblproperties ('write.metadata.delete-after-commit.enabled' = 'true',"
        " 'write.metadata.previous-versions-max' = '2', 'write.delete.mode' = 'merge-on-read')",
        "delete from {name} where `offset` = 0 and partition = 0",
        "call {catalog}.system.rewrite_position_delete_files('db.orders')",
    ),
}


@pytest.mark.parametrize("lake", ["delta", "iceberg"], indirect=True)
def test_a_table_of_any_age_takes_each_record_once(
    lake: Lake, lake_topic: str, group: str, assigned: Assigned, produce: Produce, run_job: RunJob
) -> None:
    """Twenty commits, then everything that a table does by age, each followed by more commits, as by another process
    that knows nothing of the table yet."""
    lake.create()
    holder = assigned(lake_topic)
    job = job_of(group, lake_topic, all_accepted, destination=lake.sink())
    assert len(run_job(job, holder, max_records=4).rounds) >= 20
    assert lake.found() == once()
    lake.spark.conf.set("spark.databricks.delta.vacuum.parallelDelete.enabled", "false")
    expected, records = once(), RECORDS
    for statement in AGED[lake.kind]:
        lake.spark.sql(statement.format(name=lake.name, catalog=lake.name.partition(".")[0])).collect()
        if statement.startswith("delete"):
            del expected[0, 0]
        if lake.kind == "delta":
            jvm: Any = lake.spark._jvm
            jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        for _ in range(3):
            produce(lake_topic, 0, ["more"])
            expected += Counter([(0, records)])
            records += 1
            run_job(job, holder)
        assert lake.found() == expected, statement
