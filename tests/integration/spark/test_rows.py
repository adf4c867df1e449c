"""A Python function that is given record by record: what it raises is the outcome of that record alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.row_handlers import Reject, Release, by_row
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob, job_of
from tests.fixtures.stack import MakeTopic

NINE = datetime(2100, 1, 1, 9, tzinfo=UTC)
COLUMNS = "name string, amount int"


def order(record: dict[str, Any]) -> Mapping[str, Any] | None:
    """An order as JSON; each way a function may end is asked for by name."""
    text = record["value"].decode()
    if text == "leave out":
        return None
    if text == "too early":
        raise Release("the shop is closed", not_before=NINE)
    if text == "stop":
        sys.exit(0)
    if text == "not ours":
        raise Reject("another shop's")
    parsed: Mapping[str, Any] = json.loads(text)
    return parsed


VALUES = [
    '{"name": "tea", "amount": 2}',
    "no json",
    "too early",
    "not ours",
    "leave out",
    '{"name": "milk", "amount": "much"}',
    '{"name": "bread", "colour": "brown"}',
    '{"name": "salt"}',
    "stop",
]


def handled(spark: SparkSession, on_error: str = "release") -> list[Row]:
    records = spark.createDataFrame(
        [("orders", 0, offset, 7, bytearray(value, "utf-8")) for offset, value in enumerate(VALUES)],
        "topic string, partition int, offset long, lease_id long, value binary",
    )
    result: DataFrame = by_row(order, COLUMNS, on_error=on_error)(records)
    return result.orderBy("offset").collect()


def test_an_exception_of_the_function_is_the_outcome_of_its_record(spark: SparkSession) -> None:
    """Class and message are the error; a value that does not fit its column, or a name that was not declared, fails
    its record too; a record left out has no row."""
    found = {
        row["offset"]: (row["name"], row["amount"], row["outcome"], row["error"]) for row in handled(spark)
    }
    assert found[0] == ("tea", 2, "accept", None)
    assert found[1] == (None, None, "release", "JSONDecodeError: Expecting value: line 1 column 1 (char 0)")
    assert found[2] == (None, None, "release", "Release: the shop is closed")
    assert found[3] == (None, None, "reject", "Reject: another shop's")
    assert 4 not in found
    assert found[5][:3] == (None, None, "release")
    assert found[5][3].startswith("column amount: ")
    assert found[6] == (None, None, "release", "KeyError: 'colour not declared among the columns'")
    assert found[7] == ("salt", None, "accept", None)
    assert found[8] == (None, None, "release", "SystemExit: 0")


def test_a_time_not_before_goes_with_the_release(spark: SparkSession) -> None:
    """Only that record has one; a time without a zone is refused where it is written."""
    times = {row["offset"]: row["not_before"] for row in handled(spark) if row["not_before"]}
    assert {offset: time.astimezone(UTC) for offset, time in times.items()} == {2: NINE}
    with pytest.raises(ValueError, match="has no time zone"):
        Release("later", not_before=NINE.replace(tzinfo=None))


def test_on_error_decides_about_all_other_exceptions(spark: SparkSession) -> None:
    """`on_error` decides for all but `Reject` and `Release`."""
    outcomes = {row["offset"]: row["outcome"] for row in handled(spark, on_error="reject")}
    assert (outcomes[1], outcomes[2], outcomes[5]) == ("reject", "release", "reject")


def test_a_record_that_fails_leaves_its_neighbours_accepted(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
) -> None:
    """Through Kafka and the state: accepted orders are in the sink, the others among the exceptions, with why."""
    topic = make_topic(1)
    produce(topic, 0, VALUES)
    job = job_of(group, topic, by_row(order, COLUMNS), without_row="accept")
    report = run_job(job, assigned(topic), max_rounds=1)
    assert (report.accepted, report.released, report.rejected) == (3, 5, 1)
    assert state.figures.describe(group)[0].waiting == 1
    names = [row["name"] for row in read_output(spark, state, group, job.sink).orderBy("offset").collect()]
    assert names == ["tea", "salt"]
    errors = read_output(spark, state, group, job.exceptions_sink).orderBy("offset").collect()
    assert [row["error"].split(":")[0] for row in errors] == [
        "JSONDecodeError",
        "Release",
        "Reject",
        "column amount",
        "KeyError",
        "SystemExit",
    ]


def test_a_wrong_declaration_is_refused_before_anything_is_read(spark: SparkSession) -> None:
    """An outcome that does not exist, and a column that every result has anyway."""
    with pytest.raises(ValueError, match="'skip' is not an outcome: expected one of accept, release, reject"):
        by_row(order, COLUMNS, on_error="skip")
    with pytest.raises(ValueError, match="error, offset cannot be declared"):
        by_row(order, "offset long, error string")(spark.range(1).toDF("offset"))
