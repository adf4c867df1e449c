"""P20: the service while there is nothing to do.

A coordinator with all its background work (expiry, sweep, watch, journal, dead letters), in a separate process, and
an idle Postgres: without the service, with one share-partition, and with 100 groups of 100
share-partitions each, every group with a member that is assigned all of them. The broker is a stand-in that returns
the same logs at once: the cost of requests to Kafka is extra. Counted for a while after the first turns: statements
that the service sends (the settings of a transaction are not counted), transactions (also those that only test a
connection), write-ahead log, and CPU time of the service and of all processes of Postgres.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import sqlalchemy as sa

from benchmarks.database import (
    StandIn,
    connect,
    postmaster_of,
    processor_of,
    server,
    settle,
    share_partitions,
)
from benchmarks.harness import Table, case, part
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.service.coordinator import Coordinator

PARTITIONS = 100
WARM_SECONDS = 15
Service = subprocess.Popen[str]


def serve(url: str) -> None:
    """Run the service's coordinator, and print the number of statements so far for each line of the input."""
    logging.disable(logging.CRITICAL)
    statements = 0

    def count(*_: Any) -> None:
        nonlocal statements
        statements += 1

    settings = Settings.load(database_url=url, bootstrap_servers="localhost:1")
    database = Database.open(settings)
    sa.event.listen(database.engine, "before_cursor_execute", count)
    stand_in: Any = StandIn(PARTITIONS)
    coordinator = Coordinator(database, stand_in, ServiceConfigs(), dead_letters=settings)
    threading.Thread(target=coordinator.run, args=(threading.Event(),), daemon=True).start()
    for _ in sys.stdin:
        problems = [*coordinator.faults.items(), *coordinator.groups.stuck.items()]
        print(f"{statements} {problems or 'well'}", flush=True)


def fill(url: str, database: Database, groups: int, partitions: int) -> None:
    """Create groups with one topic and one permanent member each, with everything assigned."""
    for number in range(groups):
        group, topic = f"group-{number}", f"topic-{number}"
        alter_group_configs(database, group, {"share.assignment.interval.ms": 0})
        share_partitions(connect(url).cursor(), topic, 1000, partitions, group, f"id-{topic}")
        heartbeat(database, HeartbeatRequest(group, "member", 0, subscribed_topic_names=(topic,)))
    with database.transaction() as connection:
        connection.exec_driver_sql("update sharequeue.members set session_expires_at = 'infinity'")


def figures(cursor: Any, postmaster: psutil.Process, process: Service | None) -> list[float]:
    """Return the time and the current counts."""
    sent, of_service = 0, 0.0
    if process is not None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        number, _, state = process.stdout.readline().strip().partition(" ")
        assert state == "well", state
        sent, of_service = int(number), sum(psutil.Process(process.pid).cpu_times()[:2])
    cursor.execute(
        "select xact_commit + xact_rollback, pg_current_wal_insert_lsn() - '0/0'"
        " from pg_stat_database where datname = current_database()"
    )
    counted = [float(each) for each in cursor.fetchone()]
    return [time.monotonic(), sent, *counted, of_service, processor_of(postmaster)]


@case("P20", "< 10 statements/s, < 1 MB of write-ahead log a minute, < 2 % of a core", duration=30)
def idle(duration: int = 120, groups: int = 100) -> Iterator[Table]:
    """Measure the service while there is nothing to do."""
    rows = []
    for name, of_groups, partitions in (
        ("no service", 0, 0),
        ("1 group, 1 share-partition", 1, 1),
        (f"{groups} groups, {groups * PARTITIONS:,} share-partitions", groups, PARTITIONS),
    ):
        with ExitStack() as closing:
            url = closing.enter_context(server())
            fill(url, closing.enter_context(Database(url)), of_groups, partitions)
            settle(url)
            postmaster, process = postmaster_of(url), None
            if of_groups:
                process = closing.enter_context(part("p20_idle:serve", url))
                time.sleep(WARM_SECONDS)
            cursor = connect(url).cursor()
            before = figures(cursor, postmaster, process)
            time.sleep(duration)
            after = figures(cursor, postmaster, process)
        passed, sent, transactions, wal, of_service, of_server = (
            b - a for a, b in zip(before, after, strict=True)
        )
        shares = (f"{each / passed:.2%}" for each in (of_service, of_server, of_service + of_server))
        each_second = (f"{each / passed:.1f}" for each in (sent, transactions))
        rows.append((name, *each_second, f"{wal / passed * 60 / 1e6:.2f}", *shares))
    headings = ("", "statements/s", "transactions/s", "WAL MB/min", "service", "Postgres", "of a core")
    yield Table(headings, rows, f"{duration} s each")
