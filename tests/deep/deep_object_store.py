"""The output on S3 and on HDFS is what it is on a disk: each record counts once, whatever ends early, and is found by
the manifest; what does not count is swept. S3 is spoken with Hadoop's own client, to a server of the tests."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.outputs.manifest import read_manifest
from sharequeue.spark import (
    OutputFull,
    OutputNotReachable,
    ParquetByLease,
    PostgresTable,
    Summary,
    lease_results,
    pipeline,
)
from sharequeue.spark import run as spark_run
from sharequeue.spark.merged_summaries import merge_summary
from sharequeue.spark.output.compaction import compact, sweep_compactions
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.pipelines import Pipeline
from sharequeue.spark.run import run_rounds
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from tests.fixtures.object_stores import LOGIN, S3
from tests.fixtures.pipelines import Assigned, Holder, MakeTable, Produce, all_accepted, job_of
from tests.fixtures.stack import MakeTopic

pytestmark = pytest.mark.timeout(600)

RECORDS = 30
"""Of each of two partitions; every fifth is rejected."""
AT_ONCE = timedelta(0)


class Killed(BaseException):
    """The process ends here: nothing catches it, and nothing is tidied up."""


def fifths_rejected(records: DataFrame) -> DataFrame:
    kept = records.select("topic", "partition", "offset", "lease_id").withColumn("note", fn.lit("first"))
    return kept.withColumn("outcome", fn.when(fn.col("offset") % 5 == 3, "reject").otherwise("accept"))


def all_again(records: DataFrame) -> DataFrame:
    kept = records.select("topic", "partition", "offset", "lease_id").withColumn("note", fn.lit("second"))
    return kept.withColumn("outcome", fn.lit("accept"))


def by_note(accepted: DataFrame) -> DataFrame:
    return accepted.groupBy("lease_id", "note").agg(fn.count("*").alias("rows"))


class Case:
    """A pipeline whose output is in a store."""

    def __init__(
        self,
        job: Pipeline,
        settings: Settings,
        state: State,
        topics: Topics,
        spark: SparkSession,
        holder: Holder,
    ) -> None:
        self.job, self.settings, self.state, self.topics = job, settings, state, topics
        self.spark, self.holder = spark, holder
        self.files = Files(spark, settings.output)

    def run(self, job: Pipeline | None = None, **given: object) -> int:
        """Run to the end; return how many were accepted."""
        report = run_rounds(
            self.settings,
            job or self.job,
            membership=self.holder,
            state=self.state,
            topics=self.topics,
            spark=self.spark,
            **given,  # type: ignore[arg-type]
        )
        return report.accepted

    def output(self, sink: str | None = None) -> Counter[tuple[int, int, str]]:
        """What the output that counts has, how often."""
        rows = read_output(self.spark, self.state, self.job.group, sink or self.job.sink)
        return Counter((row["partition"], row["offset"], row["note"]) for row in rows.collect())

    def sweep(self) -> list[str]:
        return sweep_outputs(self.spark, self.settings, self.state, self.job)

    def left(self) -> list[str]:
        """Folders of writes and compactions that have files."""
        found = self.files.listing(self.settings.output)
        return sorted(set(re.findall(r"/((?:leases|compacted)=[^/;]+)", found)))


ACCEPTED = {(p, n, "first"): 1 for p in range(2) for n in range(RECORDS) if n % 5 != 3}
REJECTED = {(p, n, "first"): 1 for p in range(2) for n in range(RECORDS) if n % 5 == 3}


@pytest.fixture(params=["s3a", "hdfs"])
def output(request: pytest.FixtureRequest) -> str:
    """Give a place of this test alone in a store."""
    found: str = request.getfixturevalue("on_s3" if request.param == "s3a" else "on_hdfs")
    return found


@pytest.fixture
def case(
    group: str,
    output: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    settings: Settings,
    state: State,
    topics: Topics,
    spark: SparkSession,
) -> Case:
    """Give a topic of two partitions, filled, and a job on it with a summary."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, range(RECORDS))
    made = pipeline(group=group, topics=[topic], sink=f"sink-{group}", summaries=[Summary("notes", by_note)])
    job = made(fifths_rejected)
    return Case(job, settings.replace(output=output), state, topics, spark, assigned(topic))


