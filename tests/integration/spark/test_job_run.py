"""`job.run()`, `job.output()` and `job.sweep()` need nothing but settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.cli import command, main
from sharequeue.cli.run import STOPPED
from sharequeue.dagster import share_group_resources
from sharequeue.dagster.resources import SPARK
from sharequeue.database import Database
from sharequeue.domain.errors import UnknownTopicOrPartition
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.group_names import all_group_names
from sharequeue.kafka.topics import Topics
from sharequeue.spark import GroupTaken, HandlerError, Pipeline, PostgresTable, SinkRefused, by_row, pipeline
from sharequeue.spark.handler import Handler
from sharequeue.spark.outcomes.first_failure import find_first_failure
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import new_folder
from sharequeue.state import State
from tests import single
from tests.fixtures.pipelines import Produce
from tests.fixtures.stack import REPOSITORY, MakeTopic
from tests.waiting import PATIENCE_S, wait_until


def by_value(records: DataFrame) -> DataFrame:
    """The outcome is what the value says."""
    return records.withColumn("outcome", fn.col("value").cast("string"))


def by_value_and_rejected(records: DataFrame) -> DataFrame:
    """Two rows for each record, which do not agree."""
    made = by_value(records)
    return made.union(made.withColumn("outcome", fn.lit("reject")))


def positions(state: State, group: str) -> list[tuple[int, ...]]:
    """What a lease would change."""
    return [(each.spso, each.speo, each.acquired, each.available) for each in state.figures.describe(group)]


@pytest.fixture
def job(group: str, make_topic: MakeTopic, produce: Produce, database: Database) -> Pipeline:
    """Give a pipeline over a topic with six records, whose group begins at the first."""
    topic = make_topic(2)
    produce(topic, 0, ["accept", "reject", "accept", "release"])
    produce(topic, 1, ["accept", "accept"])
    # What is released waits longer than the test.
    waits = {"sharequeue.retry.backoff.ms": "3600000"}
    alter_group_configs(database, group, {"share.auto.offset.reset": "earliest", **waits})
    return pipeline(group=group, topics=topic, sink=f"sink-{group}")(by_value)


@pytest.fixture
def surroundings(
    service: str, settings: Settings, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """Give the settings as the environment says them to whoever gives none."""
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    monkeypatch.setenv("SHAREQUEUE_OUTPUT", str(tmp_path / "output"))
    return Settings.load()


def test_a_job_runs_with_nothing_but_settings(
    surroundings: Settings, job: Pipeline, spark: SparkSession, database: Database, state: State
) -> None:
    """It joins by itself and leaves again; its output is there, and a sweep removes what never counted."""
    report = job.run()
    assert (report.accepted, report.rejected, report.released, report.drained) == (4, 1, 1, True)
    assert str(report).startswith(f"run of group {job.group}: 6 records leased")
    members = sa.text("select member_id from sharequeue.group_members where group_id = :group_id")
    assert database.rows(members, group_id=job.group) == []
    assert state.figures.leases(job.group) == []

    assert sorted(row["offset"] for row in job.output().collect()) == [0, 0, 1, 2]
    assert job.output(surroundings, sink=job.exceptions_sink).count() == 2

    orphan = Path(new_folder(surroundings, state, job.sink, [10**9]))
    orphan.mkdir()
    would = job.sweep(dry_run=True)
    assert (would, orphan.exists()) == ([str(orphan)], True)
    assert job.sweep(surroundings) == [str(orphan)]
    assert not orphan.exists()
    assert spark.sql("select 1").count() == 1  # the session is the process's, and stays


def test_a_run_names_its_first_failure(
    surroundings: Settings, job: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few exceptions do not stop a run: its report has the first, with the record; those without an error are
    passed over. Files that only Spark can read give the same."""

    def outcome(record: dict[str, Any]) -> dict[str, Any]:
        if record["value"] == b"release":
            raise ValueError("no such\nprice")
        return {}

    (topic,) = job.topics
    report = replace(job, handler=by_row(outcome, "price int")).run(progress=False)
    failure = f"{topic}-0 offset 3: release, ValueError: no such\\nprice"
    assert report.errors == (failure,)
    assert f"\nfirst failure: {failure}" in str(report)
    (folder,) = {str(Path(file).parent) for file in job.output(sink=job.exceptions_sink).inputFiles()}
    monkeypatch.setattr(Files, "here", lambda *_: None)
    assert find_first_failure(spark, Files(spark, surroundings.output), [folder]) == failure


