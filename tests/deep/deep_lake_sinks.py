"""Tables of Delta and Iceberg: each accepted record is there once, wherever a run fails, is killed, or wakes up
late.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.settings import Settings
from sharequeue.spark.output.manifest import PENDING, NotFiles, read_output
from sharequeue.spark.run import run_rounds
from sharequeue.spark.sinks import iceberg, transferring
from sharequeue.spark.sinks.delta import DeltaTable
from sharequeue.spark.sinks.iceberg import IcebergTable
from sharequeue.spark.sinks.interface import SinkContext, SinkRefused
from sharequeue.spark.sinks.transferring import OpenTransfer, Step
from sharequeue.spark.sweeping import sweep_outputs
from sharequeue.state import State
from tests.deep.deep_sink_kills import SEED
from tests.fixtures.pipelines import Assigned, Holder, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import REPOSITORY, MakeTopic

RECORDS = 40
"""By partition, of two."""
STEPS: tuple[Step, ...] = ("acknowledged", "begun", "appended", "ended", "removed")
LOCK_MS = 5000
KILLS = 3


@dataclass
class Lake:
    """A table of one kind, and what is in it."""

    kind: str
    spark: SparkSession
    name: str
    where: Path
    hadoop: tuple[str, ...] = ()
    """Hadoop's settings for where it is."""

    def create(
        self,
        columns: str = "topic string, partition int, `offset` bigint, lease_id bigint",
        divided: str = "",
    ) -> None:
        if self.kind == "delta":
            self.spark.sql(f"create table delta.`{self.name}` ({columns}) using delta {divided}")
        else:
            wap = "tblproperties ('write.wap.enabled'='true')"
            self.spark.sql(f"create table {self.name} ({columns}) using iceberg {divided} {wap}")

    def alter(self, change: str) -> None:
        self.spark.sql(
            f"alter table {f'delta.`{self.name}`' if self.kind == 'delta' else self.name} {change}"
        )

    def sink(self, on_step: Callable[[Step], None] = lambda step: None) -> DeltaTable | IcebergTable:
        return (DeltaTable if self.kind == "delta" else IcebergTable)(self.name, on_step)

    def rows(self) -> DataFrame:
        if self.kind == "delta":
            return self.spark.read.format("delta").load(self.name)
        self.spark.sql(f"refresh table {self.name}")
        return self.spark.table(self.name)

    def conf(self) -> dict[str, str]:
        """What the session of another process needs to find the table."""
        names = [f"spark.sql.catalog.lake_{self.where.name}{part}" for part in ("", ".type", ".warehouse")]
        names += self.hadoop
        found = {name: self.spark.conf.get(name, None) for name in names}
        return {
            (f"spark.hadoop.{name}" if name in self.hadoop else name): value
            for name, value in found.items()
            if value is not None
        }

    def found(self) -> Counter[tuple[int, int]]:
        return Counter((row["partition"], row["offset"]) for row in self.rows().collect())


LakeOf = Callable[[str], Lake]


@pytest.fixture
def lake_of(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> LakeOf:
    """Give a function that names a table that is not there yet, on this machine or, as `delta on s3`, on an object
    store.
    """

    def named(what: str) -> Lake:
        kind, _, store = what.partition(" on ")
        place = request.getfixturevalue(f"on_{store}") if store else str(tmp_path)
        name = f"{place}/table" if kind == "delta" else f"lake_{tmp_path.name}.db.orders"
        if kind == "iceberg":
            catalog = f"spark.sql.catalog.lake_{tmp_path.name}"
            spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
            spark.conf.set(f"{catalog}.type", "hadoop")
            spark.conf.set(f"{catalog}.warehouse", f"{place}/warehouse")
        hadoop = tuple(request.getfixturevalue("s3").conf) if store else ()
        return Lake(kind, spark, name, tmp_path, hadoop)

    return named


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, lake_of: LakeOf) -> Lake:
    """Give a table that is not there yet."""
    return lake_of(request.param)


@pytest.fixture
def filled(make_topic: MakeTopic, produce: Produce) -> str:
    """Give a topic of two partitions with records."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, range(RECORDS))
    return topic


@pytest.fixture(autouse=True)
def short_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim lapses soon."""
    monkeypatch.setattr(transferring, "CLAIM_SECONDS", 1.0)


def once(records: int = RECORDS) -> Counter[tuple[int, int]]:
    """Each record of both partitions, once."""
    return Counter((partition, n) for partition in range(2) for n in range(records))


