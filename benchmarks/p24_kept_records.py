"""P24, P25: a second pass over records that were released before, from the files in which they are kept.

P24: one in a hundred and one in a thousand of a topic's records were released by a run of their group. They are
leased again and read: from kept files, with the look-up and the check of the files, and from the log. Compared with
a plain scan of all by Spark's connector.

P25: a queue at work: a run every five minutes, each on a twelfth of an hour's records, of which one in a hundred is
released and waits for an hour. The last run also gets what the first one released, so that an hour of the log is
between its first and its last record. Compared with the first run, which gets nothing again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.database import lease_all
from benchmarks.harness import WARM_UP, Side, Table, case, in_turn, number, say, seconds, side_table, spread
from benchmarks.stack import (
    PARTITIONS,
    RECORD_BYTES,
    Holder,
    connector,
    fill,
    group_on,
    session,
    stack,
    total,
)
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Lease
from sharequeue.groups.configs import GroupConfigs, alter_group_configs
from sharequeue.kafka.topics import Topics
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.kept_records import KeptFiles
from sharequeue.spark.reading.source import TopicSource
from sharequeue.spark.run import run_rounds
from sharequeue.state import State

TOPIC = "kept"
RUNS_AN_HOUR = 12
KEEP, BACKOFF = "sharequeue.retry.keep.enable", "sharequeue.retry.backoff.ms"
_MOVED = (
    "select sharequeue.set_clock_offset("
    "coalesce((select amount from sharequeue.clock_offset), interval '0') + :more)"
)
_COLUMNS = ("topic", "partition", "offset", "lease_id", "sharequeue_raw")


def single(step: int) -> str:
    """Return the condition of one in so many records."""
    return f"offset % {step} = 0"


def released(failed: str, records: DataFrame) -> DataFrame:
    """Release the records that fail at their first delivery, and accept all others."""
    outcome = f"if({failed} and delivery_count = 1, 'release', 'accept') as outcome"
    there = records.columns
    return records.selectExpr(*(name for name in _COLUMNS if name in there), outcome)


def a_round(settings: Settings, spark: SparkSession, holder: Holder, failed: str, records: int) -> float:
    """Return the seconds of a run of one round of so many records, of which those that fail are released."""
    handler = partial(released, failed)
    job = ShareGroupJob(
        holder.group, (TOPIC,), handler, holder.group, headers=False, name="kept", try_empty=False
    )
    with Database.open(settings) as database, Topics(settings) as topics:
        state = State(database)
        state.figures.describe(job.group)  # connect first, as a job does before its first lease
        return seconds(
            lambda: run_rounds(
                settings,
                job,
                membership=holder,
                state=state,
                topics=topics,
                spark=spark,
                max_rounds=1,
                max_records=records,
            )
        )


def released_before(
    settings: Settings, spark: SparkSession, records: int, failed: str
) -> tuple[str, list[Lease]]:
    """Have a group keep the records that fail, and lease these again; return the group and the leases."""
    holder = group_on(settings, TOPIC)
    with Database.open(settings) as database, Topics(settings) as topics:
        alter_group_configs(database, holder.group, {KEEP: "true", BACKOFF: "0"})
        a_round(settings, spark, holder, failed, records)
        state, info = State(database), topics.describe([TOPIC])[TOPIC]
        leases = [lease_all(state, at, info.topic_id, records // PARTITIONS) for at in holder.assignment]
    return holder.group, leases


def kept_files(source: TopicSource, database: Database, group: str) -> KeptFiles:
    """Return what a group has kept."""
    files = KeptFiles.of(source, GroupConfigs.load(database, group), [TOPIC])
    assert files is not None
    return files


def from_files(files: KeptFiles, leases: Sequence[Lease]) -> DataFrame:
    """Return the records of leases, all of which are kept, with the look-up and the check of the files."""
    kept = files.find(leases)
    there = sum(row.offsets.count for rows in kept.rows.values() for row in rows)
    assert there == sum(lease.offsets.count for lease in leases)
    return files.records(leases, kept)


def evaluate(records: DataFrame) -> None:
    """Make all columns of all records, in one stage, as the write of a round does."""
    records.write.format("noop").mode("overwrite").save()


@contextmanager
def output(settings: Settings) -> Iterator[Settings]:
    """Yield the settings with an output folder, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="sharequeue-bench-output-") as folder:
        yield settings.replace(output=folder)


