"""Payments and refunds become rows of a ledger, in the transaction that acknowledges them.

Two topics in one group: a refund is a payment with the opposite sign. An amount of 0 or less, another currency, and
a record that is not JSON are rejected. Only Catalyst expressions.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from sharequeue.spark import PostgresTable, pipeline
from sharequeue.spark.handler import ACCEPT, REJECT

GROUP = "ledger"
PAYMENTS, REFUNDS = "payments", "refunds"
TABLE = "accounting.ledger"
CURRENCY = "EUR"

_ENTRY = "account string, amount decimal(12, 2), currency string"


@pipeline(group=GROUP, topics=(PAYMENTS, REFUNDS), destination=PostgresTable(TABLE), headers=False)
def ledger(records: DataFrame) -> DataFrame:
    """Give each entry its sign, or the reason why it is rejected."""
    entry = fn.from_json(fn.col("value").cast("string"), _ENTRY)
    entries = records.select("topic", "partition", "offset", "lease_id", "timestamp", entry.alias("e"))
    error = (
        fn.when(fn.col("e.account").isNull() | fn.col("e.amount").isNull(), "not an entry of the ledger")
        .when(fn.col("e.amount") <= 0, "the amount is not above 0")
        .when(fn.col("e.currency") != CURRENCY, fn.concat(fn.lit("not in EUR but "), fn.col("e.currency")))
    )
    sign = fn.when(fn.col("topic") == REFUNDS, -1).otherwise(1)
    return entries.select(
        "topic",
        "partition",
        "offset",
        "lease_id",
        fn.col("timestamp").alias("booked_at"),
        fn.col("e.account").alias("account"),
        (fn.col("e.amount") * sign).cast("decimal(12, 2)").alias("amount"),
        fn.when(error.isNull(), ACCEPT).otherwise(REJECT).alias("outcome"),
        error.alias("error"),
    )
