"""The pipeline of the ledger of results in topics, for `sharequeue run … --follow`: it dies as its environment plans.

A record is `{"number": n, "fails": k, "rejected": b}`: released k times, rejected, or accepted, and then it is two
rows with its key. The second queue of a chain reads these rows, which have the same fields.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from sharequeue.deadletters import outbox
from sharequeue.kafka import transactions
from sharequeue.spark import KafkaTopic, lease_results, pipeline
from sharequeue.spark import session as session_module
from sharequeue.spark.outcomes.acknowledging import acknowledge_all
from sharequeue.spark.sinks import transfers
from sharequeue.spark.sinks.kafka import topic as topic_module
from sharequeue.spark.sinks.kafka.sending import TopicSender
from tests.deep.deaths import Deaths

GROUP, SOURCE, TARGET = (os.environ[f"TOPIC_{name}"] for name in ("GROUP", "SOURCE", "TARGET"))
SUBJECT = os.environ.get("TOPIC_SUBJECT")
ROWS = 2
CLAIM_S = 4.0
PART_BYTES = 2_000
"""The size of a transaction, with its headers: some ten records."""

deaths = Deaths.parse(os.environ["TOPIC_DEATHS"])
outbox.TRANSACTION_BYTES, outbox.PRODUCED_STEP = PART_BYTES, ROWS
transactions.TRANSACTION_TIMEOUT_MS = int(os.environ.get("TOPIC_TRANSACTION_MS", "60000"))
transfers.CLAIM_SECONDS = transfers._WAIT_SECONDS = CLAIM_S
topic_module.TopicSender = partial(TopicSender, on_step=deaths)  # type: ignore[attr-defined, assignment]


def acknowledge(*given: Any) -> Any:
    """Acknowledge the leases of a round."""
    deaths("acknowledging")
    done = acknowledge_all(*given)
    deaths("acknowledged")
    return done


# Several drivers at once, whose heaps would grow to a quarter of the machine's memory each.
session_module._driver_memory = lambda: "1g"
lease_results.acknowledge_all = acknowledge  # type: ignore[attr-defined, assignment]


def handle(records: DataFrame) -> DataFrame:
    """Do what the records say."""
    deaths("handling")
    kept = ["topic", "partition", "offset", "lease_id"]
    kept += ["key_hash"] if "key_hash" in records.columns else []
    told = fn.from_json(fn.col("value").cast("string"), "number int, fails int, rejected boolean")
    rows = records.select(*kept, "delivery_count", fn.col("key").alias("of_key"), told.alias("told"))
    outcome = (
        fn.when(fn.col("told.rejected"), "reject")
        .when(fn.col("delivery_count") <= fn.col("told.fails"), "release")
        .otherwise("accept")
    )
    row = fn.explode(fn.sequence(fn.lit(0), fn.lit(ROWS - 1))).alias("row")
    # What the second queue of a chain does with a row of the first.
    later = fn.when(fn.col("told.number") % 37 == fn.col("row"), 1).otherwise(0)
    wrong = (fn.col("told.number") % 29 == 7) & (fn.col("row") == 1)
    rows = rows.withColumn("outcome", outcome).select("*", row)
    number = fn.col("told.number").cast("long")
    if SUBJECT:
        # The schema has an int.
        number += fn.when((fn.col("told.number") % 53 == 5) & (fn.col("row") == 1), 2**40).otherwise(0)
    value = fn.struct(number.alias("number"), "row", later.alias("fails"), wrong.alias("rejected"))
    return rows.select(*kept, "of_key", (value if SUBJECT else fn.to_json(value)).alias("made"), "outcome")


work = pipeline(
    group=GROUP,
    topics=[SOURCE],
    sink=GROUP,
    deliveries_per_run=20,
    failed_share=None,
    destination=KafkaTopic(
        TARGET,
        key="of_key",
        value="made",
        value_subject=SUBJECT,
        on_step=lambda step: deaths(f"transfer {step}"),
    ),
)(handle)
