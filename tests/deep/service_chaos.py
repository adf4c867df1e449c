"""What the chaos of the service is made of: replicas behind a balancer, members, those who work, and their ledger.

The ledger knows nothing of the state but the answers that it gave, and what was produced.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import sqlalchemy as sa
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.domain.errors import ShareError
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.membership import Membership
from sharequeue.kafka.clients import client_config
from sharequeue.state import State
from tests import single
from tests.deep.threads import beside
from tests.fixtures.stack import REPOSITORY
from tests.servers.ports import free_port
from tests.waiting import wait_until

HEARTBEAT_MS, SESSION_MS, LOCK_MS = 2_000, 30_000, 5_000
SERVICE = {
    "SHAREQUEUE_GROUP_SHARE_MIN_HEARTBEAT_INTERVAL_MS": "500",
    "SHAREQUEUE_GROUP_SHARE_HEARTBEAT_INTERVAL_MS": str(HEARTBEAT_MS),
    "SHAREQUEUE_GROUP_SHARE_MIN_SESSION_TIMEOUT_MS": "1000",
    "SHAREQUEUE_GROUP_SHARE_SESSION_TIMEOUT_MS": str(SESSION_MS),
    "SHAREQUEUE_GROUP_SHARE_MIN_RECORD_LOCK_DURATION_MS": "1000",
    "SHAREQUEUE_GROUP_SHARE_RECORD_LOCK_DURATION_MS": str(LOCK_MS),
}
"""What the replicas are set to, so that a test need not wait for Kafka's defaults."""

CONNECTION_S = 10.0
"""Longest that the balancer leaves a connection with the same replica."""
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Replica:
    """A process of the service, which can be told where to end or stop."""

    def __init__(self, settings: Settings, folder: Path, name: str) -> None:
        self.name, self.port = name, free_port()
        self._mark, self._log = folder / f"{name}.mark", folder / f"{name}.log"
        self._environment = {
            **os.environ,
            **SERVICE,
            "SHAREQUEUE_HOME": str(settings.home),
            "SHAREQUEUE_DATABASE_URL": settings.database_url,
            "PYTHONPATH": str(REPOSITORY),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, if it does not run."""
        if self.process is not None and self.process.poll() is None:
            return
        self._mark.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.deep.chaotic_service", str(self._mark), "serve"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self.port)],
                env=self._environment,
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def signal_inside(self, step: str, number: signal.Signals, nth: int) -> None:
        """Have it send itself a signal inside a step, and wait until it has."""
        assert self.process is not None
        process = psutil.Process(self.process.pid)
        part = self._mark.with_suffix(".part")
        part.write_text(f"{step} {int(number)} {nth}")
        part.rename(self._mark)

        def reached() -> bool:
            ended = self.process is None or self.process.poll() is not None
            return ended or process.status() == psutil.STATUS_STOPPED

        wait_until(reached, 60, lambda: f"{self.name} did not reach its {step}: {self.log()}")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            if number == signal.SIGKILL:
                self.process.wait(20)

    def is_ready(self, timeout: float = 1.0) -> bool:
        """Whether it says that heartbeats succeed."""
        return get(self.port, "/ready", timeout) is not None

    def log(self) -> str:
        """Return the end of what it has logged."""
        return self._log.read_text(errors="replace")[-3000:]


def get(port: int, path: str, timeout: float) -> str | None:
    """Return a body, None where there is no good answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout) as response:
            return str(response.read().decode())
    except OSError:
        return None


