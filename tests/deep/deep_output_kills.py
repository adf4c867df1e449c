"""A ledger of drivers that are killed at random moments, over files and tables, on this machine and on S3."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from pyspark.sql import DataFrame, SparkSession

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.spark import ParquetByLease
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.run import run_rounds
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from tests.deep.deep_sink_kills import SEED
from tests.deep.killed_run import Death, killed, with_values
from tests.fixtures.lakes import RECORDS, Lake, LakeOf
from tests.fixtures.object_stores import S3
from tests.fixtures.pipelines import Assigned, Produce, job_of
from tests.waiting import pass_time

KILLS = 3
LATER = 5
"""Records that come to each partition after each kill."""
MOMENTS: tuple[tuple[str, int], ...] = (
    ("handling", 4000),
    ("acknowledging", 40),
    ("acknowledged", 300),
)
"""A step of a run, and the most milliseconds after it."""
MOMENTS_OF_A_TABLE: tuple[tuple[str, int], ...] = (
    *MOMENTS,
    # Its own commit takes a second or two.
    ("begun", 2500),
    ("begun", 1500),
    ("appended", 50),
    ("ended", 20),
    ("removed", 300),
)
Row = tuple[int, int, str]


@pytest.fixture
def database(private_database: Database) -> Database:
    """Give a database whose clock the test may move."""
    return private_database


@dataclass
class Ledger:
    """What was produced, and what a reader of the output has seen so far."""

    read: Callable[[], DataFrame]
    counts_at_once: bool
    """Whether a reader sees what is acknowledged without a transfer."""
    state: State
    group: str
    produced: dict[tuple[int, int], str] = field(default_factory=dict)
    seen: set[Row] = field(default_factory=set)

    @property
    def wanted(self) -> set[Row]:
        return {(*at, value) for at, value in self.produced.items() if at[1] % 10 != 7}

    @property
    def rejected(self) -> set[Row]:
        return {(*at, value) for at, value in self.produced.items()} - self.wanted

    def accepted(self) -> int:
        return sum(each.accepted for each in self.state.figures.describe(self.group))

    def look(self) -> None:
        """The reader sees no record twice, no value that is not the record's, and not less than before; and no more
        than is acknowledged.
        """
        rows = rows_of(self.read())
        assert max(rows.values(), default=1) == 1
        assert self.seen <= rows.keys() <= self.wanted
        assert len(rows) == self.accepted() if self.counts_at_once else len(rows) <= self.accepted()
        self.seen |= rows.keys()


def rows_of(found: DataFrame) -> Counter[Row]:
    return Counter((row["partition"], row["offset"], row["uid"]) for row in found.collect())


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "place", ["parquet", "parquet on s3", "delta", "delta on s3", "iceberg", "iceberg on s3"]
)
def test_drivers_killed_at_random_moments_leave_each_record_once(
    place: str,
    lake_of: LakeOf,
    lake_topic: str,
    group: str,
    assigned: Assigned,
    produce: Produce,
    private_database: Database,
    topics: Topics,
    spark: SparkSession,
    output_settings: Settings,
    request: pytest.FixtureRequest,
    told: list[str],
) -> None:
    """While tasks write, in the acknowledgement, in the table's commit, in what the next one has to complete. Each
    record that was acknowledged is in the output once, at each look and in the end; what does not count is swept."""
    kind, _, store = place.partition(" on ")
    url = private_database.engine.url.render_as_string(hide_password=False)
    settings, conf = output_settings.replace(database_url=url), dict[str, str]()
    state = State(private_database)
    if store:
        s3: S3 = request.getfixturevalue("s3")
        settings = settings.replace(output=f"{request.getfixturevalue('on_s3')}/output")
        conf = {f"spark.hadoop.{name}": value for name, value in s3.conf.items()}
    table: Lake | None = None
    job = job_of(group, lake_topic, with_values, destination=ParquetByLease())
    if kind != "parquet":
        table = lake_of(place)
        table.create("partition int, `offset` bigint, uid string")
        conf |= table.conf()
        job = job_of(group, lake_topic, with_values, destination=table.sink())
    holder = assigned(lake_topic)

    def read() -> DataFrame:
        if table is not None:
            return table.rows()
        known = (job.sink,)
        return read_output(
            spark, state, group, job.sink, "partition int, offset long, uid string", known=known
        )

    ledger = Ledger(read, table is None, state, group)
    ledger.produced = {(partition, n): str(n) for partition in range(2) for n in range(RECORDS)}
    died = 0
    for seed in range(SEED, SEED + KILLS):
        chance = random.Random(seed)  # noqa: S311
        at, most_ms = chance.choice(MOMENTS if table is None else MOMENTS_OF_A_TABLE)
        nth, delay_ms = chance.randint(1, 2), chance.randint(0, most_ms)
        death = Death(
            str(settings.home),
            url,
            settings.output,
            group,
            lake_topic,
            kind,
            table.name if table else "",
            conf,
            at,
            nth,
            delay_ms,
        )
        it_died = killed(death)
        ledger.look()
        print(f"seed {seed}: {delay_ms} ms after {at} {nth}: {it_died}, {len(ledger.seen)} rows")
        died += it_died
        pass_time(private_database, 3600)  # its locks and its claim lapse
        for partition in range(2):
            first = 1 + max(n for of, n in ledger.produced if of == partition)
            later = [f"later-{seed}-{n}" for n in range(LATER)]
            produce(lake_topic, partition, later)
            ledger.produced |= {(partition, first + n): value for n, value in enumerate(later)}
    run_rounds(settings, job, membership=holder, state=state, topics=topics, spark=spark)
    ledger.look()
    assert ledger.seen == ledger.wanted
    rejects = rows_of(read_output(spark, state, group, job.exceptions_sink))
    assert rejects == dict.fromkeys(ledger.rejected, 1)
    figures = state.figures.describe(group)
    assert (ledger.accepted(), sum(each.lag for each in figures)) == (len(ledger.wanted), 0)
    assert state.figures.verify(group) == []
    sweep_outputs(spark, settings, state, job)
    assert sweep_outputs(spark, settings, state, job) == []
    ledger.look()
    told.append(f"drivers killed, output in {place}, seeds {SEED} to {SEED + KILLS - 1}: {died} died")
