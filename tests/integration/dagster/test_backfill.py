"""Backfills: days replayed by Dagster, cancelled midway, resumed, executed again; the live group stays as it is."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.dagster import ShareGroup, share_group_defs
from sharequeue.dagster.launching import Launch
from sharequeue.dagster.names import dagster_name
from sharequeue.dagster.resources import SettingsResource, SparkResource, StateResource
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.local.stack import StackInfo
from sharequeue.spark import Summary, pipeline
from sharequeue.state import State
from tests import single
from tests.fixtures.dagster import share_group
from tests.fixtures.pipelines import Assigned, RunJob, job_of, standing
from tests.fixtures.stack import MakeTopic
from tests.pipes_clients import Here
from tests.waiting import PATIENCE_S, wait_until

FIRST_DAY = datetime(2013, 1, 1, tzinfo=UTC)
DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
RECORDS = 90
STOP_AT_CALL = "TESTS_STOP_AT_CALL"
_calls: list[int] = []


def by_value(records: DataFrame) -> DataFrame:
    """The outcome is what the value says. Somebody presses Ctrl-C while Spark works on the wanted call."""
    _calls.append(len(_calls) + 1)
    if os.environ.get(STOP_AT_CALL) == str(len(_calls)):
        threading.Thread(target=_stop_once_at_work, args=(records.sparkSession,), daemon=True).start()
        # A task that takes its time, so that there is something to stop.
        records = records.withColumn("slow", fn.expr("java_method('java.lang.Thread', 'sleep', 5000L)"))
    text = fn.col("value").cast("string")
    return records.withColumns({"outcome": text, "error": fn.when(text != "accept", "as it says")})


def by_lease(rows: DataFrame) -> DataFrame:
    """The partial sums of a summary: the records of each lease."""
    return rows.groupBy("lease_id").agg(fn.count("*").alias("records"))


def total(partials: DataFrame) -> DataFrame:
    """The merged summary."""
    return partials.agg(fn.sum("records").alias("records"))


def _stop_once_at_work(spark: SparkSession) -> None:
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: bool(tracker.getActiveJobsIds()))
    os.kill(os.getpid(), signal.SIGINT)


class KeptSpark(SparkResource):
    """The session of the tests, which stays when a run ends."""

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Leave it."""


