"""The demo as its users run it, on a stack of its own: the command, what it prints, and what it left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from confluent_kafka import Consumer, TopicPartition

from sharequeue.database import Database
from sharequeue.deadletters.writer import DeadLetter, read_dead_letters
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.settings import Settings
from sharequeue.state import State

REPOSITORY = Path(__file__).parents[1]
GROUP = "flight-delays"
TOPIC = "flights"
DEAD_LETTER_TOPIC = "dlq.flight-delays"

Coordinates = tuple[int, int]
"""Partition and offset in the topic of flights."""


@dataclass
class DemoProcess:
    """A demo at work; `lines` is what it has printed so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def follow(self, on_line: Callable[[str], None] = lambda line: None) -> int:
        """Read what it prints until it ends; return the exit code."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            on_line(self.lines[-1])
        return self.process.wait()

    @property
    def text(self) -> str:
        """Everything it printed."""
        return "\n".join(self.lines)


@dataclass
class DemoStack:
    """A data folder with a stack that the demo itself brings up."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)
    """What a demo's environment has beside the test's own."""

    def start(self, *arguments: str) -> DemoProcess:
        """Start a demo."""
        command = [sys.executable, "-m", "orchestration.demo", "--home", str(self.home), *arguments]
        return DemoProcess(
            subprocess.Popen(
                command,
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment},
            )
        )

    def run(self, *arguments: str) -> str:
        """Run a demo to its end, which must be a good one; return what it printed."""
        demo = self.start(*arguments)
        assert demo.follow() == 0, demo.text
        return demo.text

    @property
    def settings(self) -> Settings:
        """Where the stack is, once a demo has brought it up."""
        return Settings.load(self.home)

    def database(self) -> Database:
        """Open the stack's database; the caller closes it."""
        return Database.open(self.settings)

    def forward(self, seconds: int) -> None:
        """Move the database's clock on."""
        with self.database() as database:
            database.rows(
                sa.text(
                    "select sharequeue.set_clock_offset(amount + make_interval(secs => :seconds))"
                    " from sharequeue.clock_offset"
                ),
                seconds=seconds,
            )

    def run_statuses(self) -> list[str]:
        """The statuses of all runs in the Dagster instance, oldest first."""
        engine = sa.create_engine(self.settings.dagster_url)
        try:
            with engine.connect() as connection:
                rows = connection.execute(sa.text("select status from runs order by id"))
                return [str(row.status) for row in rows]
        finally:
            engine.dispose()


@dataclass(frozen=True)
class Fate:
    """What must become of every record of the topic, by its content."""

    accepted: frozenset[Coordinates]
    rejected: frozenset[Coordinates]
    exhausted: frozenset[Coordinates]

    @property
    def dead(self) -> frozenset[Coordinates]:
        """Everything that must be in the dead-letter topic."""
        return self.rejected | self.exhausted


def fate_of(settings: Settings) -> Fate:
    """Read the whole topic and say, by the rules of the issue alone, what must become of each flight."""
    fates: dict[str, set[Coordinates]] = {"accepted": set(), "rejected": set(), "exhausted": set()}
    logs = Topics(settings).offsets(TOPIC)
    left = {partition: log.log_end for partition, log in logs.items() if log.log_end > log.log_start}
    consumer = Consumer(client_config(settings, group_id="tests", enable_auto_commit=False))
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in left])
    try:
        while left:
            for message in consumer.consume(10_000, 0.1):
                assert message.error() is None
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None
                assert offset is not None
                assert value is not None
                flight = json.loads(value)
                fate = "rejected" if flight["dep_time"] is None else "exhausted"
                fates["accepted" if flight["arr_delay"] is not None else fate].add((partition, offset))
                if offset + 1 == left.get(partition):
                    del left[partition]
    finally:
        consumer.close()
    return Fate(*(frozenset(fates[name]) for name in ("accepted", "rejected", "exhausted")))


def accepted_records(settings: Settings, state: State) -> Counter[Coordinates]:
    """The records in the output, by the manifest: how often each is there."""
    found: Counter[Coordinates] = Counter()
    for output in state.outputs.counted(GROUP, TOPIC):
        if output.records:
            files = sorted(Path(output.location).glob("*.parquet"))
            table = pa.concat_tables([pq.ParquetFile(file).read(["partition", "offset"]) for file in files])
            assert table.num_rows == output.records
            found.update(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    return found


def dead_letter_records(settings: Settings) -> list[DeadLetter]:
    """The dead letters, read committed."""
    return list(read_dead_letters(settings, DEAD_LETTER_TOPIC))


def assert_drained(demo: DemoStack) -> Fate:
    """Every record of the topic is where its content says, once, and nothing is in flight; return the fates."""
    settings = demo.settings
    fate = fate_of(settings)
    with demo.database() as database:
        state = State(database)
        accepted = accepted_records(settings, state)
        assert set(accepted.values()) == {1}
        assert accepted.keys() == fate.accepted
        letters = Counter(
            (letter.source_partition, letter.source_offset) for letter in dead_letter_records(settings)
        )
        assert set(letters.values()) == {1}
        assert letters.keys() == fate.dead
        logs = Topics(settings).offsets(TOPIC)
        for status in state.figures.describe(GROUP):
            assert status.spso == status.log_end == logs[status.partition].log_end
            assert (status.lag, status.in_flight, status.acquired, status.archiving) == (0, 0, 0, 0)
        assert state.figures.leases(GROUP) == []
        assert state.figures.verify(GROUP) == []
    return fate


@pytest.fixture(scope="module")
def demo_stack() -> Iterator[DemoStack]:
    """Give an empty home for demos of one test module; its stack is stopped and removed at the end."""
    # Here, not above: pytest has to load that plugin itself, or its assertions are plain ones.
    from tests.fix_stack import _end, _new_home

    home = _new_home()
    try:
        yield DemoStack(home)
    finally:
        _end(home)


@pytest.fixture
def follow_demo() -> Iterator[Callable[[DemoProcess, Callable[[str], None]], threading.Thread]]:
    """Give a function that reads a demo's lines in the background; demos still at work are killed at the end."""
    followed: list[DemoProcess] = []

    def follow(demo: DemoProcess, on_line: Callable[[str], None]) -> threading.Thread:
        followed.append(demo)
        thread = threading.Thread(target=demo.follow, args=(on_line,), daemon=True)
        thread.start()
        return thread

    yield follow
    for demo in followed:
        if demo.process.poll() is None:
            demo.process.kill()
            demo.process.wait()