@case("P24", "1 % ≤ 0.1 ×, 0.1 % ≤ 0.05 × the plain scan's time", records=400_000, rounds=3)
def kept_pass(records: int = 2_000_000, rounds: int = 5) -> Iterator[Table]:
    """Compare a second pass over kept records with a plain scan of all, for small and for usual records."""
    for record_bytes in (RECORD_BYTES, 1000):
        yield from _kept_pass(records, rounds, record_bytes)


def _kept_pass(records: int, rounds: int, record_bytes: int) -> Iterator[Table]:
    def read(expected: int, frame: DataFrame) -> None:
        assert total(frame) == (expected * record_bytes, expected)

    with stack() as stacked, output(stacked) as settings, session(settings) as spark:
        fill(settings, TOPIC, records, record_bytes)
        groups = {step: released_before(settings, spark, records, single(step)) for step in (100, 1000)}
        with Database.open(settings) as database, Topics(settings) as topics:
            source = TopicSource(settings, State(database), topics, spark, headers=False)

            def plain() -> float:
                ranges = dict.fromkeys(range(PARTITIONS), (0, records // PARTITIONS))
                return seconds(lambda: evaluate(connector(settings, spark, TOPIC, ranges)))

            files = {step: kept_files(source, database, group) for step, (group, _) in groups.items()}

            def again(step: int) -> None:
                evaluate(from_files(files[step], groups[step][1]))

            def from_log(step: int) -> None:
                evaluate(source.records(groups[step][1]))

            for step, (_, leases) in groups.items():
                read(records // step, from_files(files[step], leases))
                read(records // step, source.records(leases))
            scan = "plain scan of all"
            sides: dict[str, Side] = {scan: plain}
            for step, share in ((100, "1 %"), (1000, "0.1 %")):
                sides[f"{share}, from kept files"] = partial(seconds, partial(again, step))
                sides[f"{share}, from the log"] = partial(seconds, partial(from_log, step))
            measured = in_turn(sides, rounds, warm_up=WARM_UP)
    yield side_table(
        measured,
        base=scan,
        title=f"a second pass over {records:,} records of {record_bytes} bytes, scattered singly",
    )


@case("P25", "the last run ≤ 1.25 × the first", records=240_000, rounds=2)
def steady_queue(records: int = 1_200_000, rounds: int = 3) -> Iterator[Table]:
    """Compare a run that gets released records of an hour ago with one that gets nothing again."""
    each, rows = records // RUNS_AN_HOUR, []
    with stack() as stacked, session(stacked) as spark:
        # The last run has as many new records as the others.
        fill(stacked, TOPIC, records + each)
        taken: dict[str, list[list[float]]] = {"kept": [], "from the log": []}
        for round_ in range(rounds + 1):
            for how, figures in taken.items():
                with output(stacked) as settings, Database.open(settings) as database:
                    holder = group_on(settings, TOPIC)
                    keeps = str(how == "kept").lower()
                    alter_group_configs(database, holder.group, {KEEP: keeps, BACKOFF: "3600000"})
                    runs = []
                    for _ in range(RUNS_AN_HOUR + 1):
                        runs.append(a_round(settings, spark, holder, single(100), each))
                        database.rows(sa.text(_MOVED), more=timedelta(seconds=3700 / RUNS_AN_HOUR))
                if round_ > 0:
                    figures.append(runs)
                say(f"{how}: {' '.join(f'{one:.2f}' for one in runs)}")
    for how, figures in taken.items():
        first, last = ([runs[at] for runs in figures] for at in (0, -1))
        ratios = [runs[-1] / runs[0] for runs in figures]
        middle = sorted(ratios)[len(ratios) // 2]
        rows += [
            (f"{how}: first run", number(sorted(first)[len(first) // 2]), spread(first), ""),
            (f"{how}: last run", number(sorted(last)[len(last) // 2]), spread(last), f"{middle:.2f}"),
        ]
    headings = ("run", f"seconds, median of {rounds}", "range", "× the first run of its series")
    yield Table(headings, rows, f"{RUNS_AN_HOUR + 1} runs of {each:,} new records")
