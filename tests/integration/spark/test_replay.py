"""A handler once more on records of the past: exactly those that are meant; nothing of the live group changes."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRequest, OffsetOutOfRange, UnknownTopicOrPartition
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.spark import HandlerError, Pipeline, ReplayReport, pipeline
from sharequeue.spark.output.files import Files
from sharequeue.spark.replays import replay as replay_module
from sharequeue.spark.replays.replay import replay_windows
from sharequeue.spark.replays.selection import TimeWindow
from sharequeue.state import State
from tests.fixtures.logs import delete_before
from tests.fixtures.pipelines import Assigned, RunJob, standing
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S

DAYS = 3
FIRST_DAY = datetime(2013, 1, 1, tzinfo=UTC)
RECORDS = 60
"""Of each partition, in disorder: each day has a third of them, spread over the whole log."""


def by_value(records: DataFrame) -> DataFrame:
    """The outcome is what the value says; a released record says why."""
    text = fn.col("value").cast("string")
    return records.withColumns({"outcome": text, "error": fn.when(text != "accept", "as it says")})


@dataclass
class Case:
    """A group that has done two thirds of its records, and how its figures are taken."""

    job: Pipeline
    topic: str
    settings: Settings
    state: State
    topics: Topics
    spark: SparkSession
    database: Database

    def figures(self) -> dict[str, Any]:
        """Everything that a replay must not change, to the last number."""
        group = {"group_id": self.job.group}
        journal = (
            "select max(journal_id) as last, count(*) as rows from sharequeue.journal j"
            " join sharequeue.share_partitions sp using (share_partition_id) where sp.group_id = :group_id"
        )
        return {
            "status": standing(self.state, self.job.group),
            "counts": self.state.figures.delivery_counts(self.job.group),
            "leases": self.state.figures.leases(self.job.group),
            "written": self.state.dead_letters.written(self.job.group),
            "outputs": self.state.outputs.counted(self.job.group, self.job.sink),
            "members": self.database.rows(
                sa.text("select * from sharequeue.group_members where group_id = :group_id"), **group
            ),
            "journal": self.database.rows(sa.text(journal), **group),
        }

    def replay(self, **given: Any) -> ReplayReport:
        return self.job.replay(self.settings, spark=self.spark, state=self.state, **given)

    def rows(self, folder: str | None) -> list[tuple[int, int]]:
        assert folder
        found = self.spark.read.parquet(folder).select("partition", "offset").collect()
        return sorted((row[0], row[1]) for row in found)


def day_of(offset: int) -> int:
    return offset * 7 % DAYS


def outcome_of(offset: int) -> str:
    return "reject" if offset % 10 == 3 else "release" if offset % 10 == 7 else "accept"


def of_day(day: int, outcome: str = "accept") -> list[tuple[int, int]]:
    return [
        (partition, at)
        for partition in range(2)
        for at in range(RECORDS)
        if day_of(at) == day and outcome_of(at) == outcome
    ]


@pytest.fixture
def case(
    group: str,
    make_topic: MakeTopic,
    assigned: Assigned,
    run_job: RunJob,
    output_settings: Settings,
    state: State,
    topics: Topics,
    spark: SparkSession,
    database: Database,
) -> Case:
    """Give a group with accepted, released and rejected records, and some that nobody has leased yet."""
    topic = make_topic(2)
    producer = Producer(client_config(output_settings))
    for partition in range(2):
        for at in range(RECORDS):
            # Descending within the day, too.
            time = FIRST_DAY + timedelta(days=day_of(at), hours=23) - timedelta(minutes=at)
            stamp = int(time.timestamp() * 1000)
            producer.produce(topic, outcome_of(at).encode(), partition=partition, timestamp=stamp)
    assert producer.flush(PATIENCE_S) == 0
    job = pipeline(group=group, topics=topic, sink=f"sink-{group}")(by_value)
    run_job(job, assigned(topic), max_rounds=1, max_records=RECORDS)
    return Case(job, topic, output_settings, state, topics, spark, database)


def test_a_replay_of_a_day_changes_no_figure_of_the_group(case: Case) -> None:
    """Exactly the day's records, wherever they lie; outcomes as figures and files; no figure of the group changes."""
    before = case.figures()
    assert 0 < sum(each.lag for each in before["status"]) < 2 * RECORDS
    report = case.replay(since=FIRST_DAY, until=FIRST_DAY + timedelta(days=1))
    assert case.figures() == before

    accepted, rejected, released = (of_day(0, outcome) for outcome in ("accept", "reject", "release"))
    assert (report.name, report.records, report.missing) == ("2013-01-01", 40, ())
    assert (report.accepted, report.rejected, report.released) == tuple(
        map(len, (accepted, rejected, released))
    )
    assert (report.without_row, report.accepted_rows) == (0, len(accepted))
    root = f"{case.settings.output}/replays/{case.job.group}/{case.job.sink}"
    assert report.path == f"{root}/2013-01-01"
    assert case.rows(report.accepted_path) == accepted
    assert case.rows(report.exceptions_path) == sorted(rejected + released)
    errors = (
        case.spark.read.parquet(str(report.exceptions_path)).select("outcome", "error").distinct().collect()
    )
    assert {tuple(row) for row in errors} == {("reject", "as it says"), ("release", "as it says")}
    written = json.loads((Path(report.path) / "replay.json").read_text())
    assert (ReplayReport.of_plain(written), written["records"]) == (report, 40)

    again = case.replay(since=FIRST_DAY, until=FIRST_DAY + timedelta(days=1))
    assert again == report
    assert case.rows(again.accepted_path) == accepted
    # A dry run finds the same and writes nothing.
    told = case.replay(since=FIRST_DAY, until=FIRST_DAY + timedelta(days=1), dry_run=True, name="dry")
    assert (told.records, told.partitions, told.path) == (40, report.partitions, None)
    assert sorted(path.name for path in Path(root).iterdir()) == ["2013-01-01", "_staging"]
    assert not list((Path(root) / "_staging").iterdir())