def test_a_run_without_errors_names_no_failure(surroundings: Settings, job: Pipeline) -> None:
    """Released and rejected records without an error are none."""
    report = job.run(progress=False)
    assert (report.released, report.rejected, report.errors) == (1, 1, ())


def test_a_refused_run_does_not_decide_where_its_group_begins(
    surroundings: Settings, job: Pipeline, database: Database, state: State
) -> None:
    """A table that is missing, or a handler that cannot be planned: nobody has joined, so the group still begins
    where a config says that is set afterwards."""
    alter_group_configs(database, job.group, {"share.auto.offset.reset": "latest"})
    typo: Handler = lambda records: by_value(records).withColumn("id", fn.col("idd"))  # noqa: E731
    for refused, error in (
        (replace(job, destination=PostgresTable("no_such.table")), SinkRefused),
        (replace(job, handler=typo, name=job.pipeline_name), HandlerError),
    ):
        with pytest.raises(error):
            refused.run(progress=False)
    assert state.figures.describe(job.group) == []
    alter_group_configs(database, job.group, {"share.auto.offset.reset": "earliest"})
    assert job.run(progress=False, max_rounds=1).leased == 6


def test_a_missing_topic_is_refused_before_the_member_joins(
    surroundings: Settings, job: Pipeline, database: Database
) -> None:
    """No group is made by a run whose topic is not there, and nobody waits for its partitions."""
    misspelt = replace(job, group=f"{job.group}-none", topics=(f"{job.topics[0]}s",))
    with pytest.raises(UnknownTopicOrPartition, match=rf"Did you mean {job.topics[0]}\b"):
        misspelt.run(progress=False)
    assert misspelt.group not in all_group_names(database)


class Interruption(BaseException):
    """What Dagster's "terminate" raises; it is no KeyboardInterrupt, which Py4J itself knows."""


