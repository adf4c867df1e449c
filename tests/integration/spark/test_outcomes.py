"""What files say of each offset, however their rows lie, told without sending offsets one by one."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.offsets import OffsetSet
from sharequeue.spark.handler import OUTCOMES, HandlerError
from sharequeue.spark.outcomes import offset_sets
from sharequeue.spark.outcomes.offset_sets import BITMAP_OFFSETS
from sharequeue.spark.outcomes.outcomes import read_back, seen_in
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob, job_of
from tests.fixtures.stack import MakeTopic

RECORDS = 40


def rows_of(spark: SparkSession, rows: list[tuple[int, str, int]]) -> DataFrame:
    """These rows (lease, outcome, offset) of one partition, in the order given, in two of Spark's partitions."""
    columns = zip(*rows, strict=True)
    kinds = (pa.int64(), pa.string(), pa.int64())
    table = pa.table(
        [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)],
        names=["lease_id", "outcome", "offset"],
    )
    return spark.createDataFrame(table).selectExpr("*", "'t' as topic", "0 as partition").repartition(2)


@pytest.mark.parametrize("how", ["bitmaps", "sorted", "files"])
def test_offset_sets_have_the_offsets_of_any_rows(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    """Random offsets at every edge of a bitmap and far out, shuffled, some twice, outcomes taking turns: as plain
    sets have them, by each of the ways that they are told."""
    if how == "sorted":
        monkeypatch.setattr(offset_sets, "MOST_BITMAPS", 3)
    monkeypatch.setattr(offset_sets, "ROWS_AT_ONCE", 100)
    chance = random.Random(7)  # noqa: S311
    edges = [0, 1, BITMAP_OFFSETS - 1, BITMAP_OFFSETS, BITMAP_OFFSETS + 1, 2 * BITMAP_OFFSETS, 10**15, 2**62]
    offsets = {
        lease: {*edges, *(chance.randrange(3 * BITMAP_OFFSETS) for _ in range(500)), *range(900, 1500)}
        for lease in (1, 2)
    }
    said = {(lease, n): chance.choice(list(OUTCOMES)) for lease, found in offsets.items() for n in found}
    rows = [(lease, kind, n) for (lease, n), kind in said.items()]
    twice = [row for row in rows if chance.random() < 0.1]
    chance.shuffle(rows)
    written = rows_of(spark, rows + twice)
    if how == "files":
        written.write.parquet(str(tmp_path / "rows"))
    seen = read_back(spark, [str(tmp_path / "rows")], delays=False) if how == "files" else seen_in(written)
    for lease, found in seen.items():
        for name, kind in OUTCOMES.items():
            expected = {n for (at, n), given in said.items() if (at, given) == (lease, name)}
            assert set(found.outcomes[kind].iter_offsets()) == expected
        assert set(found.offsets.iter_offsets()) == offsets[lease]
        assert found.accepted_rows == sum((at, kind) == (lease, "accept") for at, kind, _ in rows + twice)


def test_a_bitmap_that_is_full_is_not_sent(spark: SparkSession) -> None:
    """A long lease that was accepted whole is told by the numbers of its bitmaps."""
    frame = spark.range(5, 4 * BITMAP_OFFSETS).select(
        fn.lit(9).alias("lease_id"),
        fn.lit("accept").alias("outcome"),
        fn.col("id").alias("offset"),
        fn.lit("t").alias("topic"),
        fn.lit(0).alias("partition"),
    )
    bits = [row["bits"] for row in offset_sets._bitmaps(frame, ["lease_id"]).orderBy("bucket").collect()]
    assert [some is None for some in bits] == [False, True, True, True]
    (seen,) = seen_in(frame).values()
    assert seen.offsets == OffsetSet.of((5, 4 * BITMAP_OFFSETS))


@pytest.mark.parametrize(("offset", "told"), [("null", "no offset"), ("-1", "offset -")])
@pytest.mark.parametrize("how", ["bitmaps", "files"])
def test_a_row_that_names_no_record_is_refused(
    spark: SparkSession, tmp_path: Path, offset: str, told: str, how: str
) -> None:
    """A handler that joins may lose where its record lies: that is told, not a fault of Python's."""
    frame = spark.sql(
        "select 9L as lease_id, 'accept' as outcome, 't' as topic, 0 as partition,"
        f" cast({offset} as bigint) as offset"
    )
    frame.write.parquet(str(tmp_path / "rows"))
    files = partial(read_back, spark, [str(tmp_path / "rows")], delays=False)
    tell = files if how == "files" else partial(seen_in, frame)
    with pytest.raises(HandlerError, match=f"a row has {told}"):
        tell()


def test_rows_that_contradict_each_other_are_refused(spark: SparkSession) -> None:
    """The message names one offset of those with two outcomes."""
    rows = [(9, "accept", 5), (9, "accept", 6), (9, "accept", 7), (9, "reject", 6)]
    with pytest.raises(HandlerError, match=r"offset 6 \(lease 9\) more than one outcome"):
        seen_in(rows_of(spark, rows))


def two_of(records: DataFrame) -> DataFrame:
    """Two rows of every record at an even offset, none of the others: as many rows as records."""
    copies = fn.explode(fn.sequence(fn.lit(1), fn.lit(2)))
    kept = records.where("offset % 2 = 0").select("topic", "partition", "offset", "lease_id")
    return kept.withColumns({"outcome": fn.lit("accept"), "copy": copies})


def test_a_doubled_row_does_not_count_for_a_missing_one(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """A handler that leaves out as many records as it doubles: those it left out get what the job says."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    report = run_job(job_of(group, topic, two_of, without_row="release"), assigned(topic), max_rounds=1)
    assert (report.accepted, report.released, report.rounds[0].without_row) == (20, 20, 20)
    assert state.figures.verify(group) == []