def test_many_windows_are_replayed_by_one_read_of_the_topic(case: Case) -> None:
    """Days, an overlapping span, and a day without a record."""
    windows = [TimeWindow.of_day(f"2013-01-0{day}") for day in (1, 2, 3, 4)]
    windows.append(TimeWindow(FIRST_DAY, FIRST_DAY + timedelta(days=3), "all"))
    given: Any = {"state": case.state, "topics": case.topics, "spark": case.spark}
    *days, empty, everything = replay_windows(case.job, case.settings, windows, **given)
    for day, report in enumerate(days):
        assert case.rows(report.accepted_path) == of_day(day)
    assert (empty.records, case.rows(empty.accepted_path), case.rows(empty.exceptions_path)) == (0, [], [])
    assert everything.records == 2 * RECORDS
    assert {report.scanned for report in days} == {2 * RECORDS}


def test_offsets_and_leases_choose_exactly_what_they_name(case: Case) -> None:
    """Offsets of any partition; and what a lease had accepted, also after its files were brought together."""
    report = case.replay(
        offsets={(case.topic, 0): OffsetSet.of((0, 5), (50, 51)), (case.topic, 1): OffsetSet.of((9, 10))}
    )
    assert case.rows(report.accepted_path) == [(0, 0), (0, 1), (0, 2), (0, 4), (0, 50), (1, 9)]
    counted = case.state.outputs.counted(case.job.group, case.job.sink)
    report = case.replay(leases=[counted[0].lease_id])
    assert (report.name, report.accepted) == (f"lease-{counted[0].lease_id}", counted[0].records)
    assert {at for at, _ in case.rows(report.accepted_path)} == {counted[0].partition}
    every = case.replay(leases=[row.lease_id for row in counted], name="all-of-it")
    assert every.accepted == sum(row.records for row in counted)
    with pytest.raises(InvalidRequest, match="No output of lease 1000000000 counts"):
        case.replay(leases=[10**9])
    with pytest.raises(UnknownTopicOrPartition, match="there is no nowhere-0"):
        case.replay(offsets={("nowhere", 0): OffsetSet.of((0, 1))})
    with pytest.raises(OffsetOutOfRange, match="which ends at 60"):
        case.replay(offsets={(case.topic, 0): OffsetSet.of((0, 61))})
    with pytest.raises(ValueError, match="exactly one of"):
        case.replay(since=FIRST_DAY, leases=[1])


def test_a_replay_below_the_log_start_is_refused_by_name(case: Case) -> None:
    """Below the log start: the partition and the start; a later time is replayed."""
    delete_before(case.settings, case.topic, 13, partition=1)
    window: dict[str, Any] = {"since": FIRST_DAY, "until": FIRST_DAY + timedelta(days=1)}
    with pytest.raises(OffsetOutOfRange) as refused:
        case.replay(**window)
    assert f"{case.topic}-1: its log starts at offset 13. Nothing was replayed" in str(refused.value)
    report = case.replay(**window, allow_missing=True)
    assert case.rows(report.accepted_path) == [at for at in of_day(0) if at[0] == 0 or at[1] >= 13]
    assert "log starts at offset 13" in str(report)
    begins = FIRST_DAY + timedelta(days=day_of(13), hours=23) - timedelta(minutes=13)
    possible = begins + timedelta(milliseconds=1)
    assert case.replay(since=possible, until=possible + timedelta(days=9)).missing == ()
    with pytest.raises(OffsetOutOfRange):
        case.replay(since=begins, until=possible)