def test_each_record_counts_once(case: Case) -> None:
    """Two runs of two rounds: output, exceptions and sums are right; there is nothing but what the manifest names; a
    sweep finds nothing."""
    assert case.run(max_records=RECORDS) == len(ACCEPTED)
    assert case.run() == 0
    assert case.output() == ACCEPTED
    assert case.output(case.job.exceptions_sink) == REJECTED
    sums = read_output(case.spark, case.state, case.job.group, case.job.summary_sink(case.job.summaries[0]))
    assert sums.agg(fn.sum("rows")).collect()[0][0] == len(ACCEPTED)
    for _ in range(2):  # the second time in place of the file of the first
        merged = merge_summary(
            case.job,
            "notes",
            lambda parts: parts.agg(fn.sum("rows").alias("rows")),
            root=case.settings.output,
            output="queue",
            state=case.state,
            spark=lambda: case.spark,
        )
        assert merged.path == f"{case.settings.output}/queue/notes.parquet"
        assert case.spark.read.parquet(merged.path).collect() == [(len(ACCEPTED),)]
    folders = read_manifest(case.state, case.job.group, case.job.sink)
    assert all(folder.startswith(f"{case.settings.output}/{case.job.sink}/leases=") for folder in folders)
    assert case.sweep() == []
    assert case.state.figures.verify(case.job.group) == []


@pytest.mark.parametrize("output", ["s3a"], indirect=True)
def test_a_store_is_written_once(case: Case, s3: S3) -> None:
    """On S3 each file is uploaded to its place, and nothing is copied or renamed; what commits it is gone."""
    bucket = case.settings.output.split("/")[2]
    before = s3.log.read_text().count("\n")
    case.run()
    asked = [line for line in s3.log.read_text().splitlines()[before:] if f"/{bucket}" in line]
    files = [key for key in s3.keys(bucket) if key.endswith(".parquet")]
    completed = [line for line in asked if re.search(r"POST \S+\.parquet\?uploadId=", line)]
    assert len(completed) == len(files) > 0
    # A copy is a PUT of a file's own name, without an upload; under `__magic` are empty markers.
    puts = [line for line in asked if re.search(r"PUT \S+\.parquet HTTP", line)]
    assert not [line for line in puts if "__magic" not in line]
    assert not [key for key in s3.keys(bucket) if key not in files and "/_state/" not in key]