@pytest.mark.parametrize("lake", ["delta", "iceberg", "delta on s3", "iceberg on s3"], indirect=True)
def test_each_accepted_record_is_in_the_table_once(
    lake: Lake,
    filled: str,
    group: str,
    assigned: Assigned,
    produce: Produce,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
    output_settings: Settings,
) -> None:
    """Over two runs of several rounds; a released and a rejected record are not there; no file is left, and the
    sink's readers are sent to the table."""

    def handler(records: DataFrame) -> DataFrame:
        outcome = fn.when(fn.col("offset") == 5, "reject").otherwise("accept")
        return all_accepted(records).withColumn("outcome", outcome)

    lake.create()
    holder = assigned(filled)
    job = job_of(group, filled, handler, destination=lake.sink())
    first = run_job(job, holder, max_records=30)
    assert len(first.rounds) > 2
    assert first.accepted == 2 * RECORDS - 2
    produce(filled, 0, range(3))
    run_job(job, holder)
    expected = once() + Counter((0, RECORDS + n) for n in range(3))
    assert lake.found() == expected - Counter([(0, 5), (1, 5)])
    root = output_settings.local_output / job.sink
    assert not [path for path in root.glob("leases=*/sharequeue_lease=*") if "=-" not in path.name]
    with pytest.raises(NotFiles, match=f"it went to {lake.kind}:"):
        read_output(spark, state, group, job.sink)
    assert not sweep_outputs(spark, output_settings, state, job)
    assert state.figures.verify(group) == []


@pytest.mark.parametrize("lake", ["delta", "iceberg", "delta on s3", "iceberg on s3"], indirect=True)
@pytest.mark.parametrize("at", STEPS)
def test_a_run_that_fails_at_a_step_is_completed_by_the_next(
    lake: Lake,
    filled: str,
    group: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
    output_settings: Settings,
    at: Step,
) -> None:
    """Before the number is known, before the table's commit, between it and Postgres, before the files go. A sweep in
    between removes nothing that waits. The next run has nothing to lease, and completes it."""
    lake.create()
    holder, steps = assigned(filled), Counter[Step]()

    def fail(step: Step) -> None:
        steps[step] += 1
        # The first time that nothing waits is when the run is opened.
        if step == at and (step != "acknowledged" or steps[step] > 1):
            raise OSError("failed here")

    job = job_of(group, filled, all_accepted, destination=lake.sink(fail))
    with pytest.raises(OSError, match="failed here"):
        run_job(job, holder)
    job = replace(job, destination=lake.sink())
    waiting = [row for row in state.outputs.counted(group, job.sink) if row.location.startswith(PENDING)]
    assert bool(waiting) == (at in STEPS[:3])
    if waiting:
        with pytest.raises(NotFiles, match="wait for that"):
            read_output(spark, state, group, job.sink)
    sweep_outputs(spark, output_settings, state, job)
    report = run_job(job, holder)
    assert (report.accepted, report.lag) == (0, 0)
    assert lake.found() == once()
    sweep_outputs(spark, output_settings, state, job)
    assert not list((output_settings.local_output / job.sink).glob("leases=*"))


