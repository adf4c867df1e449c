"""A ledger of records that are kept, under kills: drivers die at the steps of keeping, reading and removing raw
records, and at random moments, over each kind of sink; the files of these records are removed, cut and changed,
keeping is switched off and on, and the topic is made again.

What must hold is taken from the answers alone: what handlers were given, what is in the sinks, the dead letters, and
the log. Each record is in its sink once with its own bytes, or is one dead letter; it was released as often as it had
to be; and nothing is kept of finished records. `SHAREQUEUE_TEST_KEPT_KILLS` are the kills for each kind.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession

from sharequeue.database import Database
from sharequeue.deadletters.topic import create_dead_letter_topic
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import READ_COMMITTED
from sharequeue.kafka.headers import headers_of
from sharequeue.kafka.reading import scan
from sharequeue.kafka.topics import Topics
from sharequeue.local.stack import StackInfo
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.sweep import sweep_outputs
from sharequeue.state import State
from tests.deep.kept_worker import COLUMNS, PARTITIONS
from tests.deep.kept_worker import told as told_by
from tests.deep.kept_world import LIMIT, NEVER, Bucket, Disk, KeptWorld, Place, Record, Row
from tests.fixtures.cluster import HOSTS, Cluster, cluster_on
from tests.fixtures.lakes import LakeOf
from tests.fixtures.object_stores import S3
from tests.fixtures.pipelines import all_accepted, begin_group, job_of
from tests.fixtures.stack import MakeTopic
from tests.servers.cluster_driver import CONF

KILLS = int(os.environ.get("SHAREQUEUE_TEST_KEPT_KILLS", "20"))
SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
_COLUMNS = f"partition int, offset long, {COLUMNS}"
_IN_TABLE = 'partition int, "offset" bigint, number int, deliveries int, content text'


@dataclass
class Ledger:
    """A world, and who reads its sinks."""

    world: KeptWorld
    rows: Callable[[str], list[Row]]
    """The rows in the sink of a group."""
    spark: SparkSession

    def job(self, group: str) -> ShareGroupJob:
        """Return the job of a group, for those who read or sweep its output."""
        return job_of(group, self.world.topic, all_accepted)

    def chaos(self) -> None:
        """Let drivers work and die."""
        world = self.world
        while world.killed < KILLS and world.done["lives"] < 2 * KILLS + 2:
            life = world.done["lives"]
            if life == KILLS // 2:
                world.again()
            else:
                world.feed()
            world.switch(life % 8 != 5)
            if world.draw.random() < 0.4:
                world.damage()
            world.live(world.plan())
        world.switch(True)

    def drain(self) -> None:
        """Work until nothing is open."""
        for _ in range(4):
            self.world.live([], 2 * LIMIT)
            if self.world.lag() == 0:
                break
        assert self.world.lag() == 0

    def check(self) -> list[str]:
        """Hold everything to the log; return the figures."""
        world = self.world
        world.made = world.read_log()
        assert not world.made.keys() & world.before.keys()
        lines = [self.check_group(group) for group in world.targets]
        self.check_handed()
        for group in world.targets:
            assert world.state.figures.verify(group) == []
            job = self.job(group)
            sweep_outputs(self.spark, world.settings, world.state, job)
            assert sweep_outputs(self.spark, world.settings, world.state, job) == []
            assert world.state.kept.removable(group, all_rows=True) == []
        assert world.kept() == []
        return lines

    def check_group(self, group: str) -> str:
        """Each record is in the sink once, or is one dead letter, and all bytes are its own."""
        world = self.world
        log = world.before | world.made
        rows = self.rows(group)
        doubled = [number for number, times in Counter(row.number for row in rows).items() if times > 1]
        assert doubled == [], f"{group}: {doubled[:9]} are in the sink more than once"
        for row in rows:
            assert (row.place, row.content) == log[row.number][:2], f"{group}: {row} is not {log[row.number]}"
            assert fails_of(log[row.number]) < row.deliveries <= LIMIT, f"{group}: {row}"
        letters = self.letters(group)
        accepted = {row.number for row in rows}
        assert not accepted & letters.keys(), f"{group}: accepted, and a dead letter"
        lost = world.made.keys() - accepted - letters.keys()
        assert not lost, f"{group}: {sorted(lost)[:9]} are lost"
        given_up = {number for number in letters if fails_of(log[number]) < LIMIT}
        assert all(letters[number] == LIMIT for number in given_up), (
            f"{group}: {given_up} had deliveries left"
        )
        released = self.check_released(group, {row.number: row for row in rows})
        return (
            f"{group}: {len(world.made):,} records, {len(world.before):,} of the topic before; {len(rows):,} rows,"
            f" {len(letters)} dead letters ({len(given_up)} because of kills), {released} rows of releases"
        )

    def letters(self, group: str) -> dict[int, int]:
        """Return the delivery count of each dead letter, which has the bytes of its record."""
        log, found = self.world.before | self.world.made, dict[int, int]()
        for letter in self.world.letters(group):
            assert letter.value is not None, letter
            number = told_by(letter.value)[0]
            place: Place = (letter.source_partition or 0, letter.source_offset or 0)
            assert (place, letter.value, letter.key) == (
                log[number].place,
                log[number].value,
                log[number].key,
            )
            assert number not in found, f"{group}: two letters of {number}"
            found[number] = LIMIT if is_rejected(log[number]) else letter.delivery_count or 0
        return found

    def check_released(self, group: str, rows: dict[int, Row]) -> int:
        """No record was released that should not be, none twice with one delivery, and none after it was accepted. Of
        `by_row`, a record that failed has no columns of the handler: what it was given is checked instead.
        """
        world = self.world
        log, sink = world.before | world.made, self.job(group).exceptions_sink
        columns = f"outcome string, {COLUMNS}"
        of: dict[int, list[int]] = defaultdict(list)
        for row in read_output(self.spark, world.state, group, sink, columns, known=(sink,)).collect():
            if row["outcome"] == "release" and row["number"] is not None:
                assert row["deliveries"] <= fails_of(log[row["number"]]), f"{group}: {row}"
                of[row["number"]].append(row["deliveries"])
        for number, deliveries in of.items():
            assert len(set(deliveries)) == len(deliveries), (
                f"{group}: {number} was released twice: {deliveries}"
            )
            assert number not in rows or max(deliveries) < rows[number].deliveries
        return sum(map(len, of.values()))

    def check_handed(self) -> None:
        """What the handler of `rows` was given are the bytes of the log; its delivery counts grow."""
        log = self.world.before | self.world.made
        counts: dict[int, dict[int, int]] = defaultdict(dict)
        for line in (self.world.folder / "ledger").read_text().splitlines():
            number, deliveries, lease_id, content = json.loads(line)
            assert content == log[number].content, f"{number}: {content} is not {log[number].content}"
            assert counts[number].setdefault(lease_id, deliveries) == deliveries
        for number, leases in counts.items():
            grown = [leases[at] for at in sorted(leases)]
            assert grown == sorted(grown), f"{number}: {grown}"
            assert grown[-1] <= LIMIT, f"{number}: {grown}"


def fails_of(record: Record) -> int:
    """Return how often a record has to be released."""
    _, fails, rejected = told_by(record.value)
    return NEVER if rejected else fails


def is_rejected(record: Record) -> bool:
    """Return whether a record is rejected."""
    return told_by(record.value)[2]


def rows_of(found: DataFrame) -> list[Row]:
    """Return the rows of a frame."""
    some = found.select("partition", "offset", "number", "deliveries", "content").collect()
    return [Row((row[0], row[1]), *row[2:]) for row in some]


@pytest.fixture
def database(private_database: Database) -> Database:
    """Give a database whose clock the test moves."""
    return private_database


@pytest.fixture
def killing_cluster(stack: StackInfo, kind: str, tmp_path: Path) -> Iterator[Cluster | None]:
    """Give a cluster to the kind that needs one."""
    if kind != "cluster":
        yield None
        return
    with cluster_on(stack, str(tmp_path / "output")) as made:
        yield made


@pytest.fixture
def ledger(
    kind: str,
    database: Database,
    state: State,
    topics: Topics,
    group: str,
    make_topic: MakeTopic,
    lake_of: LakeOf,
    spark: SparkSession,
    output_settings: Settings,
    tmp_path: Path,
    killing_cluster: Cluster | None,
    request: pytest.FixtureRequest,
) -> Ledger:
    """Give a world whose groups write to a sink of one kind."""
    topic = make_topic(PARTITIONS, retention_ms="-1")
    groups = [f"{name}-{group}" for name in ("rows", "frames")]
    for each in groups:
        create_dead_letter_topic(topics, f"dlq.{each}", 1)
        configs = {
            "share.delivery.count.limit": str(LIMIT),
            "errors.deadletterqueue.topic.name": f"dlq.{each}",
            "errors.deadletterqueue.copy.record.enable": "true",
        }
        begin_group(database, state, topics, each, [topic], configs)
    settings, conf = output_settings, dict[str, str]()
    store: Disk | Bucket = Disk(settings.local_output)
    if kind == "s3":
        s3: S3 = request.getfixturevalue("s3")
        settings = settings.replace(output=request.getfixturevalue("on_s3"))
        conf = {f"spark.hadoop.{name}": value for name, value in s3.conf.items()}
        store = Bucket(s3.client(), s3.keys, settings.output.split("/")[2])
    given = {
        "home": str(settings.home),
        "database_url": database.engine.url.render_as_string(hide_password=False),
        "bootstrap_servers": settings.bootstrap_servers,
        "output": settings.output,
        "spark_jars": {"s3": "s3a", "delta": "delta", "iceberg": "iceberg"}.get(kind, ""),
    }
    targets = dict.fromkeys(groups, "")

    def of_files(name: str) -> list[Row]:
        sink = job_of(name, topic, all_accepted).sink
        return rows_of(read_output(spark, state, name, sink, _COLUMNS, known=(sink,)))

    rows = of_files
    if kind == "postgres":
        targets = {each: f"public.{each.replace('-', '_')}" for each in groups}
        with database.transaction() as connection:
            for table in targets.values():
                connection.execute(sa.text(f"create table {table} ({_IN_TABLE})"))
        rows = lambda name: of_table(database, targets[name])  # noqa: E731
    elif kind == "topic":
        targets = {each: make_topic(3, f"made-{each}", retention_ms="-1") for each in groups}
        rows = lambda name: of_topic(settings, topics, targets[name])  # noqa: E731
    elif kind in ("delta", "iceberg"):
        made = lake_of(kind)
        lakes = {each: replace(made, name=f"{made.name}_{number}") for number, each in enumerate(groups)}
        for lake in lakes.values():
            lake.create("partition int, `offset` bigint, number int, deliveries int, content string")
        targets, conf = {each: lake.name for each, lake in lakes.items()}, made.conf()
        rows = lambda name: rows_of(lakes[name].rows())  # noqa: E731
    draw = random.Random(SEED)  # noqa: S311
    world = KeptWorld(
        *(settings, given, conf, database, state, topics, topic, make_topic, kind, targets, store),
        *(tmp_path, draw),
    )
    if killing_cluster is not None:
        world.given = {**given, "spark_master": killing_cluster.master, "output_shared": True}
        world.conf = CONF
        world.beside = lambda: kill_a_worker(killing_cluster, draw)
    return Ledger(world, rows, spark)


def kill_a_worker(cluster: Cluster, draw: random.Random) -> str:
    """Kill a worker of the cluster with its executors, sometimes, and start another."""
    if draw.random() < 0.7:
        return ""
    time.sleep(draw.uniform(5, 25))
    cluster.kill_worker(HOSTS[1])
    cluster.start_worker(HOSTS[1])
    return "a worker was killed"


def of_table(database: Database, table: str) -> list[Row]:
    """Return the rows of a table of Postgres."""
    found = database.rows(sa.text(f'select partition, "offset", number, deliveries, content from {table}'))  # noqa: S608
    return [
        Row((row["partition"], row["offset"]), row["number"], row["deliveries"], row["content"])
        for row in found
    ]


def of_topic(settings: Settings, topics: Topics, name: str) -> list[Row]:
    """Return the committed rows of a topic."""
    ends = {(name, at): log.last_stable_offset for at, log in topics.offsets(name).items()}
    found = []
    with closing(scan(settings, READ_COMMITTED, dict.fromkeys(ends, 0), ends)) as messages:
        for each in messages:
            row, of = json.loads(each.value() or b""), dict(headers_of(each))
            place = (int(of["sharequeue.result.partition"] or 0), int(of["sharequeue.result.offset"] or 0))
            found.append(Row(place, row["number"], row["deliveries"], row["content"]))
    return found


@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", ["postgres", "topic", "files", "s3", "delta", "iceberg", "cluster"])
def test_records_that_are_kept_come_once_whatever_is_killed(
    kind: str, ledger: Ledger, told: list[str]
) -> None:
    """Each record is in the sink once, with its bytes, or is a dead letter, and nothing is kept of it in the end."""
    print(f"SHAREQUEUE_TEST_SEED={SEED}")
    world = ledger.world
    ledger.chaos()
    ledger.drain()
    lines = ledger.check()
    steps = Counter((world.folder / "steps").read_text().splitlines())
    warned = len(re.findall("kept records cannot be read", (world.folder / "driver.log").read_text()))
    assert steps["reading kept"]
    told.append(f"kept records, {kind}, seed {SEED}: {world.killed} kills, {dict(world.done)}")
    told.extend(f"  {line}" for line in (*lines, f"{dict(steps)}, {warned} warnings of damaged files"))