def test_files_that_were_not_acknowledged_do_not_count(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends between the write and the acknowledgement: no reader finds anything, the next run brings each
    record once, and the sweep removes what the first one left, and nothing else."""

    def die(*given: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(lease_results, "acknowledge_all", die)
        with pytest.raises(Killed):
            case.run()
    assert read_manifest(case.state, case.job.group, case.job.sink) == ()
    (left, sums) = case.left()
    assert case.run() == len(ACCEPTED)
    assert case.output() == ACCEPTED
    names = {path.rpartition("/")[2] for path in case.sweep()}
    assert names == {left, sums}
    assert case.sweep() == []
    assert not names & set(case.left())
    assert case.output() == ACCEPTED


def test_a_write_that_fails_leaves_nothing_that_counts(case: Case) -> None:
    """A task fails after others have written: nothing is visible, and the sweep leaves nothing."""

    def failing(records: DataFrame) -> DataFrame:
        handled = fifths_rejected(records)
        wrong = fn.when(
            (fn.col("partition") == 1) & (fn.col("offset") == RECORDS - 1), fn.raise_error(fn.lit("no"))
        )
        return handled.withColumn("note", fn.coalesce(wrong.cast("string"), fn.col("note")))

    with pytest.raises(Exception, match="no"):
        case.run(replace(case.job, handler=failing, failed_share=None))
    assert read_manifest(case.state, case.job.group, case.job.sink) == ()
    case.sweep()
    assert case.left() == []


def test_small_folders_become_one(case: Case) -> None:
    """The same records from one folder; after the grace the old ones are gone."""
    case.run()
    spark, settings, state, job = case.spark, case.settings, case.state, case.job
    (done,) = compact(spark, settings, state, job.group, job.sink)
    assert done.records == len(ACCEPTED)
    assert read_manifest(state, job.group, job.sink) == (done.location,)
    assert case.output() == ACCEPTED
    assert case.sweep() == []
    swept = sweep_compactions(spark, settings, state, job.group, job.sink, grace=AT_ONCE)
    assert sorted(swept) == sorted(done.replaced)
    assert case.output() == ACCEPTED
    assert case.output(job.exceptions_sink) == REJECTED


def test_a_replay_is_published(case: Case) -> None:
    """A replay is written, read, replaced by another of its name, and takes the place of the live rows."""
    case.run()
    spark, settings, state = case.spark, case.settings, case.state
    again = replace(case.job, handler=all_again)
    offsets = {(case.job.topics[0], partition): OffsetSet.of((0, 10)) for partition in range(2)}
    for _ in range(2):
        report = again.replay(settings, offsets=offsets, name="again", spark=spark, state=state)
    assert spark.read.parquet(str(report.accepted_path)).count() == 20
    published = again.publish("again", settings, spark=spark, state=state, execute=True)
    assert (published.hidden_rows, published.added_rows) == (16, 20)
    found = Counter(note for _, _, note in case.output().elements())
    assert found == {"first": len(ACCEPTED) - 16, "second": 20}


def test_rows_in_a_store_are_moved_into_a_table(
    case: Case, make_table: MakeTable, database: Database, state: State
) -> None:
    """A sink that is a table takes the rows from the store, and their files go."""
    table = make_table('partition int, "offset" bigint, note text')
    job = replace(case.job, destination=PostgresTable(table), summaries=())
    assert case.run(job) == len(ACCEPTED)
    rows = database.rows(sa.text(f"select count(*) as rows from {table}"))  # noqa: S608
    assert rows[0]["rows"] == len(ACCEPTED)
    assert case.output(job.exceptions_sink) == REJECTED
    assert not re.search(r"sharequeue_lease=\d", case.files.listing(case.settings.output))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("bucket", "there is no such bucket"),
        ("endpoint", "its address does not answer: .*fs.s3a.endpoint"),
        ("login", "there are no credentials"),
        ("namenode", "its address does not answer"),
        ("jars", "sharequeue jars fetch s3a"),
    ],
)
def test_an_unusable_store_is_refused_before_anything_is_leased(
    group: str,
    on_s3: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    settings: Settings,
    state: State,
    topics: Topics,
    spark: SparkSession,
    wrong: str,
    said: str,
) -> None:
    """No bucket, no server, no login, no client: an error by that name, soon, without the login in it."""
    topic = make_topic(1)
    produce(topic, 0, range(5))
    output = on_s3
    if wrong == "bucket":
        output = f"s3a://not-there-{group}/out"
    elif wrong == "endpoint":
        spark.conf.set("fs.s3a.endpoint", "http://127.0.0.1:1")
    elif wrong == "login":
        for name in LOGIN:
            spark.conf.unset(f"fs.s3a.{name}")
        provider = "software.amazon.awssdk.auth.credentials.SystemPropertyCredentialsProvider"
        spark.conf.set("fs.s3a.aws.credentials.provider", provider)
    else:
        output = {"namenode": "hdfs://127.0.0.1:1/out", "jars": "gs://bucket/out"}[wrong]
    job = job_of(group, topic, all_accepted, destination=ParquetByLease())
    try:
        with pytest.raises(OutputNotReachable, match=said) as raised:
            run_rounds(
                settings.replace(output=output),
                job,
                membership=assigned(topic),
                state=state,
                topics=topics,
                spark=spark,
            )
    finally:
        spark.conf.unset("fs.s3a.aws.credentials.provider")
    assert not any(secret in str(raised.value) for secret in LOGIN.values())
    (status,) = state.figures.describe(group)
    assert (status.spso, status.acquired, status.available) == (0, 0, 0)


@pytest.mark.parametrize("output", ["hdfs"], indirect=True)
def test_a_full_store_costs_no_delivery(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota of HDFS: full before the run, and full as soon as tasks write. Both are an error by that name, nothing
    is acknowledged, and with room again each record comes at its first delivery."""
    root = case.files._path(case.settings.output)
    case.files._fs.mkdirs(root)
    case.files._fs.setQuota(root, 2**62, 1)
    with pytest.raises(OutputNotReachable, match="it is full: free some space"):
        case.run()
    monkeypatch.setattr(Files, "reach", lambda self, folder: None)
    monkeypatch.setattr(spark_run, "claim", lambda *given: None)
    with pytest.raises(OutputFull, match="free some space, and start again"):
        case.run()
    assert case.state.figures.leases(case.job.group) == []
    assert read_manifest(case.state, case.job.group, case.job.sink) == ()
    monkeypatch.undo()
    case.files._fs.setQuota(root, 2**62, 2**62)

    def with_note(records: DataFrame) -> DataFrame:
        kept = records.select("topic", "partition", "offset", "lease_id", "delivery_count")
        return kept.withColumns(
            {"note": fn.col("delivery_count").cast("string"), "outcome": fn.lit("accept")}
        )

    assert case.run(replace(case.job, handler=with_note, name=case.job.pipeline_name)) == 2 * RECORDS
    assert {note for _, _, note in case.output()} == {"1"}