def samples_of(body: str) -> Samples:
    """Return what a scrape says."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }


class Balancer:
    """What stands before the replicas in production: it sends each new connection to one that is ready."""

    def __init__(self, replicas: list[Replica]) -> None:
        self.port = free_port()
        self._replicas = replicas
        self.ready: list[Replica] = []
        self._turn = 0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._look, daemon=True),
            threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End it."""
        self._stop.set()
        for thread in self._threads:
            thread.join(20)

    def samples(self) -> Samples:
        """Return the metrics of a replica that answers; nothing where none does."""
        for replica in list(self._replicas):
            body = get(replica.port, "/metrics", 6.0)
            if body is not None:
                return samples_of(body)
        return {}

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of what the replicas count themselves."""
        return sum(
            sum(of(samples_of(body), name, **labels))
            for replica in self._replicas
            if (body := get(replica.port, "/metrics", 6.0)) is not None
        )

    def _look(self) -> None:
        while not self._stop.wait(0.2):
            self.ready = [replica for replica in self._replicas if replica.is_ready()]

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
        async with server:
            while not self._stop.is_set():
                await asyncio.sleep(0.2)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = self.ready
        self._turn += 1
        replica = ready[self._turn % len(ready)] if ready else None
        try:
            if replica is None:
                return
            theirs, to_them = await asyncio.open_connection("127.0.0.1", replica.port)
            both = (_copy(reader, to_them), _copy(theirs, writer), self._while_ready(replica))
            tasks = [asyncio.ensure_future(each) for each in both]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            to_them.close()
        except OSError:
            pass
        finally:
            writer.close()

    async def _while_ready(self, replica: Replica) -> None:
        """Until it is not ready any more, or for a while: a replica that comes back would be sent nobody."""
        ends_at = time.monotonic() + CONNECTION_S
        while replica in self.ready and time.monotonic() < ends_at:
            await asyncio.sleep(0.2)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


@dataclass
class Ledger:
    """Who works, what was produced, and which answers were given: no state but that."""

    database: Database
    settings: Settings
    produced: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Records of each incarnation of a topic, named `<topic> <number>`, and partition."""
    accepted: Counter[tuple[str, str, int, int]] = field(default_factory=Counter)
    """Acknowledgements that were answered, by group, incarnation, partition and offset."""
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    incarnation: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Each topic's name in the ledger, and its id."""
    forgotten: set[tuple[str, str, int, int]] = field(default_factory=set)
    """What may be accepted once more: a failover has lost its acknowledgement."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def produce(self, topic: str, partitions: int, each: int) -> None:
        """Put so many records into each partition."""
        for partition in range(partitions):
            # Before they are there: somebody may lease them at once.
            self.produced[self.incarnation[topic][0], partition] += each
        producer = Producer(client_config(self.settings, enable_idempotence=True) | {"log_level": 0})
        for partition in range(partitions):
            for _ in range(each):
                producer.produce(topic, b"x", partition=partition)
        assert producer.flush(120) == 0

    def work(self, members: Callable[[], list[Membership]], stop: threading.Event, seed: int) -> None:
        """Lease for a member that is drawn, and acknowledge, until stopped; some holders are slow, some never end."""
        drawn, state = random.Random(seed), State(self.database)  # noqa: S311 - a draw of a test
        while not stop.wait(0.02):
            member = drawn.choice(members())
            assigned = member.assignment
            if not assigned:
                continue
            try:
                self._one(state, member, drawn.choice(assigned), drawn)
            except (ShareError, SQLAlchemyError) as error:
                with self.lock:
                    self.refused[type(error).__name__] += 1

    def _one(self, state: State, member: Membership, at: SharePartition, drawn: random.Random) -> None:
        before = self._topic_id(at)
        lease = single.acquire(state, at, member.member_id, member.member_epoch, drawn.choice((1, 20, 100)))
        if lease is None:
            return
        name, topic_id = self.incarnation[at.topic]
        known = before == self._topic_id(at) == topic_id
        if known and lease.offsets.ranges[-1][1] > self.produced[name, at.partition]:
            with self.lock:
                self.wrong.append(
                    f"{at} of {topic_id}: leased {lease.offsets} of {self.produced[name, at.partition]}"
                )
        if drawn.random() < 0.05:
            return  # its lock lapses
        single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
        if known:
            offsets = [offset for first, end in lease.offsets.ranges for offset in range(first, end)]
            with self.lock:
                self.accepted.update((at.group_id, name, at.partition, offset) for offset in offsets)

    def _topic_id(self, at: SharePartition) -> str | None:
        rows = self.database.rows(
            sa.text(
                "select topic_id from sharequeue.share_partition_status"
                " where group_id = :group and topic = :topic and partition = :partition"
            ),
            group=at.group_id,
            topic=at.topic,
            partition=at.partition,
        )
        return str(rows[0]["topic_id"]) if rows else None

    def doubled(self) -> list[tuple[str, str, int, int]]:
        """Return what was accepted twice."""
        with self.lock:
            return [at for at, times in self.accepted.items() if times > 1 + (at in self.forgotten)]


UNASSIGNED = sa.text(
    "select g.group_id, u.share_partition_id from sharequeue.share_groups g"
    " cross join lateral (select share_partition_id from sharequeue.assignable_share_partitions(g.group_id)"
    " except select a.share_partition_id from sharequeue.assignments a where a.group_id = g.group_id) u"
    " where exists (select from sharequeue.members m where m.group_id = g.group_id)"
)


@contextmanager
def at_work(ledger: Ledger, members: Callable[[], list[Membership]], workers: int) -> Iterator[None]:
    """Have so many threads at work for these members."""
    stop = threading.Event()
    with beside(stop, [partial(ledger.work, members, stop, seed) for seed in range(workers)], patience_s=60):
        yield


@dataclass
class Watched:
    """The metric that must show a fault while it lasts."""

    balancer: Balancer
    name: str
    shown_by: Callable[[Samples], bool]
    shown: bool = False

    def look(self) -> bool:
        """Scrape once; return whether the metrics have shown the fault."""
        self.shown = self.shown or self.shown_by(self.balancer.samples())
        return self.shown

    def for_seconds(self, least: float, most: float) -> None:
        """Let the fault last for `least` seconds, and until the metrics show it, for at most `most` seconds."""
        began = time.monotonic()
        while (passed := time.monotonic() - began) < most and not (self.look() and passed >= least):
            time.sleep(0.2)
        assert self.shown, f"{self.name} was shown by no metric within {most:g} s"


def of(samples: Samples, name: str, **labels: str) -> list[float]:
    """Return the values of a metric's series with these labels."""
    wanted = set(labels.items())
    return [value for (metric, has), value in samples.items() if metric == name and wanted <= has]