def gated(rows: DataFrame, gate: Path) -> DataFrame:
    """The same rows, which come only once there is a file."""

    def wait(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        deadline = time.monotonic() + 60
        while not gate.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield from batches

    return rows.coalesce(1).mapInArrow(wait, rows.schema)


@pytest.mark.parametrize("at", ["reading", "publishing", "committing"])
def test_who_wakes_up_late_adds_nothing(
    lake: Lake,
    filled: str,
    group: str,
    assigned: Assigned,
    produce: Produce,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
    output_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
) -> None:
    """One process is stopped in the middle of its transfer: while tasks write, before and in the publishing commit.
    Its claim lapses, another process does the same transfer and a further one, and removes the files. Then the first
    goes on: its commit is refused, it ends without an error, and each record is there once."""
    if at != "reading" and lake.kind == "delta":
        return  # Delta's own commit is one step
    lake.create()
    holder, gate, reached = assigned(filled), lake.where / "gate", threading.Event()
    job = job_of(group, filled, all_accepted, destination=lake.sink())

    def fail(step: Step) -> None:
        if step == "begun":
            raise OSError("failed here")

    with pytest.raises(OSError, match="failed here"):
        run_job(replace(job, destination=lake.sink(fail)), holder)
    context = SinkContext(output_settings, state, spark, job.names)
    late = threading.Thread(target=lambda: ended.append(attempt()))
    ended: list[BaseException | None] = []

    def attempt() -> BaseException | None:
        try:
            lake.sink().open(context)
        except BaseException as error:
            return error
        return None

    if at == "reading":
        append = OpenTransfer._append

        def slowly(self: OpenTransfer, found: object) -> None:
            if threading.current_thread() is not late:
                append(self, found)  # type: ignore[arg-type]
                return
            taken = self.table.append
            first = not reached.is_set()

            class Gated:
                def __getattr__(self, name: str) -> object:
                    return getattr(table, name)

                def append(self, rows: Callable[[SparkSession], DataFrame], number: int) -> None:
                    reached.set()
                    taken((lambda session: gated(rows(session), gate)) if first else rows, number)

            table = self.table
            self.table = Gated()  # type: ignore[assignment]
            try:
                append(self, found)  # type: ignore[arg-type]
            finally:
                self.table = table

        monkeypatch.setattr(OpenTransfer, "_append", slowly)
    else:
        publish = iceberg._Table._publish

        def publish_slowly(self: iceberg._Table, table: object, staged: object, number: int) -> None:
            if threading.current_thread() is not late:
                publish(self, table, staged, number)
                return
            if at == "publishing":
                reached.set()
                wait_for(gate)
                publish(self, table, staged, number)
                return
            transaction = table.newTransaction()  # type: ignore[attr-defined]
            transaction.manageSnapshots().cherrypick(staged).commit()
            transaction.updateProperties().set(self.application, str(number)).commit()
            reached.set()
            wait_for(gate)
            transaction.commitTransaction()

        monkeypatch.setattr(iceberg._Table, "_publish", publish_slowly)
    time.sleep(0.3)
    late.start()
    assert reached.wait(60)
    if at == "reading":
        time.sleep(0.8)  # its transaction has begun when its tasks run
    # The other one: it waits for the claim, completes the transfer, and does another.
    assert run_job(job, holder).accepted == 0
    produce(filled, 0, range(3))
    assert run_job(job, holder).accepted == 3
    gate.touch()
    late.join(60)
    assert ended == [None]
    expected = once() + Counter((0, RECORDS + n) for n in range(3))
    assert lake.found() == expected
    produce(filled, 1, range(2))
    assert run_job(job, holder).accepted == 2
    assert lake.found() == expected + Counter((1, RECORDS + n) for n in range(2))


def wait_for(gate: Path) -> None:
    deadline = time.monotonic() + 60
    while not gate.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


KILLED = textwrap.dedent(
    """
    import json, os, sys, threading
    from sharequeue.database import Database
    from sharequeue.kafka.topics import Topics
    from sharequeue.settings import Settings
    from sharequeue.spark import DeltaTable, IcebergTable, run_rounds, spark_session
    from sharequeue.spark.sinks import transferring
    from sharequeue.state import State
    from sharequeue.values import SharePartition
    from tests.deep.deep_lake_sinks import with_values
    from tests.fixtures.pipelines import Holder, job_of

    home, output, group, topic, lock_ms, kind, name, conf, at, delay_ms = sys.argv[1:]
    conf = json.loads(conf)
    sets = kind + ",s3a" if "spark.hadoop.fs.s3a.endpoint" in conf else kind
    settings = Settings.load(home, output=output, spark_jars=sets)
    transferring.CLAIM_SECONDS = 1.0

    def die():
        os.kill(os.getpid(), 9)

    def on_step(step):
        if step == at:
            threading.Timer(int(delay_ms) / 1000, die).start() if int(delay_ms) else die()

    sink = (DeltaTable if kind == "delta" else IcebergTable)(name, on_step)
    lock = int(lock_ms)
    job = job_of(group, topic, with_values, lock_duration_ms=lock, destination=sink)
    holder = Holder([SharePartition(group, topic, partition) for partition in range(2)], "killed")
    state, spark = State(Database.open(settings)), spark_session(settings, "killed", conf)
    run_rounds(settings, job, membership=holder, state=state, topics=Topics(settings), spark=spark, max_records=30)
    """
)


def kill(lake: Lake, settings: Settings, group: str, topic: str, at: str, delay_ms: int) -> int:
    """Run in a process that kills itself so long after a step; return its exit code."""
    given = [
        settings.home,
        settings.output,
        group,
        topic,
        LOCK_MS,
        lake.kind,
        lake.name,
        json.dumps(lake.conf()),
    ]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, given), at, str(delay_ms)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert killed.returncode in (0, -signal.SIGKILL), killed.stderr
    return killed.returncode


