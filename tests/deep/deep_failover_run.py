"""Runs of Spark while Postgres fails over: they end right, or say why not, and the next one is right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.domain.settings import Settings
from sharequeue.local import ports
from sharequeue.local.stack import up
from sharequeue.state import State
from tests.deep.disturbed_jobs import PIPELINE, RECORDS, all_once, drained, fill, rows_by_manifest, rows_of
from tests.deep.servers import Pair, Replica, of_code, sharequeue
from tests.fixtures.stack import REPOSITORY, allow_short_locks, jars_folder, say
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

ROUND = 60
LEASES = """
from pyspark.sql import functions as fn
from sharequeue.spark import lease
while True:
    with lease("{name}", ["{name}"], max_records={round}) as leased:
        if not leased:
            print(leased.why_nothing, flush=True)
            raise SystemExit(3 if leased.why_nothing else 0)
        nap = fn.expr("java_method('java.lang.Thread', 'sleep', 20L)")
        named = leased.records.select("topic", "partition", "offset", "lease_id")
        outcomes = named.withColumn("nap", nap.cast("string")).withColumn("outcome", fn.lit("accept"))
        leased.write(outcomes, "{folder}")
        leased.acknowledge()
"""

CONSUMES = """
import json, sys
from sharequeue import ShareConsumer

config = {{"group.id": "{name}", "share.acknowledgement.mode": "explicit", "max.poll.records": 5}}
with open("ledger", "a") as ledger, ShareConsumer(config) as consumer:
    consumer.subscribe(["{name}"])
    while True:
        messages = consumer.poll(1.0)
        for message in messages:
            consumer.acknowledge(message)
        told = consumer.commit_sync()
        for at, error in told.items():
            mine = [[m.partition(), m.offset()] for m in messages if m.partition() == at.partition]
            print(json.dumps([mine, error and str(error)]), file=ledger, flush=True)
