"""The world of the ledger of results in topics: servers, queues that write to topics, their runs, which are killed
and started again, and a reader of committed records."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.deadletters.topic import create_dead_letter_topic
from sharequeue.domain.errors import ShareError
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import READ_COMMITTED
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.headers import headers_of
from sharequeue.kafka.reading import offset_of, place_of, scan
from sharequeue.kafka.topics import Topics
from sharequeue.local.stack import status, up
from sharequeue.state import State
from tests.deep.deaths import CALM, PIDS, Death, Deaths, Who, came
from tests.deep.ordered_world import LOCK_MS, QUIET_S, SHORT
from tests.deep.servers import Replica, of_code, set_configs
from tests.fixtures.stack import REPOSITORY, jars_folder, say

ROWS = 2
"""Of each accepted record."""
SLICE, KEYS = 150, 40
ROUND_RECORDS = 60
PAUSE_S = LOCK_MS / 1000 + 3
STALL_S = (5.0, 25.0)
"""How long the broker stands still: shorter and longer than a transaction may last (`TRANSACTION_MS`)."""
TRANSACTION_MS = 10_000
SERVERS: tuple[Who, ...] = ("postgres", "kafka")
SERVICE_EVERY = 25
"""The service is killed once for so many other deaths."""
LIFE = 8
"""In the first so many of its transfers or rounds a driver dies; its tasks also in later ones, if it lives longer."""
TASK_STEPS = ("initialised", "opened", "begun", "producing", "marked", "committed")
DRIVER_STEPS = (
    "handling",
    "acknowledging",
    "acknowledged",
    *(f"transfer {step}" for step in ("begun", "begun", "begun", "appended", "ended", "removed")),
)
Place = tuple[int, int]
"""A partition and an offset."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A record of a target: where it is, its key, what it says, and which record and lease it is of."""

    at: Place
    key: bytes | None
    number: int
    row: int
    source: Place
    lease_id: int


@dataclass(frozen=True, slots=True)
class Queue:
    """A group that writes to a topic."""

    group: str
    source: str
    target: str

    @property
    def letters(self) -> str:
        """Its dead-letter topic."""
        return f"dlq.{self.group}"


@dataclass(frozen=True, slots=True)
class Case:
    """What a world has: topics with their partitions, of which the first is fed; queues from one to another; the
    queue of each run, the configs of the groups, the servers that die, and what the pipelines are told."""

    topics: Mapping[str, int]
    queues: Sequence[tuple[str, str]]
    runs: Sequence[int]
    configs: Mapping[str, str] = field(default_factory=dict)
    servers: Sequence[Who] = ("postgres", "kafka")
    of_servers: Sequence[int] = (0, 0, 0, 1, 1)
    """How many of their deaths the life of a driver has: one of these numbers."""
    tasks: Sequence[int] = (2, 3, 4, 4, 5, 6)
    """How many deaths of its tasks a transfer has: one of these. With the fourth of one task its job fails."""
    environment: Mapping[str, str] = field(default_factory=dict)
    parse: Callable[[bytes], Mapping[str, Any]] = json.loads
    """Of the values of the results."""


