"""The world of the ledger of ordered keys: servers that can be killed, two runs and a consumer that are killed and
started again, where they write, and what was produced."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.deadletters.topic import create_dead_letter_topic
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.local.stack import status, up
from sharequeue.state import State
from tests.deep.ordered_outputs import Kind, Output
from tests.deep.servers import Replica, of_code, set_configs, sharequeue
from tests.fixtures.stack import REPOSITORY, jars_folder, say

LOCK_MS, SESSION_MS, HEARTBEAT_MS = 5_000, 8_000, 1_000
SHORT = {
    "SHAREQUEUE_GROUP_SHARE_MIN_RECORD_LOCK_DURATION_MS": "1000",
    "SHAREQUEUE_GROUP_SHARE_MIN_SESSION_TIMEOUT_MS": "1000",
    "SHAREQUEUE_GROUP_SHARE_SESSION_TIMEOUT_MS": str(SESSION_MS),
    "SHAREQUEUE_GROUP_SHARE_MIN_HEARTBEAT_INTERVAL_MS": "500",
    "SHAREQUEUE_GROUP_SHARE_HEARTBEAT_INTERVAL_MS": str(HEARTBEAT_MS),
}
"""Service configs: who was killed is missed after seconds."""
BACK_OFF_MS = 1_000
"""The longest of a failed record, as it is configured."""
WAIT_MS = 1.2 * BACK_OFF_MS + 1_000
"""The longest wait: a back-off may be longer by a fifth, and ends at a whole second."""
QUIET_S = 900.0
"""So long nothing may be finished, while everybody works: a start of Spark on a busy machine takes a minute."""
WORKERS = ("first run", "second run", "consumer")
DISTURBANCES = (*WORKERS, "pause first run", "pause consumer", "postgres", "kafka", "service")
_BEHIND = sa.text(
    "select count(*) as records from sharequeue.open_key_records r"
    " join sharequeue.share_partitions sp using (share_partition_id)"
    " where sp.group_id = :group and r.letter is null and exists ("
    " select from sharequeue.open_key_records l where l.share_partition_id = r.share_partition_id"
    ' and l.letter is not null and l.key_hash = r.key_hash and l."offset" < r."offset")'
)
NULL_KEYS = 0.02
"""The part of the records that have no key."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is produced, and how often something is killed."""

    records: int
    keys: int
    partitions: int
    kills: int


@dataclass(frozen=True, slots=True)
class Order:
    """A record as it was produced."""

    number: int
    key: bytes | None
    partition: int
    fails: int = 0
    rejected: bool = False
    kills: bool = False

    @property
    def value(self) -> bytes:
        """What the workers read."""
        told = {name: getattr(self, name) for name in ("number", "fails", "rejected", "kills")}
        return json.dumps(told).encode()


