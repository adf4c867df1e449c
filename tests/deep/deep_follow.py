"""A followed job goes on when its servers are killed one after the other, and ends when it is told to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.local.stack import down, status, up
from sharequeue.state import State
from tests.fixtures.stack import REPOSITORY, jars_folder, say
from tests.waiting import wait_until

GROUP = TOPIC = "orders"
SERVERS = ("service", "kafka", "postgres")
PROGRAM = """
from pyspark.sql import functions as fn
from sharequeue.spark import pipeline

@pipeline(group="orders", topics=["orders"])
def orders(records):
    return records.select("topic", "partition", "offset", "lease_id").withColumn("outcome", fn.lit("accept"))
"""


@pytest.mark.slow
def test_a_follower_continues_after_each_outage(stack_home: Path, tmp_path: Path, told: list[str]) -> None:
    """Each server is killed in turn while it waits, is away for a while, and comes back; a record that is produced
    after that is worked on by the same process. SIGTERM ends it with 143, its member has left, nothing is held."""
    environment = {"SHAREQUEUE_JARS": str(jars_folder())}

    def start() -> None:
        up(stack_home, say, environment=environment)

    start()
    settings = Settings.load(stack_home)
    (tmp_path / "followed.py").write_text(PROGRAM)
    admin = AdminClient(client_config(settings))
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(30)
    with Database.open(settings) as database:
        alter_group_configs(database, GROUP, {"share.auto.offset.reset": "earliest"})
        state, sent = State(database), _sender(settings)
        log = tmp_path / "log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "sharequeue.cli", "run", "followed:orders", "--follow"],
                cwd=tmp_path,
                env={
                    **os.environ,
                    **environment,
                    "PYTHONPATH": str(REPOSITORY),
                    "SHAREQUEUE_HOME": str(stack_home),
                },
                stderr=stderr,
            )
        try:
            sent()
            _worked_on(process, state, log, 1)
            for at, server in enumerate(SERVERS, 2):
                (running,) = (each for each in status(stack_home) if each.name == server)
                assert running.pid is not None
                before = _in_vain(log, stack_home)
                os.kill(running.pid, signal.SIGKILL)
                wait_until(lambda name=server: _is_down(stack_home, name), 30)  # type: ignore[misc]
                wait_until(lambda before=before: _in_vain(log, stack_home) > before, 60, log.read_text)  # type: ignore[misc]
                start()
                began = time.monotonic()
                sent()
                _worked_on(process, state, log, at)
                told.append(f"followed on {time.monotonic() - began:.1f} s after {server} was back")
            # Where it looked at nothing while a server was away, it says nothing; else it does after its run.
            wait_until(lambda: ("recovered" in log.read_text()) == ("until it works" in log.read_text()), 30)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143, log.read_text()
        finally:
            process.kill()
        assert not state.figures.leases(GROUP)
        assert database.rows(sa.text("select member_id from sharequeue.group_members")) == []
        assert sum(each.lag for each in state.figures.describe(GROUP)) == 0
        assert "Traceback" not in log.read_text()


@pytest.mark.slow
def test_a_follower_waits_for_servers_that_start_later(stack_home: Path, tmp_path: Path) -> None:
    """As after a reboot: it is started while no server is there, waits, and works when they have come."""
    environment = {"SHAREQUEUE_JARS": str(jars_folder())}
    up(stack_home, say, environment=environment)
    settings = Settings.load(stack_home)
    admin = AdminClient(client_config(settings))
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(30)
    with Database.open(settings) as database:
        alter_group_configs(database, GROUP, {"share.auto.offset.reset": "earliest"})
    _sender(settings)()
    down(stack_home, say)
    (tmp_path / "followed.py").write_text(PROGRAM)
    addresses = {
        "SHAREQUEUE_DATABASE_URL": settings.database_url,
        "SHAREQUEUE_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "SHAREQUEUE_SERVICE_URL": settings.service_url,
        "SHAREQUEUE_HOME": str(tmp_path),
        "PYTHONPATH": str(REPOSITORY),
    }
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "sharequeue.cli", "run", "followed:orders", "--follow"],
            cwd=tmp_path,
            env={**os.environ, **environment, **addresses},
            stderr=stderr,
        )
    try:
        wait_until(lambda: "until it works" in log.read_text(), 60)
        up(stack_home, say, environment=environment)
        with Database.open(settings) as database:
            _worked_on(process, State(database), log, 1)
        wait_until(lambda: "recovered" in log.read_text(), 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143, log.read_text()
    finally:
        process.kill()
    assert "Traceback" not in log.read_text()


def _sender(settings: Settings) -> Callable[[], None]:
    """A function that produces a record to each partition; the broker keeps its address."""

    def send() -> None:
        producer = Producer(client_config(settings, enable_idempotence=True) | {"log_level": 0})
        for partition in range(2):
            producer.produce(TOPIC, b"x", partition=partition)
        assert producer.flush(60) == 0

    return send


def _worked_on(process: subprocess.Popen[bytes], state: State, log: Path, each_has: int) -> None:
    """Wait until so many records of each partition are done."""

    def done() -> bool:
        assert process.poll() is None, log.read_text()
        return [each.spso for each in state.figures.describe(GROUP)] == [each_has] * 2

    wait_until(done, 180, log.read_text)


def _in_vain(log: Path, home: Path) -> int:
    """Return how often the process, or the service for it, has asked a server in vain."""
    said = log.read_text() + (home / "logs" / "service.log").read_text()
    return len(re.findall("trying again|tried again", said))


def _is_down(home: Path, name: str) -> bool:
    return any(each.name == name and each.state != "running" for each in status(home))