@dataclass
class Reader:
    """Somebody who reads a target up to its last stable offset, again and again."""

    settings: Settings
    topic: str
    parse: Callable[[bytes], Mapping[str, Any]]
    seen: list[Sent] = field(default_factory=list)
    looks: int = 0
    halves: list[str] = field(default_factory=list)
    _ends: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def look(self) -> None:
        """Read what has come. A record of which not all rows are there is noted."""
        with Topics(self.settings) as topics:
            logs = topics.offsets(self.topic)
        ends = {at: log.last_stable_offset for at, log in logs.items()}
        starts = {(self.topic, at): self._ends[at] for at in ends}
        with closing(
            scan(self.settings, READ_COMMITTED, starts, {(self.topic, at): end for at, end in ends.items()})
        ) as messages:
            found = []
            for each in messages:
                told, headers = self.parse(each.value() or b""), dict(headers_of(each))
                of = {
                    name: int(headers[f"sharequeue.result.{name}"] or b"")
                    for name in ("partition", "offset", "lease")
                }
                found.append(
                    Sent(
                        (place_of(each)[1], offset_of(each)),
                        each.key(),
                        *(told["number"], told["row"], (of["partition"], of["offset"]), of["lease"]),
                    )
                )
        whole = Counter((each.at[0], each.source, each.lease_id) for each in found)
        self.halves += [f"{at}: {rows} rows" for at, rows in whole.items() if rows != ROWS]
        self.seen += found
        self._ends.update(ends)
        self.looks += 1

    def look_if_possible(self) -> None:
        """Read, unless the broker is away."""
        with suppress(ShareError, KafkaException):
            self.look()