def orders(sizes: Sizes, seed: int) -> list[Order]:
    """Make the records: keys with Zipf weights, 1 % that fail once or three times, 0.1 % that are rejected (two at
    least), and one that kills its process."""
    draw = np.random.default_rng(seed)
    weights = 1 / np.arange(1, sizes.keys + 1)
    keys = draw.choice(sizes.keys, sizes.records, p=weights / weights.sum())
    partition_of = draw.integers(0, sizes.partitions, sizes.keys)
    chance, without = draw.random(sizes.records), draw.random(sizes.records) < NULL_KEYS
    # In the midst, and of a key that is neither the hottest nor alone.
    killing = next(
        n for n in range(sizes.records // 2, sizes.records) if 3 <= keys[n] < 50 and not without[n]
    )
    made = []
    for number, key in enumerate(keys.tolist()):
        fails = 0 if chance[number] >= 0.01 or number == killing else 1 if chance[number] < 0.005 else 3
        rejected = bool(0.01 <= chance[number] < 0.011) or number in (sizes.records // 5, sizes.records // 3)
        rejected, fails = rejected and number != killing, 0 if rejected else fails
        name: bytes | None = b"key-%d" % key
        partition = int(partition_of[key])
        if without[number]:
            name, partition = None, number % sizes.partitions
        elif key == 7:
            name = b""  # an empty key is a key
        made.append(Order(number, name, partition, fails, rejected, number == killing))
    return made


@dataclass
class OrderedWorld:
    """All there is."""

    name: str
    settings: Settings
    database: Database
    replica: Replica
    folder: Path
    given: dict[str, str]
    draw: random.Random
    output: Output
    letters_hold: bool
    deck: list[str] = field(default_factory=list)
    """What will be disturbed next, the last first: each kind once, in random order, then again."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    killed: int = 0

    @property
    def letters(self) -> str:
        """The dead-letter topic."""
        return f"dlq.{self.name}"

    @property
    def repaired(self) -> Path:
        """Once this file is there, nothing is rejected any more."""
        return self.folder / "repaired"

    @property
    def ledger(self) -> Path:
        """What consumers have written down."""
        return self.folder / "ledger"

    def status(self) -> list[SharePartitionStatus]:
        """The figures of the group."""
        return State(self.database).figures.describe(self.name)

    def finished(self) -> int:
        """How many records are finished; -1 where the database is away."""
        try:
            return sum(each.delivery_complete_count + each.spso for each in self.status())
        except SQLAlchemyError:
            return -1

    def lag(self) -> int:
        """How many records are open; -1 where it is not known."""
        try:
            rows = self.status()
        except SQLAlchemyError:
            return -1
        return sum(each.lag for each in rows) if rows else -1

    def behind_letters(self) -> bool:
        """Whether dead letters hold all that is open."""
        try:
            return bool(self.lag() == self.database.rows(_BEHIND, group=self.name)[0]["records"])
        except SQLAlchemyError:
            return False

    def produce(self, made: list[Order]) -> None:
        """Append records, in order."""
        producer = Producer(client_config(self.settings, enable_idempotence=True) | {"log_level": 0})
        for order in made:
            producer.produce(self.name, order.value, key=order.key, partition=order.partition)
            producer.poll(0)
        assert producer.flush(120) == 0

    def start(self, worker: str) -> None:
        """Start a worker, if it does not run: a run that follows, or the consumer."""
        process = self.processes.get(worker)
        if process is not None and process.poll() is None:
            return
        if worker == "consumer":
            config = {
                "group.id": self.name,
                "bootstrap.servers": self.settings.bootstrap_servers,
                "sharequeue.database.url": self.settings.database_url,
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": 100,
            }
            program = ["tests.deep.ordered_worker", json.dumps(config), self.name]
            program += [str(self.ledger), str(self.repaired)]
        else:
            program = ["sharequeue.cli", "run", "tests.deep.ordered_worker:work", "--follow", "--no-progress"]
            program += ["--max-records", str(self.draw.choice([500, 2_000, 20_000]))]
        with (self.folder / f"{worker}.log").open("ab") as log:
            self.processes[worker] = subprocess.Popen(
                [sys.executable, "-m", *program],
                cwd=REPOSITORY,
                env=of_code(REPOSITORY, self.given),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_all(self) -> None:
        """Start whoever has ended."""
        for worker in WORKERS:
            self.start(worker)

    def stop_all(self) -> None:
        """Ask everybody to end, and wait for it: their members leave the group."""
        for worker in WORKERS:
            self.processes[worker].terminate()
        for worker in WORKERS:
            self.processes[worker].wait(QUIET_S)

    def send(self, worker: str, number: signal.Signals) -> None:
        """Send a signal to a worker and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.processes[worker].pid, number)

    def kill_server(self, name: str) -> None:
        """Kill Postgres or the broker, and start it again after a moment."""
        (pid,) = (each.pid for each in status(self.settings.home) if each.name == name)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        time.sleep(self.draw.uniform(0, 3))
        self.up()

    def up(self) -> None:
        """Start the servers that do not run."""
        up(self.settings.home, say, service=False, environment={"SHAREQUEUE_JARS": str(jars_folder())})

    def disturb(self) -> str:
        """Kill or stop somebody; return what was done."""
        self.deck = self.deck or self.draw.sample(DISTURBANCES, len(DISTURBANCES))
        what = self.deck.pop()
        if what in ("postgres", "kafka"):
            self.kill_server(what)
        elif what == "service":
            assert self.replica.process is not None
            self.replica.process.kill()
            self.replica.process.wait(30)
            time.sleep(self.draw.uniform(0, 3))
            self.replica.start()
        elif what.startswith("pause "):
            worker = what.removeprefix("pause ")
            self.send(worker, signal.SIGSTOP)
            time.sleep(LOCK_MS / 1000 + self.draw.uniform(0, SESSION_MS / 1000))
            self.send(worker, signal.SIGCONT)
        else:
            self.send(what, signal.SIGKILL)
            self.processes[what].wait(30)
        self.killed += 1
        return what

    def advance(self, seconds: float) -> bool:
        """Wait until something more is finished, or so long; return whether something is."""
        before, until = self.finished(), time.monotonic() + seconds
        while time.monotonic() < until:
            self.start_all()
            if self.finished() > before >= 0:
                return True
            time.sleep(0.3)
        return False

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, with everybody at work, as long as something is finished now and then."""
        before, since = -2, time.monotonic()
        while not condition():
            self.start_all()
            now = self.finished()
            if now != before:
                before, since = now, time.monotonic()
            assert time.monotonic() - since < QUIET_S, self.logs()
            time.sleep(0.3)

    def records(self, topic: str = "") -> dict[int, dict[int, tuple[int, bytes | None]]]:
        """Read a topic, by default the group's: for each partition the number and the key of each offset that has a
        record."""
        topic = topic or self.name
        consumer = Consumer(
            client_config(self.settings)
            | {
                "group.id": f"reader-{self.name}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        found: dict[int, dict[int, tuple[int, bytes | None]]] = {}
        for partition in consumer.list_topics(topic, 60).topics[topic].partitions:
            at = TopicPartition(topic, partition, 0)
            _, end = consumer.get_watermark_offsets(at, timeout=60)
            consumer.assign([at])
            here = found.setdefault(partition, {})
            while consumer.position([at])[0].offset < end:
                for message in consumer.consume(1_000, 1.0):
                    assert message.error() is None, message.error()
                    number = json.loads(message.value() or b"")["number"]
                    here[message.offset() or 0] = (number, message.key())
        consumer.close()
        return found

    def command(self, *words: str) -> str:
        """Run a command of the library."""
        return sharequeue(REPOSITORY, self.given, *words)

    def consumed(self, what: str) -> list[tuple[int, int]]:
        """Return the records of the consumer's ledger, `handed` or `committed`."""
        if not self.ledger.exists():
            return []
        lines: list[dict[str, Any]] = [json.loads(line) for line in self.ledger.read_text().splitlines()]
        return [tuple(place) for line in lines if line["what"] == what for place in line["records"]]

    def logs(self) -> str:
        """Return the ends of all logs, and the figures."""
        told = [
            f"--- {each.name}\n{each.read_text(errors='replace')[-2500:]}"
            for each in self.folder.glob("*.log")
        ]
        return "\n".join([*told, self.command("groups", "describe", self.name)])


@contextmanager
def ordered_world(
    home: Path,
    folder: Path,
    name: str,
    sizes: Sizes,
    seed: int,
    kind: Kind = "files",
    configs: Mapping[str, str] | None = None,
) -> Iterator[OrderedWorld]:
    """Give servers, a service, the topic and its group, whose keys are in order, and an output of one kind."""
    up(home, say, service=False, environment={"SHAREQUEUE_JARS": str(jars_folder())})
    settings = Settings.load(home)
    given = {
        "SHAREQUEUE_HOME": str(home),
        "SHAREQUEUE_JARS": str(jars_folder()),
        "SHAREQUEUE_DATABASE_URL": settings.database_url,
        "SHAREQUEUE_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "SHAREQUEUE_OUTPUT": str(folder / "output"),
        "SHAREQUEUE_SPARK_MASTER": "local[2]",
        "ORDERED_NAME": name,
        "ORDERED_REPAIRED": str(folder / "repaired"),
        **SHORT,
    }
    replica = Replica(given, folder / "service.log").start()
    given["SHAREQUEUE_SERVICE_URL"] = replica.url
    admin = AdminClient(client_config(settings))
    admin.create_topics([NewTopic(name, sizes.partitions, 1)])[name].result(60)
    with Topics(settings) as topics:
        create_dead_letter_topic(topics, f"dlq.{name}", 2)
    with Database.open(settings) as database:
        set_configs(
            database,
            name,
            {
                "sharequeue.order": "key",
                "share.auto.offset.reset": "earliest",
                "share.record.lock.duration.ms": str(LOCK_MS),
                "share.delivery.count.limit": "6",
                "share.partition.max.record.locks": "2000000",
                "sharequeue.retry.backoff.ms": "300",
                "sharequeue.retry.backoff.max.ms": str(BACK_OFF_MS),
                "errors.deadletterqueue.topic.name": f"dlq.{name}",
                "errors.deadletterqueue.copy.record.enable": "true",
                **(configs or {}),
            },
        )
        draw = random.Random(seed)  # noqa: S311
        letters_hold = (configs or {}).get("sharequeue.order.on.dead.letter") == "hold"
        output = Output(kind, name, database, folder)
        given |= output.prepare(settings)
        made = OrderedWorld(name, settings, database, replica, folder, given, draw, output, letters_hold)
        try:
            yield made
        finally:
            output.stop()
            for worker in made.processes:
                made.send(worker, signal.SIGCONT)
                made.send(worker, signal.SIGKILL)
            replica.stop()


def until_held(world: OrderedWorld) -> None:
    """Wait until dead letters hold all that is open, with everybody at work."""
    world.until(world.behind_letters)


def until_done(world: OrderedWorld) -> None:
    """Wait until nothing is open and all rows are in their table, with everybody at work."""
    world.until(lambda: world.lag() == 0 and world.output.pending() == 0)
