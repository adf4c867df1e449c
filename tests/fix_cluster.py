"""A Spark cluster of a master and two workers, each a process of its own, and a driver on it that can be killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from sharequeue.local.stack import StackInfo
from tests.fix_pipelines import Assigned, Produce
from tests.fix_stack import MakeTopic
from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[1]
DEADLINE_SECONDS = 120
HOSTS = ("127.0.0.1", "localhost")
RECORDS = 400
"""In each partition of a `filled` topic: eight batches of Arrow, and a task stops after the first."""


@dataclass
class Cluster:
    """Where the cluster is, and its present driver."""

    home: Path
    """The stack that its jobs use."""
    folder: Path
    master: str
    output: Path | str
    conf: dict[str, str] = field(default_factory=dict)
    """More of Spark's settings for its drivers."""
    workers: dict[str, subprocess.Popen[Any]] = field(default_factory=dict)
    """By the host's name under which each works."""
    _driver: subprocess.Popen[str] | None = None
    _signals: list[Path] = field(default_factory=list)

    def begin(
        self,
        group: str,
        topic: str,
        *,
        held: Sequence[int] = (),
        fails: bool = False,
        shuffled: bool = False,
        lock_ms: int = 30_000,
        table: str | None = None,
        unshared: str | None = None,
        **more: object,
    ) -> Path:
        """Have the driver run a job, into files or a table of Postgres; return the folder of its signals (see
        `tests.cluster_driver.Stop`).
        """
        signals = Path(tempfile.mkdtemp(dir=self.folder, prefix="signals-"))
        self._signals.append(signals)
        given = {"group": group, "topic": topic, "signals": str(signals), "held": list(held)}
        asked = {
            **given,
            "fails": fails,
            "shuffled": shuffled,
            "lock_ms": lock_ms,
            "table": table,
            "unshared": unshared,
            **more,
        }
        driver = self.driver()
        assert driver.stdin is not None
        driver.stdin.write(json.dumps(asked) + "\n")
        driver.stdin.flush()
        return signals

    def end(self) -> dict[str, Any]:
        """Wait for the job's end; return what it reported: figures, or what it raised as `error`."""
        driver = self.driver()
        assert driver.stdout is not None
        line = driver.stdout.readline()
        assert line, f"the driver ended: {(self.folder / 'driver.log').read_text()[-4000:]}"
        reported: dict[str, Any] = json.loads(line)
        return reported

    def driver(self) -> subprocess.Popen[str]:
        """The driver, started when there is none."""
        if self._driver is None or self._driver.poll() is not None:
            command = [sys.executable, "-m", "tests.cluster_driver"]
            with (self.folder / "driver.log").open("a") as log:
                self._driver = subprocess.Popen(
                    [*command, str(self.home), str(self.output), self.master, json.dumps(self.conf)],
                    # Where nobody else works: a path by the working folder is another one for each process.
                    cwd=self.folder,
                    env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )
        return self._driver

    def kill_driver(self) -> None:
        """SIGKILL of the driver: its Python process and its JVM, together."""
        driver = self.driver()
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()

    def start_worker(self, host: str) -> None:
        """Start a worker with a core, unless there is one."""
        if host not in self.workers or self.workers[host].poll() is not None:
            size = ("--cores", "1", "--memory", "768M", "--work-dir", str(self.folder / f"work-{host}"))
            self.workers[host] = _start(
                self.folder, f"worker-{host}", "worker.Worker", "--host", host, *size, self.master
            )

    def kill_worker(self, host: str) -> None:
        """SIGKILL of a worker and of its executors, as when their machine goes down."""
        _end([self.workers[host]])

    def stop_driver(self) -> None:
        """End the driver, if there is one."""
        for signals in self._signals:
            (signals / "go").touch()
        if self._driver is not None and self._driver.poll() is None:
            assert self._driver.stdin is not None
            self._driver.stdin.close()
            try:
                self._driver.wait(DEADLINE_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill_driver()


def executor_of(signals: Path, task: int) -> psutil.Process:
    """The executor that works on a task, once it waits there: the parent of the parent of its Python worker."""
    said = signals / str(task)
    wait_until(said.exists, DEADLINE_SECONDS, f"task {task} did not stop")
    daemon = psutil.Process(int(said.read_text())).parent()
    assert daemon is not None
    executor = daemon.parent()
    assert executor is not None
    assert any("CoarseGrainedExecutorBackend" in argument for argument in executor.cmdline())
    return executor


@pytest.fixture(scope="module")
def cluster(stack: StackInfo) -> Iterator[Cluster]:
    """Give a standalone Spark cluster of two workers with a core each; everything of it ends with the module."""
    with cluster_on(stack) as made:
        yield made


@contextmanager
def cluster_on(
    stack: StackInfo, output: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Give a cluster with an output, a folder of its own where none is named, for the time of a block."""
    folder = Path(tempfile.mkdtemp(prefix="sharequeue-cluster-"))
    daemons: list[subprocess.Popen[Any]] = []
    made: Cluster | None = None
    try:
        master = _start(folder, "master", "master.Master", "--host", "127.0.0.1")
        daemons.append(master)
        address = _address(folder / "master.log", master)
        made = Cluster(stack.home, folder, address, output or folder / "output", dict(conf or {}))
        # Under two names: what is done twice at once, is not done on one and the same host.
        for host in HOSTS:
            made.start_worker(host)
        try:
            yield made
        finally:
            made.stop_driver()
    finally:
        _end([*daemons, *(made.workers.values() if made else ())])
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, name: str, daemon: str, *arguments: str) -> subprocess.Popen[Any]:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    spark = Path(spec.origin).parent
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SHAREQUEUE_")}
    kept.pop("PYTHONPATH", None)  # executors have what is theirs
    environment = {
        **kept,
        "SPARK_HOME": str(spark),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }
    command = [str(spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{daemon}"]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--port", "0", "--webui-port", "0", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _address(log: Path, master: subprocess.Popen[Any]) -> str:
    """What the master says of itself, once it is there."""
    found: list[str] = []

    def said() -> bool:
        assert master.poll() is None, log.read_text()
        found.extend(re.findall(r"Starting Spark master at (spark://\S+)", log.read_text()))
        return bool(found)

    wait_until(said, DEADLINE_SECONDS, f"no master: {log.read_text()}")
    return found[0]


def _end(daemons: Sequence[subprocess.Popen[Any]]) -> None:
    """End the daemons and what they started."""
    processes = [
        process
        for daemon in daemons
        if daemon.poll() is None
        for process in (*psutil.Process(daemon.pid).children(recursive=True), psutil.Process(daemon.pid))
    ]
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    for daemon in daemons:
        daemon.wait(DEADLINE_SECONDS)


@pytest.fixture
def filled(make_topic: MakeTopic, produce: Produce, assigned: Assigned) -> str:
    """A topic of two partitions, on which the group starts."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, range(RECORDS))
    assigned(topic)
    return topic
