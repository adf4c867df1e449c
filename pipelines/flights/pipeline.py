"""The handler of the demo's share group, and its summary of delays.

A flight that arrived is accepted. A flight without a departure time was cancelled: it is rejected, and becomes a dead
letter at once. A flight that departed but has no arrival delay is released, because the arrival report may still
come, and becomes a dead letter when its deliveries are used up. A record that is not a flight is rejected with the
reason.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from pipelines.flights.records import TOPIC
from sharequeue.spark import Summary, pipeline
from sharequeue.spark.formats import json
from sharequeue.spark.handler import ACCEPT, RAW, REJECT, RELEASE

GROUP = "flight-delays"
CANCELLED = "cancelled: no departure time"
NO_ARRIVAL = "the arrival report may still come"
DELAYED_MINUTES = 15
"""A flight is delayed from this many minutes on, by the definition of the US Bureau of Transportation Statistics.
"""

_TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")
_NAMES = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time",
    "arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute",
    "time_hour",
)  # fmt: skip
FLIGHT = StructType([StructField(name, StringType() if name in _TEXTS else IntegerType()) for name in _NAMES])
REQUIRED = ("year", "month", "day", "carrier", "flight", "origin", "dest", "sched_dep_time")
"""Columns that every flight must have."""
_NAMED = ", ".join(f"if(value.{name} is null, '{name}', null)" for name in REQUIRED)
_ABSENT = (
    f"if({' or '.join(f'value.{name} is null' for name in REQUIRED)},"
    f" concat('not a flight: without ', concat_ws(', ', {_NAMED})), null)"
)
"""The missing columns of a record that is not a flight, in SQL; null for a flight."""


def delays_by_carrier_and_day(accepted: DataFrame) -> DataFrame:
    """Return partial sums by lease: flights, delayed flights and total arrival delay (minutes) of each carrier and
    day.
    """
    return accepted.groupBy("lease_id", "carrier", fn.make_date("year", "month", "day").alias("day")).agg(
        fn.count("*").alias("flights"),
        fn.count_if(fn.col("arr_delay") >= DELAYED_MINUTES).alias("delayed_flights"),
        fn.sum(fn.col("arr_delay").cast("long")).alias("arrival_delay_minutes"),
    )


def merged_delays(partials: DataFrame) -> DataFrame:
    """Return the summary from the partial sums of all leases that count: one row for each carrier and day."""
    return (
        partials.groupBy("carrier", "day")
        .agg(*(fn.sum(name).alias(name) for name in ("flights", "delayed_flights", "arrival_delay_minutes")))
        .withColumn("mean_arrival_delay_minutes", fn.col("arrival_delay_minutes") / fn.col("flights"))
        .orderBy("carrier", "day")
    )


DELAYS = Summary("delays", delays_by_carrier_and_day)


@pipeline(
    group=GROUP,
    topics=(TOPIC,),
    sink="flights",
    summaries=(DELAYS,),
    headers=False,
    # As many as the group allows: the demo shows in one run what otherwise takes five.
    deliveries_per_run=5,
)
def flight_delays(records: DataFrame) -> DataFrame:
    """Parse and validate the flights, and set an outcome for each."""
    # A flight that waits for its arrival report is kept with it, if the group keeps records.
    raw = [name for name in (RAW,) if name in records.columns]
    flights = json(records, FLIGHT).selectExpr(
        "topic",
        "partition",
        "offset",
        "lease_id",
        "delivery_count",
        "timestamp",
        "value.*",
        *raw,
        f"coalesce(error, {_ABSENT}) as reason",
    )
    outcome = (
        f"case when reason is not null or dep_time is null then '{REJECT}'"
        f" when arr_delay is null then '{RELEASE}' else '{ACCEPT}' end"
    )
    error = (
        "case when reason is not null then reason"
        f" when dep_time is null then '{CANCELLED}' when arr_delay is null then '{NO_ARRIVAL}' end"
    )
    return flights.selectExpr("* except (reason)", f"{outcome} as outcome", f"{error} as error")