def until_lapsed(state: State, holder: Holder) -> None:
    deadline = time.monotonic() + 30
    while state.figures.leases(holder.assignment[0].group_id):
        assert time.monotonic() < deadline
        state.sweep()
        time.sleep(0.1)


def with_values(records: DataFrame) -> DataFrame:
    """Accept everything, with the value, except every tenth, which is rejected."""
    values = records.select(
        "topic", "partition", "offset", "lease_id", fn.col("value").cast("string").alias("uid")
    )
    return values.withColumn("outcome", fn.when(fn.col("offset") % 10 == 7, "reject").otherwise("accept"))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("lake", ["delta", "iceberg", "delta on s3", "iceberg on s3"], indirect=True)
def test_drivers_killed_at_random_moments_leave_each_record_once(
    lake: Lake,
    filled: str,
    group: str,
    assigned: Assigned,
    produce: Produce,
    run_job: RunJob,
    state: State,
    output_settings: Settings,
    request: pytest.FixtureRequest,
    told: list[str],
) -> None:
    """Killed from the acknowledgement on, in the table's commit, after it, in what the next one has to complete. The
    ledger is made from outside: what was produced, and what a reader of the table sees after each kill. It never
    sees a record twice, a value that is not the record's, or less than before; in the end it sees all."""
    lake.create("partition int, `offset` bigint, uid string")
    if lake.hadoop:
        output_settings = output_settings.replace(output=f"{request.getfixturevalue('on_s3')}/output")
    holder, killed = assigned(filled), 0
    ledger = {(partition, n): str(n) for partition in range(2) for n in range(RECORDS)}
    seen: set[tuple[int, int, str]] = set()

    def look() -> None:
        rows = [(row["partition"], row["offset"], row["uid"]) for row in lake.rows().collect()]
        assert len(rows) == len(set(rows))
        assert set(rows) >= seen
        assert all(ledger[row[:2]] == row[2] for row in rows)
        seen.update(rows)

    for seed in range(SEED, SEED + KILLS):
        chance = random.Random(seed)  # noqa: S311
        # Seldom before its table's commit is over: that takes a second or two.
        at, delay_ms = chance.choice(
            [
                ("acknowledged", 300),
                ("begun", 2500),
                ("appended", 50),
                ("ended", 20),
                ("removed", 300),
                ("begun", 1500),
            ]
        )
        delay_ms = chance.randint(0, delay_ms)
        code = kill(lake, output_settings, group, filled, at, delay_ms)
        look()
        print(f"seed {seed}: {delay_ms} ms after {at}: {code}, {len(seen)} rows")
        killed += code != 0
        until_lapsed(state, holder)
        for partition in range(2):
            first = 1 + max(n for of, n in ledger if of == partition)
            ledger |= {(partition, first + n): f"later-{seed}-{n}" for n in range(5)}
            produce(filled, partition, [f"later-{seed}-{n}" for n in range(5)])
    time.sleep(1)
    job = job_of(group, filled, with_values, destination=lake.sink())
    if lake.hadoop:
        topics = request.getfixturevalue("topics")
        run_rounds(output_settings, job, membership=holder, state=state, topics=topics, spark=lake.spark)
    else:
        run_job(job, holder)
    look()
    assert seen == {(*at, value) for at, value in ledger.items() if at[1] % 10 != 7}
    figures = state.figures.describe(group)
    assert (sum(each.accepted for each in figures), sum(each.lag for each in figures)) == (len(seen), 0)
    assert state.figures.verify(group) == []
    told.append(
        f"drivers killed around a {lake.kind} table, seeds {SEED} to {SEED + KILLS - 1}: {killed} died"
    )


