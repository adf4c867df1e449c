"""P20: what does the service cost while there is nothing to do?

A coordinator with all that it does by itself (expiry, sweep, watch, journal, dead letters), in a process of its own,
and an idle Postgres: first without the service, then with one share-partition, then with 100 groups of 100
share-partitions each, every group with a member that is assigned all of them. The broker is a stand-in that returns
the same logs at once: asking Kafka costs on top of it. Counted for a while after the first turns: statements that the
service sends (the settings of a transaction are not counted), transactions (also those that only test a connection),
write-ahead log, and processor time of the service and of all processes of Postgres.

    .venv/bin/python benchmarks/bench_idle.py [--full]
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil
import sqlalchemy as sa
from rig import FULL, connect, report, server

from sharequeue.database import Database
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.kafka.topics import LogOffsets, TopicInfo, TopicsFound
from sharequeue.service.coordinator import Coordinator
from sharequeue.settings import Settings

GROUPS = 100
PARTITIONS = 100
WARM_SECONDS = 15
SECONDS = 120 if FULL else 30
ENDS = LogOffsets(0, 1000, 1000)
GOAL = ("goal", "< 10", "", "< 1.00", "", "", "< 2.00 %")


class StandIn:
    """A broker that has every topic it is asked for, with the same logs each time."""

    partitions = PARTITIONS

    def cluster_id(self) -> str:
        """The id of the one cluster there is."""
        return "bench"

    def close(self) -> None:
        """Nothing was opened."""

    def ask(self, names: list[str]) -> TopicsFound:
        """All of them are there."""
        return TopicsFound({name: TopicInfo(f"id-{name}", self.partitions) for name in names}, {})

    def offsets(self, name: str, patience: float | None = None) -> dict[int, LogOffsets]:
        """The logs of a topic."""
        return dict.fromkeys(range(PARTITIONS), ENDS)

    def offsets_of(
        self, partitions: Mapping[str, int], refused: Any = None
    ) -> dict[tuple[str, int], LogOffsets]:
        """New values each time, as from a broker."""
        return {
            (name, partition): LogOffsets(0, 1000, 1000)
            for name, count in sorted(partitions.items())
            for partition in range(count)
        }


def serve(url: str) -> None:
    """Be the service: coordinate, and answer each line of the input with the number of statements so far."""
    logging.disable(logging.CRITICAL)
    statements = 0

    def count(*_: Any) -> None:
        nonlocal statements
        statements += 1

    settings = Settings.load(database_url=url, bootstrap_servers="localhost:1")
    database = Database.open(settings)
    sa.event.listen(database.engine, "before_cursor_execute", count)
    stand_in: Any = StandIn()
    coordinator = Coordinator(database, stand_in, ServiceConfigs(), dead_letters=settings)
    stop = threading.Event()
    worker = threading.Thread(target=coordinator.run, args=(stop,), daemon=True)
    worker.start()
    for _ in sys.stdin:
        problems = {**coordinator.faults, **coordinator.groups.stuck}
        print(f"{statements} {problems or 'well'}", flush=True)
    stop.set()


@contextmanager
def service(url: str) -> Iterator[subprocess.Popen[str]]:
    """Run the service in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.terminate()
        process.wait(10)


def fill(database: Database, groups: int, partitions: int) -> None:
    """Groups with a topic each, a member each that stays, and everything assigned."""
    rows = sa.text(
        "select sharequeue.initialize(:group, :topic, n, :id, 0, 2),"
        " sharequeue.observe(:group, :topic, n, :id, 0, 1000, 1000) from generate_series(0, :last) as n"
    )
    for number in range(groups):
        group, topic = f"group-{number}", f"topic-{number}"
        alter_group_configs(database, group, {"share.assignment.interval.ms": 0})
        names = {"group": group, "topic": topic, "id": f"id-{topic}", "last": partitions - 1}
        with database.transaction() as connection:
            connection.execute(rows, names).all()
        heartbeat(database, HeartbeatRequest(group, "member", 0, subscribed_topic_names=(topic,)))
    with database.transaction() as connection:
        connection.exec_driver_sql("update sharequeue.members set session_expires_at = 'infinity'")


def of_postgres(url: str) -> psutil.Process:
    """The postmaster."""
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        [pid] = cursor.fetchone() or (0,)
        return psutil.Process(psutil.Process(pid).ppid())


def seconds_of(postmaster: psutil.Process) -> float:
    """Processor time of all processes of Postgres, the ended ones included."""
    own = postmaster.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in postmaster.children():
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return float(total)


def measured(url: str, postmaster: psutil.Process, process: subprocess.Popen[str] | None) -> list[str]:
    """What a while costs, as a row."""
    reader = connect(url)
    cursor = reader.cursor()

    def figures() -> tuple[float, int, int, int, float, float]:
        sent = 0
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            number, _, state = process.stdout.readline().strip().partition(" ")
            assert state == "well", state
            sent = int(number)
        cursor.execute(
            "select pg_current_wal_insert_lsn() - '0/0', xact_commit + xact_rollback"
            " from pg_stat_database where datname = current_database()"
        )
        wal, transactions = cursor.fetchone() or (0, 0)
        service_seconds = 0.0
        if process is not None:
            times = psutil.Process(process.pid).cpu_times()
            service_seconds = times.user + times.system
        return time.monotonic(), sent, int(transactions), int(wal), service_seconds, seconds_of(postmaster)

    before = figures()
    time.sleep(SECONDS)
    after = figures()
    reader.close()
    passed, sent, transactions, wal, of_service, of_server = (
        new - old for new, old in zip(after, before, strict=True)
    )
    return [
        f"{sent / passed:.1f}",
        f"{transactions / passed:.1f}",
        f"{wal / passed * 60 / 1e6:.2f}",
        f"{of_service / passed:.2%}",
        f"{of_server / passed:.2%}",
        f"{(of_service + of_server) / passed:.2%}",
    ]


def main() -> None:
    """Measure the three, and print the table."""
    if len(sys.argv) > 1 and sys.argv[1] == "--serve":
        serve(sys.argv[2])
        return
    rows = []
    for name, groups, partitions in (
        ("no service", 0, 0),
        ("1 group, 1 share-partition", 1, 1),
        (f"{GROUPS} groups, {GROUPS * PARTITIONS:,} share-partitions", GROUPS, PARTITIONS),
    ):
        with server() as url, Database(url) as database:
            fill(database, groups, partitions)
            with connect(url).cursor() as cursor:
                cursor.execute("vacuum analyze")
                cursor.execute("checkpoint")
            postmaster = of_postgres(url)
            if groups == 0:
                rows.append([name, *measured(url, postmaster, None)])
                continue
            with service(url) as process:
                time.sleep(WARM_SECONDS)
                rows.append([name, *measured(url, postmaster, process)])
            if groups == GROUPS:
                report(
                    url,
                    f"P20: an idle service, {SECONDS} s each",
                    ["", "statements/s", "transactions/s", "WAL MB/min", "service", "Postgres", "of a core"],
                    [*rows, list(GOAL)],
                )


if __name__ == "__main__":
    main()
