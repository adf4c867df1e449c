"""The trace of a record goes with it: through a handler, into a topic, into its letter, and back by a redrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.deadletters.letters import ORIGINAL_HEADER
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.deadletters.tracing import Tracer
from sharequeue.kafka.clients import client_config
from sharequeue.spark import KafkaTopic, Reject, by_row
from sharequeue.spark.handler import TRACE
from sharequeue.spark.sinks.kafka.records import RECORD, RecordColumns, TargetTopic, with_records
from sharequeue.spark.trace_headers import with_trace
from tests.fixtures.deadletters import GivenUp, execute
from tests.fixtures.pipelines import Holder, RunJob, job_of
from tests.fixtures.results import results_in
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S

TRACES = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 5)]
GIVEN = (TRACES[0], None, "no trace", TRACES[3])
"""The header of each record."""


def produce(case: GivenUp) -> None:
    producer = Producer(client_config(case.settings))
    for number, trace in enumerate(GIVEN):
        headers: list[tuple[str, str | bytes | None]] = [("kind", b"order")]
        headers += [("traceparent", trace.encode())] if trace else []
        producer.produce(case.topic, b"%d" % number, partition=0, headers=headers)
    assert producer.flush(PATIENCE_S) == 0


def rejecting(record: dict[str, Any]) -> dict[str, Any]:
    """Reject record 3; the row has nothing but the value."""
    assert TRACE not in record
    if record["offset"] == 3:
        raise Reject("not now")
    return {"note": bytes(record["value"]).decode()}


def passing_on(records: DataFrame) -> DataFrame:
    return records.withColumn("outcome", fn.lit("accept"))


def sent(case: GivenUp, target: str) -> dict[str, str | None]:
    """The trace of each result, by its value."""
    found = {}
    for each in results_in(case.settings, target):
        (trace, *more) = [value for name, value in each.headers if name == "traceparent"] or [None]
        assert not more
        found[(each.value or b"").decode()] = None if trace is None else trace.decode()
    return found


@pytest.mark.slow
def test_a_trace_goes_with_its_record_and_comes_back(
    given_up: Callable[..., GivenUp], make_topic: MakeTopic, run_job: RunJob
) -> None:
    """Into the topic, into the letter, and into the record that a redrive makes of it, whose result has it again.
    `by_row` passes it on unseen; an invalid one ends there. A trace of the record shows it in both lives."""
    case, target = given_up(copy=True), make_topic(1)
    produce(case)
    sink = KafkaTopic(target, value="note")
    job = job_of(
        case.group, case.topic, by_row(rejecting, "note string"), destination=sink, failed_share=None
    )
    assert run_job(job, Holder(case.observe())).rejected == 1
    assert sent(case, target) == {"0": TRACES[0], "1": None, "2": None}
    case.writer().write()
    (letter,) = case.letters()
    assert letter.header(f"{ORIGINAL_HEADER}traceparent") == TRACES[3]
    execute(Redrive(case.settings, case.database, case.dead_letter_topic, Selection()))
    assert run_job(job, Holder(case.observe())).accepted == 1
    assert sent(case, target)["3"] == TRACES[3]
    events = list(Tracer(case.settings, case.database).trace(case.topic, 0, 3))
    lives = [each for each in events if each.event == "produced"]
    assert [f"traceparent {TRACES[3]}" in (each.detail or "") for each in lives] == [True, True]
    (rejected,) = [each for each in events if each.event == "rejected"]
    assert rejected.detail == "Reject: not now"
    assert [each.event for each in events][-2:] == ["accepted", "output"]
    assert events[-1].place == f"kafka:{target}"


def test_a_handler_that_passes_on_its_columns_passes_on_the_trace(
    given_up: Callable[..., GivenUp], make_topic: MakeTopic, run_job: RunJob
) -> None:
    """A handler of DataFrames need not name the column; one that selects columns leaves it out, and nothing fails."""
    case, target, other = given_up(), make_topic(1), make_topic(1)
    produce(case)
    sink = KafkaTopic(target, value="value")
    run_job(job_of(case.group, case.topic, passing_on, destination=sink), Holder(case.observe()))
    assert sent(case, target) == {"0": TRACES[0], "1": None, "2": None, "3": TRACES[3]}
    again = case.renamed(f"{case.group}-again")

    def selecting(records: DataFrame) -> DataFrame:
        return passing_on(records).select("topic", "partition", "offset", "lease_id", "value", "outcome")

    sink = KafkaTopic(other, value="value")
    run_job(job_of(again.group, case.topic, selecting, destination=sink), Holder(again.observe()))
    assert set(sent(case, other).values()) == {None}


ROWS = "topic string, partition int, offset bigint, lease_id bigint, outcome string, v string"
KIND = "array<struct<key: string, value: binary>>"


def test_headers_of_the_row_come_first(spark: SparkSession) -> None:
    """A trace that the handler gives as a header is the only one; without one, that of the record follows. The size
    counts it."""
    given = [
        ("t", 0, 0, 1, "accept", "v", [("traceparent", b"own")], [("traceparent", TRACES[0].encode())]),
        ("t", 0, 1, 1, "accept", "v", [("kind", b"x")], [("traceparent", TRACES[0].encode())]),
        ("t", 0, 2, 1, "accept", "v", None, [("traceparent", TRACES[0].encode())]),
        ("t", 0, 3, 1, "accept", "v", None, None),
    ]
    rows = with_trace(spark.createDataFrame(given, f"{ROWS}, own {KIND}, headers {KIND}"))
    target = TargetTopic("t", "id", 1, 1_000, compacted=False, most_bytes=1_000)

    def made(headers: str | None) -> list[Any]:
        columns = RecordColumns(key=None, value="v", headers=headers, partition=None, timestamp=None)
        found = with_records(rows, columns, target, source_headers=False)
        assert TRACE not in found.columns
        return found.orderBy("offset").select(f"{RECORD}.*").collect()

    def traces(found: list[Any]) -> list[list[bytes]]:
        return [
            [bytes(h["value"]) for h in row["headers"] or () if h["key"] == "traceparent"] for row in found
        ]

    of_record = [TRACES[0].encode()]
    assert traces(made("own")) == [[b"own"], of_record, of_record, []]
    without = made(None)
    assert traces(without) == [of_record, of_record, of_record, []]
    assert without[2]["size"] > without[3]["size"] + 55