@pytest.mark.parametrize(
    ("columns", "change", "said"),
    [
        (None, None, "there is no (Delta|Iceberg) table .*create table"),
        ("note string", None, "has no column partly"),
        (
            "partly int, `offset` bigint",
            None,
            "column partly is bigint in the handler's result and int in table",
        ),
        (
            "partly bigint, must string not null",
            None,
            "has NOT NULL on must, which the handler's result does not",
        ),
        ("partly decimal(20,0), `offset` int", None, "column offset is bigint .* and int in table"),
        (
            "partly bigint",
            "delta: set tblproperties ('delta.setTransactionRetentionDuration'='interval 1 days')",
            "it would forget which transfers it has taken",
        ),
        (
            "partly bigint",
            "iceberg: unset tblproperties ('write.wap.enabled')",
            "has not the property write.wap.enabled",
        ),
    ],
)
def test_a_table_that_cannot_take_all_is_refused_before_anything_is_leased(
    lake: Lake,
    filled: str,
    group: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    columns: str | None,
    change: str | None,
    said: str,
) -> None:
    """No table, no column, a narrower one, one that refuses nulls or values, one that would forget: an error says
    what to do, and no record was delivered."""
    if change is not None:
        kind, _, change = change.partition(": ")
        if kind != lake.kind:
            return
    if columns is not None:
        lake.create(columns)
    if change is not None:
        lake.alter(change)
    holder = assigned(filled)

    def handler(records: DataFrame) -> DataFrame:
        return all_accepted(records).withColumn("partly", fn.col("offset") * 2)

    with pytest.raises(SinkRefused, match=said):
        run_job(job_of(group, filled, handler, destination=lake.sink()), holder)
    assert [each.acquired for each in state.figures.describe(group)] == [0, 0]
    assert [each.spso for each in state.figures.describe(group)] == [0, 0]


def test_a_narrower_column_goes_into_a_wider_one(
    lake: Lake, filled: str, group: str, assigned: Assigned, run_job: RunJob
) -> None:
    """A column that the table has as a wider type, nested ones, and one that the table alone has."""
    lake.create("partition bigint, `offset` bigint, tags array<string>, place struct<x: int>, other string")

    def handler(records: DataFrame) -> DataFrame:
        tags, place = fn.array(fn.lit("a")), fn.struct(fn.col("partition").alias("x"))
        return all_accepted(records).withColumns({"tags": tags, "place": place})

    run_job(job_of(group, filled, handler, destination=lake.sink()), assigned(filled))
    assert lake.found() == once()
    [row] = lake.rows().where("partition = 1 and offset = 3").collect()
    assert (row["tags"], row["place"]["x"], row["other"]) == (["a"], 1, None)


DECLARED = {
    "delta": "id bigint not null, v varchar(3), c char(3), k string, tags array<varchar(2)>",
    "iceberg": "id bigint not null, v string, c string, k string, tags array<string>",
}
BEYOND = {
    "delta": {
        1: "v is longer than varchar(3)",
        2: "c is longer than char(3)",
        3: "id is null, and the table has NOT NULL on it",
        4: "k is a partition column, in which Delta keeps this text as null",
        5: "tags.element is longer than varchar(2)",
        6: "CHECK few of the table: id < 1000",
        7: "k is too long for the name of a partition's folder",
    },
    "iceberg": {
        3: "id is null, and the table has NOT NULL on it",
        7: "k is too long for the name of a partition's folder",
    },
}


def test_a_record_beyond_the_limits_of_a_table_is_rejected_and_the_others_go_on(
    lake: Lake,
    filled: str,
    group: str,
    assigned: Assigned,
    produce: Produce,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
) -> None:
    """`varchar(n)`, `char(n)`, NOT NULL, CHECK, partition columns: each record that the table would refuse or change
    is a reject with the reason, before its acknowledgement; the table gets all others, round after round."""
    lake.create(f"partition int, {DECLARED[lake.kind]}", "partitioned by (k)")
    if lake.kind == "delta":
        lake.alter("add constraint few check (id < 1000)")

    def handler(records: DataFrame) -> DataFrame:
        return all_accepted(records).selectExpr(
            "*",
            "case offset when 3 then null when 6 then 1000 else offset end as id",
            "if(offset = 1, 'four', 'abc') as v",
            "if(offset = 2, 'four', 'éèê') as c",
            "case offset when 4 then '' when 7 then repeat('x', 300) else concat('a/b=', partition) end as k",
            "array('a', if(offset = 5, 'four', null)) as tags",
        )

    job = job_of(group, filled, handler, destination=lake.sink())
    holder, beyond = assigned(filled), BEYOND[lake.kind]
    report = run_job(job, holder, max_records=30)
    assert len(report.rounds) > 1
    assert (report.accepted, report.rejected) == (2 * (RECORDS - len(beyond)), 2 * len(beyond))
    exceptions = read_output(spark, state, group, job.exceptions_sink).collect()
    assert {row["offset"]: row["error"] for row in exceptions} == beyond
    found = Counter((row["partition"], row["id"]) for row in lake.rows().collect())
    expected = Counter(
        (partition, 1000 if n == 6 else n)
        for partition in range(2)
        for n in range(RECORDS)
        if n not in beyond
    )
    assert found == expected
    produce(filled, 0, range(3))
    assert run_job(job, holder).accepted == 3


