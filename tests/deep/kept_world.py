"""The world of the ledger of kept records: a topic, two groups, their sinks, and what is done behind their backs."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Producer

from sharequeue.database import Database
from sharequeue.deadletters.letters import DeadLetter, read_dead_letters
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import READ_COMMITTED
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.headers import headers_of
from sharequeue.kafka.reading import offset_of, place_of, scan
from sharequeue.kafka.topics import Topics
from sharequeue.spark.output.folders import is_kept
from sharequeue.state import State
from tests.chaos.test_sink_kills_spark import locks_lapse
from tests.deep.deaths import Death, Deaths
from tests.deep.kept_worker import FIRST, PARTITIONS, Life, content_of, told
from tests.deep.servers import sharequeue
from tests.fixtures.stack import REPOSITORY, MakeTopic
from tests.waiting import PATIENCE_S, wait_until

SLICE = 300
"""Records that come before each life."""
LIMIT = 10
"""Deliveries after which a record is given up."""
NEVER = 99
"""Stands for a record that is released each time."""
STEPS: tuple[tuple[str, int, int], ...] = (
    ("kept written", 4, 30),
    ("acknowledging", 6, 40),
    ("acknowledged", 6, 100),
    ("reading kept", 4, 1500),
    ("scanned kept", 2, 300),
    ("handling", 6, 1500),
    ("removing kept", 3, 5),
    ("dropping kept", 1, 0),
    ("started", 1, 9000),
)
"""Steps of a driver, how often it has reached one at most when it dies, and the most milliseconds after it."""
OF_TRANSFERS = (("transfer begun", 3, 800), ("transfer appended", 3, 20), ("transfer removed", 3, 50))
_KEPT = re.compile(r"/sharequeue_lease=(\d+)/[^/]*\.parquet$")
Place = tuple[int, int]
"""A partition and an offset."""


class Row(NamedTuple):
    """A row of a sink."""

    place: Place
    number: int
    deliveries: int
    content: str


class Record(NamedTuple):
    """A record of the log."""

    place: Place
    content: str
    value: bytes
    key: bytes | None


class Store(Protocol):
    """Where files are."""

    def names(self) -> list[str]:
        """Return the names of all files."""

    def read(self, name: str) -> bytes:
        """Return what a file has."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file."""

    def remove(self, name: str) -> None:
        """Remove a file."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder of this machine."""

    root: Path

    def names(self) -> list[str]:
        return [str(path) for path in self.root.rglob("*.parquet")]

    def read(self, name: str) -> bytes:
        return Path(name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        Path(name).write_bytes(data)
        # Hadoop's own sums would show the change at once.
        Path(name).with_name(f".{Path(name).name}.crc").unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        Path(name).unlink()


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of an object store."""

    client: Any
    keys: Callable[[str], list[str]]
    bucket: str

    def names(self) -> list[str]:
        return self.keys(self.bucket)

    def read(self, name: str) -> bytes:
        found: bytes = self.client.get_object(Bucket=self.bucket, Key=name)["Body"].read()
        return found

    def write(self, name: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=name, Body=data)

    def remove(self, name: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=name)


@dataclass
class KeptWorld:
    """All there is."""

    settings: Settings
    given: Mapping[str, Any]
    """The settings of a driver."""
    conf: Mapping[str, str]
    database: Database
    state: State
    topics: Topics
    topic: str
    make_topic: MakeTopic
    kind: str
    targets: Mapping[str, str]
    store: Store
    folder: Path
    draw: random.Random
    beside: Callable[[], str] = str
    """What is done while a driver is at work; returns what it was."""
    made: dict[int, Record] = field(default_factory=dict)
    """The records of the present topic."""
    before: dict[int, Record] = field(default_factory=dict)
    """Those of the one that was deleted."""
    produced: int = 0
    killed: int = 0
    keeps: bool = True
    done: Counter[str] = field(default_factory=Counter)

    def feed(self) -> None:
        """Append records: of a hundred, four are released once to four times, one of 200 is rejected, and one of 400
        never accepted."""
        producer = Producer(client_config(self.settings, enable_idempotence=True) | {"log_level": 0})
        draw = self.draw
        for number in range(self.produced, self.produced + SLICE):
            chance = draw.random()
            rejected = chance < 0.005
            fails = NEVER if 0.005 <= chance < 0.0075 else draw.randint(1, 4) if chance > 0.96 else 0
            value = FIRST.format(number, fails, rejected).encode() + draw.randbytes(draw.randint(0, 300))
            headers: list[tuple[str, Any]] = [("a", b"\xff,="), ("ä", None), ("a", b"")]
            producer.produce(
                self.topic,
                value,
                None if draw.random() < 0.1 else f"key-{number}".encode(),
                number % PARTITIONS,
                timestamp=1_700_000_000_000 + 7 * number,
                headers=headers[: draw.choice((0, 0, 1, 3))],
            )
        assert producer.flush(PATIENCE_S) == 0
        self.produced += SLICE

    def read_log(self) -> dict[int, Record]:
        """Return all records of the topic, by number."""
        ends = {(self.topic, at): log.log_end for at, log in self.topics.offsets(self.topic).items()}
        found = {}
        with closing(scan(self.settings, READ_COMMITTED, dict.fromkeys(ends, 0), ends)) as messages:
            for each in messages:
                key, value = each.key(), each.value()
                assert isinstance(value, bytes)
                assert key is None or isinstance(key, bytes)
                content = content_of(key, value, headers_of(each), each.timestamp()[1] * 1000, 0)
                found[told(value)[0]] = Record((place_of(each)[1], offset_of(each)), content, value, key)
        return found

    def plan(self) -> list[Death]:
        """Choose the death of a driver: of its whole group of processes, or of Python alone."""
        steps = STEPS + (OF_TRANSFERS if self.kind in ("topic", "delta", "iceberg") else ())
        at, most, most_ms = self.draw.choice(steps)
        who = self.draw.choice(("driver", "driver", "task"))
        delay_ms = self.draw.choice((0, self.draw.randint(0, most_ms)))
        return [Death(who, at, self.draw.randint(1, most), delay_ms)]  # type: ignore[arg-type]

    def live(self, planned: list[Death], deliveries_per_run: int = 3) -> bool:
        """Let a driver work until it has nothing more to do, or is killed; return whether it was."""
        number = self.done["lives"]
        life = Life(
            settings=self.given,
            conf=self.conf,
            topic=self.topic,
            kind=self.kind,
            targets=self.targets,
            with_raw=self.draw.random() < 0.5,
            deliveries_per_run=deliveries_per_run,
            deaths=Deaths(str(self.folder), f"life-{number}", planned).told(),
            folder=str(self.folder),
        )
        log = self.folder / "driver.log"
        with log.open("ab") as written:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.deep.kept_worker", json.dumps(asdict(life))],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
            )
        try:
            beside = self.beside() if planned else ""
            code = process.wait(900)
            # A JVM without its Python process ends by itself.
            wait_until(lambda: not is_there(process.pid))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert code in (0, -signal.SIGKILL), log.read_text(errors="replace")[-6000:]
        died = code != 0
        self.done["lives"] += 1
        self.killed += died
        if died:
            self.done[f"{planned[0].at}"] += 1
        print(f"life {number}: {planned} {beside}, killed: {died}", flush=True)
        for group in self.targets:
            locks_lapse(self.state, group)
        return died

    def kept(self) -> list[str]:
        """Return the names of all files with raw records."""
        found = ((name, _KEPT.search(name)) for name in self.store.names())
        return sorted(name for name, lease in found if lease and is_kept(int(lease[1])))

    def damage(self) -> None:
        """Remove some kept files, cut some, and change a byte of some."""
        files = self.kept()
        for name in self.draw.sample(files, min(len(files), 3)):
            data = bytearray(self.store.read(name))
            how = self.draw.choice(("removed", "cut", "changed", "changed"))
            if how == "removed" or not data:  # a task that was killed has written nothing yet
                self.store.remove(name)
            elif how == "cut":
                self.store.write(name, bytes(data[: self.draw.randrange(len(data))]))
            else:
                data[self.draw.randrange(len(data))] ^= 1 << self.draw.randrange(8)
                self.store.write(name, bytes(data))
            self.done[f"files {how}"] += 1

    def switch(self, keeps: bool) -> None:
        """Have the groups keep records, or keep none."""
        self.keeps = keeps
        for group in self.targets:
            alter_group_configs(self.database, group, {"sharequeue.retry.keep.enable": str(keeps).lower()})

    def again(self) -> None:
        """Delete the topic, and make it again, with other records at the same offsets. Some of the old ones were
        released and are kept."""
        assert not self.live([], 2)
        self.before = self.read_log()
        self.done["kept files when the topic was made again"] = len(self.kept())
        self.topics.delete(self.topic)
        self.make_topic(PARTITIONS, self.topic, retention_ms="-1")
        self.feed()
        given = {
            f"SHAREQUEUE_{name.upper()}": str(self.given[name])
            for name in ("home", "database_url", "bootstrap_servers")
        }
        for group in self.targets:
            words = ("--topic", self.topic, "--to-earliest", "--execute", "--yes")
            sharequeue(REPOSITORY, given, "offsets", "reset", "--group", group, *words)

    def lag(self) -> int:
        """Return how many records are open."""
        return sum(each.lag for group in self.targets for each in self.state.figures.describe(group))

    def letters(self, group: str) -> Iterator[DeadLetter]:
        """Yield the dead letters of a group."""
        yield from read_dead_letters(self.settings, f"dlq.{group}")


def is_there(leader: int) -> bool:
    """Return whether any process of a group is left."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True