def test_a_run_that_was_interrupted_in_a_call_to_spark_stops_its_session(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to the interrupted call arrives later: it is not taken for that of the call that stops Spark. A run
    of Dagster may be cancelled before it holds a lease."""
    connection: Any = SparkContext._gateway._gateway_client.get_thread_connection()  # type: ignore[union-attr]

    def readline() -> bytes:
        raise Interruption

    with monkeypatch.context() as patched:
        silent = SimpleNamespace(readline=readline, close=connection.stream.close)
        patched.setattr(connection, "stream", silent)
        with pytest.raises(Interruption):
            spark.range(3).count()
    stopped: list[int] = []
    resource: Any = (share_group_resources().resources or {})[SPARK]
    resource._session = SimpleNamespace(stop=lambda: stopped.append(spark.range(5).count()))
    resource._ours = True
    resource.teardown_after_execution(None)
    assert stopped == [5]


def test_a_trial_leases_nothing(
    surroundings: Settings, job: Pipeline, database: Database, state: State, produce: Produce
) -> None:
    """It reads what a run would lease and counts the outcomes; it leaves no trace."""
    trial = job.try_on(4)
    assert (trial.records, trial.outcomes, trial.remark) == (4, {"accept": 3, "reject": 1}, None)
    (topic,) = job.topics
    assert trial.errors == (f"{topic}-0 offset 1: reject",)
    assert "nothing was leased" in str(trial)
    unknown = replace(job, group=f"{job.group}-new").try_on(4)
    assert "has not begun, and begins at the end of the log (share.auto.offset.reset=latest)" in str(
        unknown.remark
    )
    assert state.figures.describe(job.group) == []
    assert not Path(surroundings.output).exists()

    # After a run, what was released waits for its time: the last records take the place of what would be leased.
    job.run(surroundings, progress=False)
    before = positions(state, job.group)
    trial = job.try_on(2, surroundings)
    assert trial.records == 2
    assert "would lease nothing now" in str(trial.remark)
    produce(topic, 0, ["accept", "Accept"])
    trial = job.try_on(100, surroundings)
    assert trial.outcomes == {"Accept": 1, "accept": 1}
    assert trial.remark == "a run would end with HandlerError: 'Accept' is not one of accept, release, reject"
    assert trial.errors == (f"{topic}-0 offset 5: Accept",)
    assert positions(state, job.group) == before


def test_a_trial_says_which_records_have_no_row(surroundings: Settings, job: Pipeline, state: State) -> None:
    """A handler that filters is told so; one that is wrong is the error that a run would end in."""
    job = replace(job, handler=lambda records: by_value(records.where("offset > 0")))
    trial = job.try_on(6, surroundings)
    assert trial.outcomes == {"accept": 2, "no row": 2, "reject": 1, "release": 1}
    assert "a run would end with HandlerError: no row for 2 records" in str(trial.remark)
    assert "a run would give the outcome release (`without_row=`) to 2 records without a row" in str(
        replace(job, without_row="release").try_on(6, surroundings).remark
    )
    with pytest.raises(HandlerError, match="lacks outcome"):
        replace(job, handler=lambda records: records).try_on(1, surroundings)
    elsewhere = replace(job, handler=lambda records: by_value(records).withColumn("partition", fn.lit(7)))
    with pytest.raises(HandlerError, match="partition 7: every row must pass on"):
        elsewhere.try_on(1, surroundings)
    leased = replace(
        job, handler=lambda records: by_value(records).withColumn("lease_id", fn.lit(7).cast("long"))
    )
    with pytest.raises(HandlerError, match="lease_id 7, which was not given"):
        leased.try_on(1, surroundings)
    with pytest.raises(HandlerError, match="more than one outcome"):
        replace(job, handler=by_value_and_rejected).try_on(6, surroundings)
    with pytest.raises(ValueError, match="1 or more"):
        job.try_on(0, surroundings)


@pytest.fixture
def run_command(
    surroundings: Settings, job: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Give a function that runs `sharequeue run` in a folder with a module `my_module`, whose job is `orders`."""
    (tmp_path / "my_module.py").write_text(
        "from pyspark.sql import functions as fn\n"
        "from sharequeue.spark import pipeline\n\n"
        f"@pipeline(group={job.group!r}, topics={list(job.topics)!r}, sink={job.sink!r})\n"
        "def orders(records):\n"
        "    print('a line of the handler')\n"
        "    return records.withColumn('outcome', fn.col('value').cast('string'))\n\n"
        "broken = orders.handler\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(command, ["run", *arguments])

    return run


def test_the_command_runs_a_job(run_command: Callable[..., Result], job: Pipeline, state: State) -> None:
    """First on a few records, which takes nothing; then in earnest, with progress beside the result."""
    for arguments in (("my_module:orders", "--dry-run"), ("--dry-run", "my_module:orders")):
        tried = run_command(*arguments, "--records", "2")
        assert (tried.exit_code, state.figures.describe(job.group)) == (0, []), tried.output
        assert "tried on 2 records" in tried.stdout
    assert run_command("--records", "2", "my_module:orders").exit_code == 2
    done = run_command("my_module:orders", "-o", "json", "--max-rounds", "1")
    assert done.exit_code == 3, done.output  # the released one waits
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    assert (report["accepted"], report["rejected"], report["released"]) == (4, 1, 1)
    assert [each["leased"] for each in report["rounds"]] == [6]
    assert (report["left"], report["drained"]) == (1, False)
    assert "round 1: 6 records done" in done.stderr
    assert "a line of the handler" in done.stderr


def test_the_command_replaces_a_pipeline_by_name(
    run_command: Callable[..., Result], job: Pipeline, state: State
) -> None:
    """Another pipeline is refused, with both names and what to type, before anything is leased; `--replaces` with the
    name of the old one takes its place, and the old one is refused from then on."""
    assert job.run(max_records=1, max_rounds=1, progress=False).accepted == 1
    old, new = f"{__name__}:by_value", "my_module:orders"
    before = positions(state, job.group)
    for words in ((), ("--replaces", "somebody:else")):
        refused = run_command("my_module:orders", "--no-progress", *words)
        assert refused.exit_code == 1
        assert f"pipeline {old} works on group {job.group}, and this is pipeline {new}" in refused.stderr
        assert f"`sharequeue run --replaces {old}`" in refused.stderr
        assert positions(state, job.group) == before
    done = run_command("my_module:orders", "--no-progress", "--replaces", old, "-o", "json", "--allow-left")
    assert done.exit_code == 0, done.output  # the released one waits, and that is allowed
    assert json.loads(done.stdout)["accepted"] == 3
    with pytest.raises(GroupTaken, match=f"pipeline {new} works"):
        job.run(progress=False)


def test_the_exit_code_says_what_is_left(
    run_command: Callable[..., Result],
    job: Pipeline,
    state: State,
    topics: Topics,
    produce: Produce,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """3 while a record is left, 1 for a run that fails, 0 when all is done, 130 where somebody stops it; then the
    command says what became of its records."""
    (topic,) = job.topics

    def ends(*arguments: str) -> tuple[int, int | None]:
        done = run_command("my_module:orders", "-o", "json", *arguments)
        return done.exit_code, json.loads(done.stdout)["left"] if done.stdout else None

    assert ends("--max-records", "1", "--max-rounds", "1") == (3, 5)
    produce(topic, 1, ["no outcome"])
    assert ends() == (1, None)
    topic_id = topics.describe([topic])[topic].topic_id
    for status in state.figures.describe(job.group):
        single.alter_offsets(state, status.share_partition, topic_id, status.log_end)
    assert ends() == (0, 0)

    def stopped(*arguments: object, **given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Pipeline, "run", stopped)
    monkeypatch.setattr(sys, "argv", ["sharequeue", "run", "my_module:orders"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err.splitlines()[-1] == f"Error: {STOPPED}"


@pytest.mark.deep
@pytest.mark.slow
def test_ctrl_c_gives_everything_back(
    surroundings: Settings, job: Pipeline, state: State, tmp_path: Path
) -> None:
    """SIGINT to `sharequeue run` in the middle of a Spark job: it ends with 130, holds nothing, and no record is a
    suspect, nor is anybody a member."""
    (tmp_path / "my_module.py").write_text(
        "import time\nfrom pathlib import Path\nfrom pyspark.sql import functions as fn\n"
        "from sharequeue.spark import pipeline\n\n"
        f"@pipeline(group={job.group!r}, topics={list(job.topics)!r}, sink={job.sink!r}, try_empty=False)\n"
        "def orders(records):\n"
        "    def wait(offset):\n"
        f"        Path({str(tmp_path / 'at-work')!r}).touch()\n        time.sleep(300)\n\n"
        "    return records.withColumn('outcome', fn.udf(wait, 'string')('offset'))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "sharequeue.cli", "run", "my_module:orders", "--no-progress"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_until(lambda: (tmp_path / "at-work").exists() or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == f"Error: {STOPPED}"
    assert "py4j" not in said, said
    statuses = state.figures.describe(job.group)
    assert sum(each.available for each in statuses) == 6
    assert {(each.acquired, each.highest_delivery_count) for each in statuses} == {(0, 1)}
    leased = state.acquire([each.share_partition for each in statuses], "m", None, 10).leases
    assert [(lease.suspects, lease.offsets.count) for lease in leased] == [(False, 4), (False, 2)]


def test_an_invalid_job_is_an_error_in_one_line(run_command: Callable[..., Result]) -> None:
    """A module, a job or a form that is not there, and what is no job: said before anything starts."""
    cases = {
        "my_modul:orders": (1, "there is no module my_modul"),
        "my_module:order": (1, "has no job order. Did you mean orders?"),
        "my_module:broken": (1, "is not a job, but of type function"),
        "my_module": (2, "such as my_module:orders"),
    }
    for named, (code, said) in cases.items():
        result = run_command(named)
        assert (result.exit_code, said in result.output) == (code, True), result.output