"""


@dataclass
class Servers:
    """Two Postgres, a broker and the service, and what they are told."""

    pair: Pair
    settings: Settings
    given: dict[str, str]
    replica: Replica

    def start(self, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program or a command there."""
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env=of_code(REPOSITORY, {**self.given, "PYTHONPATH": f"{REPOSITORY}:{folder}"}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def done(self, name: str) -> int:
        """How many records are acknowledged; none known where nothing answers."""
        try:
            with Database.open(self.settings) as database:
                return sum(each.spso for each in State(database).figures.describe(name))
        except DBAPIError:
            return 0


@pytest.fixture(scope="module")
def servers(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Give a primary that can be made to fail over, again and again, and a service on it."""
    info = up(module_home, say, service=False, environment={"SHAREQUEUE_JARS": str(jars_folder())})
    with Database(info.database_url) as database:
        migrate(database)
        allow_short_locks(database)
    pair = Pair(info, next(port for port in range(21_000, 32_000) if ports.is_free(port)))
    folder = tmp_path_factory.mktemp("service")
    given = {
        "SHAREQUEUE_HOME": str(module_home),
        "SHAREQUEUE_JARS": str(jars_folder()),
        "SHAREQUEUE_DATABASE_URL": pair.url(),
        "SHAREQUEUE_BOOTSTRAP_SERVERS": info.bootstrap_servers,
        "SHAREQUEUE_SPARK_MASTER": "local[2]",
    }
    short = {
        "SHAREQUEUE_GROUP_SHARE_MIN_SESSION_TIMEOUT_MS": "15000",
        "SHAREQUEUE_GROUP_SHARE_SESSION_TIMEOUT_MS": "15000",
    }
    replica = Replica(given | short, folder / "service.log").start()
    given["SHAREQUEUE_SERVICE_URL"] = replica.url
    settings = Settings.load(module_home).replace(database_url=pair.url())
    try:
        yield Servers(pair, settings, given, replica)
    finally:
        replica.stop()
        pair.end()


def fail_over(servers: Servers, away_s: float) -> None:
    """The primary dies, nobody can be written for a while, then the standby can."""
    servers.pair.kill_primary()
    time.sleep(away_s)
    servers.pair.promote()
    wait_until(lambda: servers.replica.answers("/ready") == 200, 60)


def outcome(process: subprocess.Popen[bytes], log: Path) -> str:
    """What became of a run: it has drained, or says why not, in a line that names the database."""
    code = process.wait(240)
    said = log.read_text()
    if code == 0:
        return "it went on"
    last = [line for line in said.splitlines() if line.strip()][-1]
    assert re.search(r"database|server closed|connection|Postgres", said), said[-3000:]
    return f"ended with {code}: {last[:160]}"


@pytest.mark.parametrize(
    ("setting", "away_s"),
    [("on", 0.0), ("on", 6.0), ("local", 1.0)],
    ids=["at once", "later", "not waited for"],
)
def test_a_failover_during_a_run_loses_no_record(
    servers: Servers, tmp_path: Path, told: list[str], setting: str, away_s: float
) -> None:
    """The primary dies in the midst of a run's rounds. What the run says is true of itself; after the next run every
    record is in the output once, also where the standby lacked what the run had acknowledged last."""
    name = f"p{setting}{away_s:.0f}"
    fill(servers.settings, name)
    (tmp_path / f"{name}.py").write_text(PIPELINE.format(name=name))
    servers.pair.begin()
    servers.pair.wait_for_it(setting)
    command = ["-m", "sharequeue.cli", "run", f"{name}:work", "--max-records", str(ROUND)]
    process = servers.start(tmp_path, *command)
    try:
        wait_until(lambda: servers.done(name) >= ROUND, 240, (tmp_path / "log").read_text)
        if setting == "local":
            servers.pair.catch_up()
            servers.pair.cut()
            known = servers.done(name)
            wait_until(lambda: servers.done(name) >= known + ROUND, 60)
        fail_over(servers, away_s)
        if setting == "local":
            sharequeue(REPOSITORY, servers.given, "adopt", "--execute", "--yes")
        ended = outcome(process, tmp_path / "log")
    finally:
        process.kill()
    runs = drained(lambda: servers.start(tmp_path, *command), tmp_path / "log")
    assert servers.done(name) == RECORDS
    with Database.open(servers.settings) as database:
        assert rows_by_manifest(database, name) == all_once()
        assert State(database).figures.verify(name) == []
        left = sa.text("select lease_id from sharequeue.held_leases where group_id = :group")
        assert database.rows(left, group=name) == []
    told.append(
        f"a run over a failover, synchronous_commit={setting}, away {away_s:.0f} s more: {ended}; {runs} more"
    )


def test_a_failover_during_leases_loses_no_record(servers: Servers, tmp_path: Path, told: list[str]) -> None:
    """A loop of leases in Python, the primary dead in the midst: each record is written at least once, and at the end
    all is acknowledged."""
    name = "leased"
    fill(servers.settings, name)
    (tmp_path / "leases.py").write_text(LEASES.format(name=name, round=ROUND, folder=tmp_path / "out"))
    servers.pair.begin()
    servers.pair.wait_for_it("on")
    process = servers.start(tmp_path, "leases.py")
    try:
        wait_until(lambda: servers.done(name) >= ROUND, 240, (tmp_path / "log").read_text)
        fail_over(servers, 3.0)
        ended = outcome(process, tmp_path / "log")
    finally:
        process.kill()
    runs = drained(lambda: servers.start(tmp_path, "leases.py"), tmp_path / "log")
    assert servers.done(name) == RECORDS
    assert set(rows_of(tmp_path / "out")) == set(all_once())
    told.append(f"a program that leases over a failover, away 3 s more: {ended}; {runs} more")


def test_a_consumer_continues_after_a_failover(servers: Servers, tmp_path: Path, told: list[str]) -> None:
    """It goes on by itself, and is told of no record twice that it is done, by a standby that is waited for."""
    name = "consumed"
    fill(servers.settings, name)
    (tmp_path / "consumes.py").write_text(CONSUMES.format(name=name))
    servers.pair.begin()
    servers.pair.wait_for_it("on")
    process = servers.start(tmp_path, "consumes.py")
    try:
        wait_until(lambda: servers.done(name) >= 60, 240, (tmp_path / "log").read_text)
        fail_over(servers, 3.0)
        wait_until(lambda: servers.done(name) == RECORDS, 180, (tmp_path / "log").read_text)
        assert process.poll() is None
    finally:
        process.kill()
    lines = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    confirmed = Counter(tuple(at) for records, error in lines if error is None for at in records)
    assert max(confirmed.values()) == 1
    refused = Counter(error for _, error in lines if error is not None)
    told.append(
        f"a consumer over a failover: {len(confirmed)} of {RECORDS} confirmed; refused {dict(refused)}"
    )
