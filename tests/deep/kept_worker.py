"""A driver of the ledger of kept records: `python -m tests.deep.kept_worker <a Life as JSON>`. It dies as planned.

Two groups work side by side in it, on one topic: `rows`, whose handler sees one record at a time and writes down what
it gets, and `frames`, whose handler selects its columns, with or without the raw record. A value begins with what
becomes of its record.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.util import inheritable_thread_target

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.kafka.topics import Topics
from sharequeue.spark import (
    KafkaTopic,
    ParquetByLease,
    PostgresTable,
    Reject,
    Release,
    by_row,
    kept_records,
    lease_results,
    session,
    spark_session,
)
from sharequeue.spark import round as round_module
from sharequeue.spark.handler import RAW, Handler
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.kept_records import KeptFiles
from sharequeue.spark.output.lease_files import LeaseFiles
from sharequeue.spark.reading import kept as reading_kept
from sharequeue.spark.run import run_rounds
from sharequeue.spark.sinks.interface import Sink
from sharequeue.state import State
from sharequeue.state.kept import Kept
from tests.deep.deaths import Deaths
from tests.fixtures.lakes import lake_sink
from tests.fixtures.pipelines import Holder, job_of

MOST = 150
"""Records of a round."""
PARTITIONS = 2
FIRST = "{:08d} {:02d} {:d} "
"""What a value begins with: the number of its record, how often it is released, and whether it is rejected."""
COLUMNS = "number int, deliveries int, content string"
CONTENT = (
    "concat_ws(' ', coalesce(hex(key), '-'), hex(value),"
    " concat_ws(',', transform(headers, each -> concat(each.key, '=', coalesce(hex(each.value), '-')))),"
    " cast(unix_micros(timestamp) as string), cast(timestamp_type as string))"
)
Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Life:
    """What a driver works on, and when it dies."""

    settings: Mapping[str, Any]
    """Of `Settings.load`."""
    conf: Mapping[str, str]
    """Spark's."""
    topic: str
    kind: str
    """Of the sink."""
    targets: Mapping[str, str]
    """The groups, and the tables or topics of those that have one."""
    with_raw: bool
    """Whether `frames` passes on the raw record."""
    deliveries_per_run: int
    deaths: str
    folder: str


def content_of(key: bytes | None, value: bytes, headers: Headers, micros: int, timestamp_type: int) -> str:
    """Return all that a record has, as `CONTENT` does."""
    said = ",".join(f"{name}={'-' if of is None else of.hex().upper()}" for name, of in headers)
    return (
        f"{'-' if key is None else key.hex().upper()} {value.hex().upper()} {said} {micros} {timestamp_type}"
    )


def told(value: bytes) -> tuple[int, int, bool]:
    """Return what a value begins with."""
    number, fails, rejected = value[:13].decode().split()
    return int(number), int(fails), rejected == "1"