@dataclass
class Case:
    """A group that has done some of its records, and what launches its backfills."""

    group: ShareGroup
    resources: dict[str, Any]
    output: Path
    state: State
    spark: SparkSession
    database: Database
    work: Callable[[], object]
    """One more round of the live group, over all records."""

    def launched(self, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have a Pipes client start the drivers, in this process."""
        home = self.resources["sharequeue_settings"].home
        for name, value in (("HOME", home), ("SERVICE_URL", service)):
            monkeypatch.setenv(f"SHAREQUEUE_{name}", str(value))
        limits = self.group.run.model_copy(update={"launch": Launch(client="elsewhere")})
        self.group = self.group.model_copy(update={"run": limits})
        self.resources["elsewhere"] = Here()

    def asset(self, **backfill: Any) -> dg.AssetsDefinition:
        group = self.group.model_copy(
            update={"backfill": self.group.backfill and self.group.backfill.model_copy(update=backfill)}
        )
        key = dg.AssetKey([group.name, "replayed"])
        found = [
            each for each in share_group_defs(group).assets or () if isinstance(each, dg.AssetsDefinition)
        ]
        return next(each for each in found if key in each.keys)

    def launch(self, asset: dg.AssetsDefinition, *days: str, **given: Any) -> dg.ExecuteInProcessResult:
        """As the backfill's daemon launches it: one partition, or the range from the first day to the last."""
        ends: dict[str, Any] = {"partition_key": days[0]}
        if len(days) > 1:
            ends = {
                "tags": {
                    "dagster/asset_partition_range_start": days[0],
                    "dagster/asset_partition_range_end": days[-1],
                }
            }
        return dg.materialize(
            [asset], resources=self.resources, instance=dg.DagsterInstance.ephemeral(), **ends, **given
        )

    def files(self) -> dict[str, list[str]]:
        """What the backfills have made, row by row, by day and kind."""
        root = self.output / "replays" / self.group.group / self.group.name
        return {
            f"{day}/{kind}": sorted(
                map(str, self.spark.read.parquet(f"{root}/{day}/{kind}").drop("lease_id").collect())
            )
            for day in DAYS
            if (root / day).exists()
            for kind in ("accepted", "exceptions")
        }

    def figures(self) -> list[Any]:
        """Everything of the live group that a backfill must not change, to the last number."""
        name = self.group.group
        journal = (
            "select max(journal_id) as last, count(*) as rows from sharequeue.journal"
            " join sharequeue.share_partitions sp using (share_partition_id) where sp.group_id = :group_id"
        )
        return [
            standing(self.state, name),
            self.state.figures.delivery_counts(name),
            self.state.figures.leases(name),
            self.state.dead_letters.written(name),
            self.state.outputs.counted(name, self.group.name),
            self.database.rows(sa.text(journal), group_id=name),
        ]


@pytest.fixture
def case(
    group: str,
    make_topic: MakeTopic,
    assigned: Assigned,
    run_job: RunJob,
    stack: StackInfo,
    settings: Settings,
    state: State,
    topics: Topics,
    spark: SparkSession,
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Case:
    """Give a group with three days of records in disorder, half of them done."""
    _calls.clear()
    topic = make_topic(2)
    producer = Producer(client_config(settings))
    for at in range(RECORDS):
        time = FIRST_DAY + timedelta(days=at * 7 % len(DAYS), minutes=RECORDS - at)
        value = ("accept", "accept", "reject", "accept", "release")[at % 5]
        producer.produce(topic, value.encode(), partition=at % 2, timestamp=int(time.timestamp() * 1000))
    assert producer.flush(PATIENCE_S) == 0
    counted = pipeline(
        group=group, topics=(topic,), sink=dagster_name(group), summaries=(Summary("counts", by_lease),)
    )(by_value)
    monkeypatch.setattr(f"{__name__}.counted", counted, raising=False)
    job = replace(job_of(group, topic, by_value), sink=counted.sink, summaries=counted.summaries)
    holder = assigned(topic)
    run_job(job, holder, max_rounds=1, max_records=RECORDS // 2)
    monkeypatch.setenv("SHAREQUEUE_OUTPUT", str(tmp_path / "backfills"))
    resource = SettingsResource(home=str(stack.home))
    return Case(
        share_group(
            group,
            topics=[topic],
            pipeline="tests.integration.dagster.test_backfill:counted",
            summaries={"counts": "tests.integration.dagster.test_backfill:total"},
            backfill={"partitions": "daily", "start": "2013-01-01"},
        ),
        {
            "sharequeue_settings": resource,
            "sharequeue_state": StateResource(settings=resource),
            "sharequeue_spark": KeptSpark(settings=resource),
            "sharequeue_io_manager": dg.mem_io_manager,
        },
        tmp_path / "backfills",
        state,
        spark,
        database,
        lambda: run_job(job, holder, max_rounds=1, max_records=RECORDS),
    )


def metadata(result: dg.ExecuteInProcessResult) -> dict[str | None, dict[str, Any]]:
    events = [event.materialization for event in result.get_asset_materialization_events()]
    return {each.partition: {key: value.value for key, value in each.metadata.items()} for each in events}


@pytest.mark.deep
def test_three_days_cancelled_midway_resumed_and_executed_again_equal_a_clean_run(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run for all three; then a run for each, of which one is cancelled while Spark works: the same files, and no
    figure of the live group has changed."""
    before = case.figures()
    assert any(each.lag for each in before[0])
    clean = case.launch(case.asset(), *DAYS)
    assert clean.success
    told = metadata(clean)
    assert sorted(map(str, told)) == list(DAYS)
    assert [told[day]["read_records"] for day in DAYS] == [30, 30, 30]
    assert sum(told[day]["accepted_records"] for day in DAYS) == RECORDS * 3 // 5
    assert told[DAYS[0]]["rejected_records"] == 6
    assert told[DAYS[0]]["path"].endswith("/2013-01-01")
    wanted = case.files()
    assert len(wanted) == 2 * len(DAYS)
    assert case.figures() == before

    case.output.rename(case.output.with_name("clean"))
    each = case.asset(one_run=False)
    assert case.launch(each, DAYS[0]).success
    monkeypatch.setenv(STOP_AT_CALL, str(len(_calls) + 1))
    sentence = "^the run was cancelled: finished partitions are kept$"
    with pytest.raises(dg.DagsterExecutionInterruptedError, match=sentence):
        case.launch(each, DAYS[1])
    monkeypatch.delenv(STOP_AT_CALL)
    assert sorted(case.files()) == ["2013-01-01/accepted", "2013-01-01/exceptions"]
    assert case.figures() == before
    for day in (DAYS[1], DAYS[2], DAYS[0]):
        assert case.launch(each, day).success
    assert case.files() == wanted
    assert case.figures() == before


@pytest.mark.parametrize("launched", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_replayed_days_are_published_once_after_a_dry_run(
    case: Case, launched: bool, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is published of a group that has not finished; a dry run only observes; each published day is a
    materialization with its rows, and the summary is merged again; a day that was published before stays as it is.
    The same where a Pipes client starts the drivers."""
    if launched:
        case.launched(service, monkeypatch)
    name = case.group.name
    key = dg.AssetKey([name, "published"])
    job = dg.Definitions.merge(
        share_group_defs(case.group), dg.Definitions(resources=case.resources)
    ).resolve_job_def(f"{name}_publish")
    instance = dg.DagsterInstance.ephemeral()

    def publish(**config: object) -> str:
        """Return why a run failed, or an empty text."""
        ran = job.execute_in_process(
            instance=instance,
            run_config={"ops": {f"{name}_published": {"config": config}}},
            raise_on_error=False,
        )
        failures = [event for event in ran.all_events if event.is_step_failure]
        return "".join(str(event.step_failure_data.error) for event in failures)

    def seen() -> dict[str | None, tuple[Any, ...]]:
        figures = ("replayed_records", "rows_out", "rows_in")
        records = instance.fetch_observations(key, limit=10).records
        observed = [each.asset_observation for each in records]
        return {
            each.partition: tuple(each.metadata[figure].value for figure in figures)
            for each in observed
            if each is not None
        }

    def output() -> tuple[int, int]:
        """Return the rows of the live output, and in how many folders they are."""
        rows = [row for row in case.state.outputs.counted(case.group.group, name) if row.records]
        return sum(row.records for row in rows), len({row.location for row in rows})

    first, second = DAYS[:2]
    assert case.launch(case.asset(), first, second).success
    assert "has not finished all records of replay 2013-01-01" in publish(first=first)
    case.work()
    # Released records would come again.
    for status in case.state.figures.describe(case.group.group):
        single.alter_offsets(case.state, status.share_partition, status.topic_id, status.log_end)
    before = output()
    assert publish(first=first, last=second) == ""
    assert seen() == dict.fromkeys((first, second), (30, 18, 18))
    assert before == (RECORDS * 3 // 5, 2)
    assert (output(), instance.get_materialized_partitions(key)) == (before, set())
    counts = dg.AssetKey([name, "counts"])
    assert instance.get_latest_materialization_event(counts) is None

    assert publish(first=first, execute=True) == ""
    assert instance.get_materialized_partitions(key) == {first}
    after = output()
    assert after == (RECORDS * 3 // 5, 1)
    (merged,) = instance.fetch_materializations(counts, limit=10).records
    path = merged.asset_materialization and merged.asset_materialization.metadata["path"].value
    assert pd.read_parquet(str(path)).to_dict("records") == [{"records": RECORDS * 3 // 5}]
    if launched:
        return
    assert publish(first=first, last=second, execute=True) == ""
    assert output() == after
    assert instance.get_materialized_partitions(key) == {first, second}
    assert "first: 'yesterday' is not a partition of `replayed`" in publish(first="yesterday")
    assert "is before first" in publish(first=second, last=first)
    assert "There is no replay in" in publish(first="2013-01-09")


def test_concurrent_replays_have_folders_of_their_own(case: Case) -> None:
    """Two runs at the same time, as a pool with two places allows: each has its own folder. Hours likewise, also the
    one at whose end clocks show what they showed at its beginning."""
    asset, results = case.asset(one_run=False), []
    threads = [
        threading.Thread(target=lambda day=day: results.append(case.launch(asset, day).success))
        for day in DAYS[:2]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True, True]
    found = case.files()
    assert [len(found[f"{day}/accepted"]) for day in DAYS[:2]] == [18, 18]
    hours = case.asset(partitions="hourly", start="2012-10-28", timezone="Europe/Berlin")
    for hour, records in (("2013-01-01-01:00", 19), ("2012-10-28-02:00", 0)):
        told = metadata(case.launch(hours, hour))[hour]
        assert (told["read_records"], told["path"].rpartition("/")[2]) == (records, hour.replace(":", "-"))