def test_what_does_not_match_a_table_any_more_waits_with_nothing_removed(
    lake: Lake, filled: str, group: str, assigned: Assigned, run_job: RunJob, output_settings: Settings
) -> None:
    """A column is renamed after its rows were acknowledged: the next run is refused by name before it leases, and
    removes nothing. Called as before, every value is there."""
    columns = "partition int, `offset` bigint, uid string"
    lake.create(columns)
    if lake.kind == "delta":
        lake.alter(
            "set tblproperties ('delta.columnMapping.mode'='name', 'delta.minReaderVersion'='2',"
            " 'delta.minWriterVersion'='5')"
        )
    handler = lambda records: all_accepted(records).withColumn("uid", fn.col("offset").cast("string"))  # noqa: E731
    job, holder = job_of(group, filled, handler), assigned(filled)

    def fail(step: Step) -> None:
        if step == "begun":
            raise OSError("failed here")

    with pytest.raises(OSError, match="failed here"):
        run_job(replace(job, destination=lake.sink(fail)), holder)
    lake.alter("rename column uid to other")
    before = sorted((output_settings.local_output / job.sink).glob("leases=*/*/*.parquet"))
    for _ in range(2):
        with pytest.raises(
            SinkRefused, match=r"80 accepted rows wait .* has no column uid.* Nothing was removed"
        ):
            run_job(replace(job, destination=lake.sink()), holder)
    assert before == sorted((output_settings.local_output / job.sink).glob("leases=*/*/*.parquet")) != []
    assert lake.rows().count() == 0
    lake.alter("rename column other to uid")
    run_job(replace(job, destination=lake.sink()), holder)
    assert lake.found() == once()
    assert lake.rows().where("uid = cast(offset as string)").count() == 2 * RECORDS


def test_a_table_that_was_altered_after_it_took_a_transfer_holds_up_nobody(
    lake: Lake, filled: str, group: str, assigned: Assigned, run_job: RunJob
) -> None:
    """The run ended between the table's commit and the note of it, and a column was renamed then: the number is in
    the table, and the next run goes on."""
    lake.create("partition int, `offset` bigint, uid string")
    if lake.kind == "delta":
        lake.alter(
            "set tblproperties ('delta.columnMapping.mode'='name', 'delta.minReaderVersion'='2',"
            " 'delta.minWriterVersion'='5')"
        )
    handler = lambda records: all_accepted(records).withColumn("uid", fn.lit("x"))  # noqa: E731
    job, holder = job_of(group, filled, handler), assigned(filled)

    def fail(step: Step) -> None:
        if step == "appended":
            raise OSError("failed here")

    with pytest.raises(OSError, match="failed here"):
        run_job(replace(job, destination=lake.sink(fail)), holder)
    lake.alter("rename column uid to other")
    run_job(job_of(group, filled, all_accepted, destination=lake.sink()), holder)
    assert lake.found() == once()
    assert lake.rows().where("other = 'x'").count() == 2 * RECORDS


@pytest.mark.parametrize("case_sensitive", ["true", "false"])
def test_names_that_differ_in_case_are_matched_or_refused(
    lake: Lake,
    filled: str,
    group: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    spark: SparkSession,
    case_sensitive: str,
) -> None:
    """A column `UID` gets the values of `uid`: in Delta always, in Iceberg where case does not count in the session;
    else the run is refused before it leases. Nothing becomes null."""
    lake.create("partition int, `offset` bigint, UID string")
    handler = lambda records: all_accepted(records).withColumn("uid", fn.lit("x"))  # noqa: E731
    job, holder = job_of(group, filled, handler, destination=lake.sink()), assigned(filled)
    spark.conf.set("spark.sql.caseSensitive", case_sensitive)
    try:
        if lake.kind == "iceberg" and case_sensitive == "true":
            with pytest.raises(SinkRefused, match="has no column uid"):
                run_job(job, holder)
            assert [each.spso for each in state.figures.describe(group)] == [0, 0]
            return
        run_job(job, holder)
    finally:
        spark.conf.set("spark.sql.caseSensitive", "false")
    assert lake.rows().where("UID = 'x'").count() == 2 * RECORDS