@dataclass
class TopicWorld:
    """All there is."""

    settings: Settings
    database: Database
    replica: Replica
    folder: Path
    given: dict[str, str]
    case: Case
    draw: random.Random
    queues: Sequence[Queue]
    readers: list[Reader]
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    lives: int = 0
    services: int = 0
    produced: int = 0
    log: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def killed(self) -> int:
        """How many deaths have come."""
        return len(came(self.folder)) + self.services

    def lag(self, queue: Queue) -> int:
        """How many records are open; -1 where it is not known."""
        try:
            rows = State(self.database).figures.describe(queue.group)
        except SQLAlchemyError:
            return -1
        return sum(each.lag for each in rows) if rows else -1

    def waiting(self, queue: Queue) -> int:
        """How many rows wait for their topic; -1 where it is not known."""
        try:
            return sum(State(self.database).outputs.waiting(queue.group, queue.group).values())
        except SQLAlchemyError:
            return -1

    def _figures(self) -> tuple[int, ...]:
        with suppress(SQLAlchemyError):
            state = State(self.database)
            rows = [each for queue in self.queues for each in state.figures.describe(queue.group)]
            return (sum(each.accepted for each in rows), sum(len(each.seen) for each in self.readers))
        return ()

    def feed(self, least: int) -> None:
        """Produce some records if fewer are open: each key has a partition, one in fifty records has none."""
        topic, partitions = next(iter(self.case.topics.items()))
        if (
            not 0 <= min(self.lag(each) for each in self.queues if each.source == topic) < least
            and self.produced
        ):
            return
        producer = Producer(client_config(self.settings, enable_idempotence=True) | {"log_level": 0})
        for number in range(self.produced, self.produced + SLICE):
            chance, key = self.draw.random(), min(int(self.draw.paretovariate(0.7)), KEYS)
            told = {"number": number, "rejected": chance < 0.02}
            told["fails"] = 0 if chance < 0.02 or chance > 0.05 else 1 if chance < 0.04 else 2
            name = None if number % 50 == 49 else b"key-%d" % key
            at = key % partitions if name else number % partitions
            producer.produce(topic, json.dumps(told).encode(), name, at)
        assert producer.flush(QUIET_S) == 0
        self.produced += SLICE

    def plan(self, run: int) -> Deaths:
        """Choose the deaths of a process: some of its tasks', often a server's, and its own."""
        draw, planned = self.draw, []
        for transfer in range(1, 3 * LIFE + 1):
            for _ in range(draw.choice(self.case.tasks)):
                planned.append(self._of_task("task", transfer))
        for _ in range(draw.choice(self.case.of_servers)):
            who, transfer = draw.choice(self.case.servers), draw.randint(1, LIFE)
            planned.append(self._of_task(who, transfer) if draw.random() < 0.5 else self._of_driver(who))
        planned.append(self._of_driver("pause" if draw.random() < 0.2 else "driver"))
        if draw.random() < 0.3:
            planned.append(self._of_task("driver", draw.randint(1, LIFE)))
        planned.append(Death("driver", "handling", draw.randint(14, 24)))
        self.lives += 1
        return Deaths(str(self.folder), f"{self.lives}-of-run-{run}", planned)

    def _of_task(self, who: Who, transfer: int) -> Death:
        step = self.draw.choice(TASK_STEPS)
        nth = 1 if step in ("initialised", "opened") else self.draw.randint(1, 5)
        return Death(who, step, nth, transfers=transfer)

    def _of_driver(self, who: Who) -> Death:
        step = self.draw.choice(DRIVER_STEPS)
        delay_ms = self.draw.choice([0, self.draw.randint(1, 1500 if step == "transfer begun" else 300)])
        return Death(who, step, self.draw.randint(2, LIFE), delay_ms)

    def start(self) -> None:
        """Start each run that has ended."""
        for run, number in enumerate(self.case.runs):
            queue = self.queues[number]
            process = self.processes.get(run)
            if process is not None and process.poll() is None:
                continue
            if process is not None and process.returncode != -signal.SIGKILL:
                self.log.append(f"run {run} ended with {process.returncode}")
            program = ["run", "tests.deep.topic_worker:work", "--follow", "--no-progress"]
            environment = {
                **self.given,
                **self.case.environment,
                "TOPIC_GROUP": queue.group,
                "TOPIC_SOURCE": queue.source,
                "TOPIC_TARGET": queue.target,
                "TOPIC_DEATHS": self.plan(run).told(),
            }
            with (self.folder / f"run-{run}.log").open("ab") as log:
                self.processes[run] = subprocess.Popen(
                    [sys.executable, "-m", "sharequeue.cli", *program, "--max-records", str(ROUND_RECORDS)],
                    cwd=REPOSITORY,
                    env=of_code(REPOSITORY, environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def chaos(self, kills: int, seconds: float) -> None:
        """Let everybody work and die, for so many seconds at most."""
        before, since, told = self._state(), time.monotonic(), 0
        end = since + seconds
        while self.killed() < kills and time.monotonic() < end:
            self.start()
            self.feed(SLICE)
            if self.killed() >= (self.services + 1) * SERVICE_EVERY:
                self.kill_service()
            now = self._state()
            if now != before:
                before, since = now, time.monotonic()
            if self.killed() >= told + 10:
                told = self.killed()
                print(f"{told} deaths, {self.produced:,} records, figures {now}", flush=True)
            assert time.monotonic() - since < QUIET_S, self.logs()
            time.sleep(0.5)
        (self.folder / CALM).touch()

    def _state(self) -> tuple[int, ...]:
        return (self.killed(), *self._figures())

    def kill_service(self) -> None:
        """Kill the service, and start it again."""
        assert self.replica.process is not None
        self.replica.process.kill()
        self.replica.process.wait(30)
        self.services += 1
        self.replica.start()

    def until_done(self) -> None:
        """Wait until nothing is open and nothing waits for a topic, with everybody at work; then end the runs."""
        before, since = self._figures(), time.monotonic()
        while any(self.lag(queue) or self.waiting(queue) for queue in self.queues):
            self.start()
            now = self._figures()
            if now != before:
                before, since = now, time.monotonic()
            assert time.monotonic() - since < QUIET_S, self.logs()
            time.sleep(0.5)
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(QUIET_S)

    def keep(self) -> None:
        """Start servers that have died, and let those go on that were paused, until the end."""
        ends = dict[str, float]()
        # Each look searches all processes of the machine.
        while not self._over.wait(1):
            if any(each.state != "running" for each in status(self.settings.home) if each.name in SERVERS):
                time.sleep(self.draw.uniform(0, 2))
                self.up()
            for death in came(self.folder):
                if death["who"] not in ("pause", "stall"):
                    continue
                seconds = PAUSE_S if death["who"] == "pause" else self.draw.uniform(*STALL_S)
                end = ends.setdefault(death["file"], time.monotonic() + seconds)
                if time.monotonic() > end:
                    ends[death["file"]] = math.inf
                    self.go_on(death)

    def go_on(self, death: Mapping[str, Any]) -> None:
        """Let a driver go on that was paused, or the broker."""
        if death["who"] == "pause":
            self.send(death["driver"], signal.SIGCONT)
        else:
            self.send(json.loads((self.folder / PIDS).read_text())["kafka"], signal.SIGCONT)

    def up(self) -> None:
        """Start the servers that do not run, and tell the runs their process ids."""
        up(self.settings.home, say, service=False, environment={"SHAREQUEUE_JARS": str(jars_folder())})
        pids = {each.name: each.pid for each in status(self.settings.home)}
        new = self.folder / f"{PIDS}.new"
        new.write_text(json.dumps(pids))
        new.replace(self.folder / PIDS)

    def read(self) -> None:
        """Read all targets again and again, until the end."""
        while not self._over.wait(0.5):
            for reader in self.readers:
                reader.look_if_possible()

    def send(self, leader: int, number: signal.Signals) -> None:
        """Send a signal to a driver and its JVM, or to a server."""
        with suppress(ProcessLookupError):
            os.killpg(leader, number)

    def logs(self) -> str:
        """Return the ends of all logs, and the figures."""
        told = [
            f"--- {each.name}\n{each.read_text(errors='replace')[-4000:]}"
            for each in self.folder.glob("*.log")
        ]
        figures = [f"{each.group}: {self.lag(each)} open, {self.waiting(each)} wait" for each in self.queues]
        return "\n".join([*told, *figures, *self.log])

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep the servers, and read, during the block."""
        threads = [threading.Thread(target=each) for each in (self.keep, self.read)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
            for death in came(self.folder):
                if death["who"] == "stall":
                    self.go_on(death)
            for process in self.processes.values():
                self.send(process.pid, signal.SIGCONT)
                self.send(process.pid, signal.SIGKILL)


@contextmanager
def topic_world(
    home: Path,
    folder: Path,
    seed: int,
    case: Case,
) -> Iterator[TopicWorld]:
    """Give servers, a service, topics and queues."""
    up(home, say, service=False, environment={"SHAREQUEUE_JARS": str(jars_folder())})
    settings = Settings.load(home)
    queues = [Queue(f"to-{target}", source, target) for source, target in case.queues]
    given = {
        "SHAREQUEUE_HOME": str(home),
        "SHAREQUEUE_JARS": str(jars_folder()),
        "SHAREQUEUE_DATABASE_URL": settings.database_url,
        "SHAREQUEUE_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "SHAREQUEUE_OUTPUT": str(folder / "output"),
        # A task is tried four times, as on a cluster.
        "SHAREQUEUE_SPARK_MASTER": "local[2,4]",
        **SHORT,
    }
    admin = AdminClient(client_config(settings))
    for name, partitions in case.topics.items():
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)
    with Topics(settings) as known:
        for queue in queues:
            create_dead_letter_topic(known, queue.letters, 2)
    replica = Replica(given, folder / "service.log").start()
    given["SHAREQUEUE_SERVICE_URL"] = replica.url
    try:
        with Database.open(settings) as database:
            for queue in queues:
                first = {"share.isolation.level": "read_committed"} if queue is not queues[0] else {}
                own = {**first, **case.configs, _LETTERS: queue.letters}
                set_configs(database, queue.group, {**_CONFIGS, **own})
            world = TopicWorld(
                *(settings, database, replica, folder, given, case),
                random.Random(seed),  # noqa: S311
                queues,
                [Reader(settings, queue.target, case.parse) for queue in queues],
            )
            world.up()
            with world.at_work():
                yield world
    finally:
        replica.stop()


_LETTERS = "errors.deadletterqueue.topic.name"
_CONFIGS = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": str(LOCK_MS),
    "share.delivery.count.limit": "10",
    "sharequeue.retry.backoff.ms": "300",
    "sharequeue.retry.backoff.max.ms": "1000",
}