def test_a_handler_that_fails_or_leaves_records_out_replaces_nothing(case: Case) -> None:
    """The replay that was there stays; a job that says what a missing row means gets that outcome."""
    window: dict[str, Any] = {"since": FIRST_DAY, "until": FIRST_DAY + timedelta(days=1)}
    before = case.replay(**window)

    def forgetful(records: DataFrame) -> DataFrame:
        return by_value(records).filter("value <> 'reject'")

    strict = pipeline(group=case.job.group, topics=case.topic, sink=case.job.sink)(forgetful)
    with pytest.raises(HandlerError, match="got no outcome"):
        strict.replay(case.settings, spark=case.spark, state=case.state, **window)
    assert case.rows(before.accepted_path) == of_day(0)
    assert not list((Path(str(before.path)).parent / "_staging").iterdir())
    lenient = pipeline(group=case.job.group, topics=case.topic, sink=case.job.sink, without_row="reject")(
        forgetful
    )
    report = lenient.replay(case.settings, spark=case.spark, state=case.state, **window)
    assert (report.without_row, report.rejected) == (4, 4)


def test_of_two_replays_of_one_day_at_once_the_last_one_is_there(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither touches what the other one writes; only the folder of a killed one, which is old, is removed."""
    window: dict[str, Any] = {"since": FIRST_DAY, "until": FIRST_DAY + timedelta(days=1)}
    staging = Path(case.settings.output) / "replays" / case.job.group / case.job.sink / "_staging"
    old, young = (f"2013-01-01+{time.time() - age:.0f}-{uuid4().hex}" for age in (90_000, 80_000))
    for name in (old, young):
        (staging / name).mkdir(parents=True)
    inner: list[ReplayReport] = []
    read_back = vars(replay_module)["read_back"]

    def other_one_first(*given: Any, **named: Any) -> Any:
        if not inner:
            monkeypatch.undo()
            inner.append(case.replay(**window))
        return read_back(*given, **named)

    monkeypatch.setattr(replay_module, "read_back", other_one_first)
    outer = case.replay(**window)
    assert outer == inner[0]
    assert case.rows(outer.accepted_path) == of_day(0)
    assert [path.name for path in staging.iterdir()] == [young]
    assert not list(Path(str(outer.path)).glob("*+*"))
    # And both ready at the same moment: each would put the older one aside.
    ready, both, flush, replace = threading.Barrier(2), threading.Barrier(2), Files.flush, Files.replace

    def both_ready(files: Files, *folders: str) -> None:
        flush(files, *folders)
        ready.wait(PATIENCE_S)

    def together(files: Files, source: str, target: str) -> None:
        if source == outer.path:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.5)
        replace(files, source, target)

    monkeypatch.setattr(Files, "flush", both_ready)
    monkeypatch.setattr(Files, "replace", together)
    with ThreadPoolExecutor(2) as threads:
        reports = [threads.submit(case.replay, **window) for _ in range(2)]
        assert [report.result(PATIENCE_S) for report in reports] == [outer, outer]
    assert sorted(path.name for path in Path(str(outer.path)).iterdir() if path.name[0] not in "._") == [
        *("accepted", "exceptions", "replay.json"),
    ]
    assert case.rows(outer.accepted_path) == of_day(0)


def test_the_replay_command_refuses_invalid_arguments(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day as JSON; a dry run; a mistake in the words is one line and exit code 2."""
    monkeypatch.setenv("SHAREQUEUE_HOME", str(case.settings.home))
    monkeypatch.setenv("SHAREQUEUE_OUTPUT", case.settings.output)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "replayed_jobs.py").write_text(
        "from sharequeue.spark import pipeline\n"
        "from tests.integration.spark.test_replay import by_value\n"
        f"job = pipeline(group={case.job.group!r}, topics={case.topic!r}, sink={case.job.sink!r})(by_value)\n"
    )

    def run(*words: str) -> Any:
        return CliRunner().invoke(command, ["replay", "replayed_jobs:job", *words])

    told = run("--day", "2013-01-02", "--dry-run", "-o", "json")
    assert told.exit_code == 0, told.output
    assert (json.loads(told.stdout)["records"], json.loads(told.stdout)["path"]) == (40, None)
    done = run("--day", "2013-01-02", "-o", "json")
    assert done.exit_code == 0, done.output
    assert case.rows(json.loads(done.stdout)["path"] + "/accepted") == of_day(1)
    done = run("--offsets", f"{case.topic}:0:0-4")
    assert "replayed 5 records" in done.output
    for words, says in (
        ([], "exactly one of these: --day"),
        (["--day", "yesterday"], "expected one such as 2013-01-01"),
        (["--since", "2013-01-01"], "expected both since and until"),
        (["--since", "2013-01-02", "--until", "2013-01-01"], "is not after since"),
        (["--offsets", "0:1"], "expected TOPIC:PARTITION:FIRST-LAST"),
        (["--lease", "3-5,… (9 leases)"], "does not name all leases"),
        (["--day", "2013-01-01", "--name", "../x"], "cannot be the name of a replay"),
        (["--day", "2013-01-01", "--timezone", "Mars"], "Mars"),
    ):
        refused = run(*words)
        assert (refused.exit_code, says in refused.output) == (2, True), refused.output
