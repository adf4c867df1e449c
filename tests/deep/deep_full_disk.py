"""An output folder on a disk that is full: an error by that name, wherever it is met, and no record pays for it. With
room again, each record comes at its first delivery and counts once. What HDFS does is in `deep_object_store.py`."""

from __future__ import annotations

import errno
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.outputs.manifest import read_manifest
from sharequeue.spark import OutputFull, OutputNotReachable, Summary
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.leased_records import lease
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.run import run_rounds
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Holder, Produce, job_of
from tests.fixtures.stack import MakeTopic

RECORDS = 2_000
BYTES = 500


class Disk:
    """A file system of a few megabytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resize(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.folder)], check=True, timeout=30)

    def fill(self) -> None:
        """Leave no room."""
        left = os.statvfs(self.folder)
        (self.folder / "filler").write_bytes(b"x" * left.f_bavail * left.f_bsize)

    def clear(self) -> None:
        (self.folder / "filler").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Give a disk of half a megabyte: less than what the records take."""
    if os.geteuid():
        pytest.fail("a small file system can be mounted by root only: run this test as root")
    folder = tmp_path / "disk"
    folder.mkdir()
    options = "size=512k,mode=777"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, timeout=30)
    yield Disk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=30)


def with_value(records: DataFrame) -> DataFrame:
    """Accept all with what they hold, and how often they were delivered."""
    kept = records.select("topic", "partition", "offset", "lease_id", "delivery_count", "value")
    return kept.withColumn("outcome", fn.lit("accept"))


def by_lease(accepted: DataFrame) -> DataFrame:
    return accepted.groupBy("lease_id").agg(fn.count("*").alias("rows"))


class Case:
    """A group whose pipeline writes to the disk."""

    def __init__(
        self,
        job: ShareGroupJob,
        holder: Holder,
        settings: Settings,
        state: State,
        topics: Topics,
        spark: SparkSession,
    ) -> None:
        self.job, self.holder, self.settings = job, holder, settings
        self.state, self.topics, self.spark = state, topics, spark

    def run(self) -> int:
        report = run_rounds(
            self.settings,
            self.job,
            membership=self.holder,
            state=self.state,
            topics=self.topics,
            spark=self.spark,
        )
        return report.accepted

    def is_untouched(self) -> bool:
        """Whether nothing was acknowledged, and nothing is held."""
        (status,) = self.state.figures.describe(self.job.group)
        counted = read_manifest(self.state, self.job.group, self.job.sink)
        return (status.spso, status.acquired, counted) == (0, 0, ())

    def ends_well(self) -> bool:
        """Whether the same run then takes all records, each at its first delivery and once."""
        assert self.run() == RECORDS
        sweep_outputs(self.spark, self.settings, self.state, self.job)
        rows = read_output(self.spark, self.state, self.job.group, self.job.sink).collect()
        counted = Counter((row["offset"], row["delivery_count"]) for row in rows)
        return counted == {(offset, 1): 1 for offset in range(RECORDS)}


@pytest.fixture
def case(
    disk: Disk,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    settings: Settings,
    state: State,
    topics: Topics,
    spark: SparkSession,
) -> Case:
    """Give records that no encoding makes smaller."""
    topic = make_topic(1)
    produce(topic, 0, (os.urandom(BYTES) for _ in range(RECORDS)))
    job = job_of(group, topic, with_value, summaries=(Summary("rows", by_lease),))
    return Case(job, assigned(topic), settings.replace(output=disk.folder / "output"), state, topics, spark)


def test_a_full_disk_refuses_a_run_before_its_lease(case: Case, disk: Disk) -> None:
    """Nothing is leased, for there is no room to mark whose the sink is."""
    disk.fill()
    with pytest.raises(OutputFull, match="full: free some space, and start again"):
        case.run()
    assert case.is_untouched()
    disk.clear()
    disk.resize("64m")
    assert case.ends_well()


def test_a_disk_that_fills_during_a_write_costs_no_delivery(case: Case, disk: Disk) -> None:
    """Nothing is acknowledged, and the deliveries are given back; also when it was so several times."""
    for _ in range(6):  # more often than a record may be delivered
        with pytest.raises(OutputFull, match="full: free some space, and start again"):
            case.run()
        assert case.is_untouched()
    disk.resize("64m")
    assert case.ends_well()


def test_a_disk_that_fills_during_a_lease_gives_it_back(case: Case, disk: Disk) -> None:
    """`leased.write` says it by the same name, and the block gives all back."""
    job = case.job
    with (
        pytest.raises(OutputFull),
        lease(
            job.group,
            job.topics,
            settings=case.settings,
            spark=case.spark,
            membership=case.holder,
            max_records=RECORDS,
        ) as leased,
    ):
        leased.write(with_value(leased.records), disk.folder / "outcomes")
    assert case.is_untouched()
    disk.resize("64m")
    with lease(
        job.group,
        job.topics,
        settings=case.settings,
        spark=case.spark,
        membership=case.holder,
        max_records=RECORDS,
    ) as leased:
        leased.write(with_value(leased.records), disk.folder / "outcomes")
        assert leased.acknowledge().accepted == RECORDS


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, OutputFull), (errno.EDQUOT, OutputFull), (errno.EIO, OutputNotReachable)],
)
def test_nothing_counts_if_the_disk_is_full_at_the_flush(
    case: Case, disk: Disk, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    """Some file systems take what is written and refuse it at fsync: nothing counts then either."""
    disk.resize("64m")

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OutputNotReachable, match=os.strerror(number)) as raised:
        case.run()
    assert type(raised.value) is kind
    assert case.is_untouched()
    monkeypatch.undo()
    assert case.ends_well()