def rows(ledger: str) -> Handler:
    """Return the handler of `rows`, which writes a line for each record that it gets."""

    def row(record: dict[str, Any]) -> dict[str, Any]:
        value = bytes(record["value"])
        number, fails, rejected = told(value)
        key = None if record["key"] is None else bytes(record["key"])
        headers = [
            (each["key"], None if each["value"] is None else bytes(each["value"]))
            for each in record["headers"] or ()
        ]
        micros = (record["timestamp"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        content = content_of(key, value, headers, micros, record["timestamp_type"])
        deliveries = record["delivery_count"]
        line = json.dumps([number, deliveries, record["lease_id"], content]) + "\n"
        file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(file, line.encode())
        os.close(file)
        if rejected:
            raise Reject("wrong")
        if deliveries <= fails:
            raise Release("later")
        return {"number": number, "deliveries": deliveries, "content": content}

    return by_row(row, COLUMNS)


def frames(with_raw: bool) -> Handler:
    """Return the handler of `frames`."""

    def frame(records: DataFrame) -> DataFrame:
        first = "split(cast(substring(value, 1, 13) as string), ' ')"
        outcome = (
            "if(first[2] = '1', 'reject', if(delivery_count <= cast(first[1] as int), 'release', 'accept'))"
        )
        made = [
            *("cast(first[0] as int) as number", "delivery_count as deliveries"),
            *(f"{CONTENT} as content", f"{outcome} as outcome"),
        ]
        raw = [RAW] if with_raw and RAW in records.columns else []
        return records.selectExpr("*", f"{first} as first").selectExpr(
            "topic", "partition", "offset", "lease_id", *raw, *made
        )

    return frame


def watch(
    owner: Any, name: str, step: Callable[[str], None], before: str = "", after: str = "", **when: Any
) -> None:
    """Have a function say that it begins (`before`), or that it is done (`after`): `when` a function of what it is
    given, or of what it returns, says so."""
    whole = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        if before and when.get("given", lambda *_: True)(*given):
            step(before)
        done = whole(*given, **named)
        if after and when.get("done", lambda _: True)(done):
            step(after)
        return done

    setattr(owner, name, call)


def watch_all(step: Callable[[str], None]) -> None:
    """Have all places of interest name themselves."""
    for name in ("acknowledge_all", "acknowledge"):
        watch(lease_results, name, step, "acknowledging", "acknowledged")
    watch(LeaseFiles, "write", step, after="kept written", done=lambda written: bool(written.kept))
    watch(KeptFiles, "records", step, "reading kept", given=lambda files, leases, kept: bool(kept.rows))
    watch(round_module, "keep_scanned", step, after="scanned kept", done=lambda kept: bool(kept[1]))
    watch(kept_records, "remove_lease", step, "removing kept")
    watch(Kept, "drop", step, "dropping kept", given=lambda kept, group, ids: bool(list(ids)))


def job(life: Life, group: str, step: Callable[[str], None]) -> ShareGroupJob:
    """Return the job of a group."""
    handler = rows(f"{life.folder}/ledger") if group.startswith("rows") else frames(life.with_raw)

    def handle(records: DataFrame) -> DataFrame:
        step("handling")
        return handler(records)

    # A lake's own step `acknowledged` also comes when it is opened.
    def transfer(name: str) -> None:
        step(f"transfer {name}")

    target = life.targets[group]
    sink: Sink = ParquetByLease()
    if life.kind == "postgres":
        sink = PostgresTable(target, on_step=transfer)
    elif life.kind == "topic":
        sink = KafkaTopic(target, value="to_json", on_step=transfer)
    elif life.kind in ("delta", "iceberg"):
        sink = lake_sink(life.kind, target, transfer)
    of_run = life.deliveries_per_run
    return job_of(group, life.topic, handle, destination=sink, deliveries_per_run=of_run, failed_share=None)


def work(
    settings: Settings, life: Life, spark: SparkSession, group: str, step: Callable[[str], None]
) -> None:
    """Run the job of a group to its end."""
    holder = Holder([SharePartition(group, life.topic, at) for at in range(PARTITIONS)], f"driver-{group}")
    with Database.open(settings) as database, Topics(settings) as topics:
        run_rounds(
            settings,
            job(life, group, step),
            membership=holder,
            state=State(database),
            topics=topics,
            spark=spark,
            max_records=MOST,
        )


def main() -> None:
    """Run both groups until the death comes."""
    life = Life(**json.loads(sys.argv[1]))
    deaths = Deaths.parse(life.deaths)
    steps = os.open(f"{life.folder}/steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def step(name: str) -> None:
        os.write(steps, f"{name}\n".encode())
        deaths(name)

    reading_kept.LARGE = 0
    session._driver_memory = lambda: "1g"
    watch_all(step)
    settings = Settings.load(**life.settings)
    spark = spark_session(settings, "killed", life.conf)
    step("started")
    with ThreadPoolExecutor(len(life.targets)) as pool:
        both = [
            pool.submit(inheritable_thread_target(spark)(work), settings, life, spark, group, step)
            for group in life.targets
        ]
        for each in both:
            each.result()


if __name__ == "__main__":
    main()
