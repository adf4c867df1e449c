"""What does one Postgres, and one service, carry, and how does the cost of each grow?

Four curves, for `docs/explanation/scaling.md`, each on servers of its own with fsync on and with clients on the same
cores. Calls: one call acknowledges 500 records of a share-partition and leases the next, by so many connections over
so many share-partitions. Log: bytes of write-ahead log and of journal of a lease, and of a million records, by how
they end. Group: what a run and the service ask about a whole group, against its share-partitions. Heartbeats: as many
as one service process answers, and what each costs it in processor time.

    .venv/bin/python benchmarks/bench_scaling.py [--full]
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from itertools import count
from multiprocessing import get_context
from typing import Any

import httpx
import psutil
import sqlalchemy as sa
from leased_rig import stack
from rig import FULL, connect, report, server

from sharequeue.database import Database
from sharequeue.kafka.topics import Topics
from sharequeue.offsets import OffsetSet
from sharequeue.state import State
from sharequeue.state.many import LeaseAcknowledgement, in_calls
from sharequeue.values import AcknowledgeType, Lease, LogSeen, SharePartition

BATCH = 500
SECONDS = 6.0 if FULL else 2.5
LOADS = ((100, 1), (1_000, 1), (1_000, 2), (1_000, 4), (1_000, 16), (1_000, 64), (10_000, 4), (10_000, 64))
"""Share-partitions and connections."""
PROCESSES = 4
"""Clients share so many processes: a process each would be measured instead of Postgres."""
GROUPS = (100, 1_000, 10_000)
MEMBERS = (50, 200)
FETCH = (
    "select token::text, lower(offsets), upper(offsets) - 1 from sharequeue.acknowledge_and_acquire("
    "'bench', 'calls', %s, 1, %s, null, %s, null, %s, %s, '{1}', %s, 'kafka')"
)
_topics = count()


def start(database: Database, topic: str, share_partitions: int, records: int) -> None:
    """Share-partitions of group ``bench``, whose logs have so many records."""
    with database.transaction() as connection:
        connection.execute(
            sa.text(
                "select sharequeue.initialize('bench', :topic, n, 'id', 0, 1),"
                " sharequeue.observe('bench', :topic, n, 'id', 0, :records, :records)"
                " from generate_series(0, :last) as n"
            ),
            {"topic": topic, "last": share_partitions - 1, "records": records},
        ).all()


def client(url: str, numbers: list[list[int]], begin: Any, results: Any) -> None:
    """One process of clients: a connection and a thread for each list of share-partitions."""
    taken: list[list[float]] = [[] for _ in numbers]

    def work(at: int) -> None:
        connection = connect(url)
        cursor = connection.cursor()
        held: dict[int, Any] = {}
        begin.wait()
        end = time.perf_counter() + SECONDS
        while True:
            for number in numbers[at]:
                token, first, last = held.get(number, (None, None, None))
                began = time.perf_counter()
                bounds = ([first], [last]) if token else ([], [])
                cursor.execute(FETCH, (number, f"m{number}", token, *bounds, BATCH))
                held[number] = cursor.fetchone()
                now = time.perf_counter()
                taken[at].append(now - began)
                if now > end:
                    connection.close()
                    return

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(numbers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put([each for of_thread in taken for each in of_thread])


def calls(url: str, share_partitions: int, connections: int) -> list[str]:
    """A row of the first table."""
    with Database(url) as database:
        with database.transaction() as connection:
            connection.exec_driver_sql("truncate sharequeue.share_partitions cascade")
        start(database, "calls", share_partitions, 10**12)
    context = get_context("fork")
    each = [list(range(at, share_partitions, connections)) for at in range(connections)]
    processes = min(PROCESSES, connections)
    begin, results = context.Barrier(connections), context.Queue()
    running = [
        context.Process(target=client, args=(url, each[at::processes], begin, results))
        for at in range(processes)
    ]
    for process in running:
        process.start()
    times = [value for _ in running for value in results.get()]
    for process in running:
        process.join()
    quantiles = statistics.quantiles(times, n=100)
    return [
        f"{share_partitions:,}",
        str(connections),
        f"{len(times) / SECONDS:,.0f}",
        f"{len(times) / SECONDS * BATCH:,.0f}",
        f"{quantiles[49] * 1000:.2f}",
        f"{quantiles[98] * 1000:.2f}",
    ]


def position(database: Database) -> int:
    """Bytes of write-ahead log so far."""
    return int(database.rows(sa.text("select pg_current_wal_insert_lsn() - '0/0' as at"))[0]["at"])


def journal(database: Database) -> tuple[int, int]:
    """Rows and bytes of the journal, indexes included."""
    (row,) = database.rows(
        sa.text(
            "select (select count(*) from sharequeue.journal) as n, sum(pg_total_relation_size(c.oid)) as bytes"
            " from pg_class c join pg_namespace s on s.oid = c.relnamespace"
            " where s.nspname = 'sharequeue' and c.relkind = 'r' and c.relname like 'journal%'"
        )
    )
    return int(row["n"]), int(row["bytes"])


def log(database: Database, records: int, leases: int, released: int) -> list[str]:
    """A row of the second table: leases of so many records, of which every so-many-th is released (0: none)."""
    state, topic = State(database), f"log{next(_topics)}"
    start(database, topic, leases, records)
    at = [SharePartition("bench", topic, number) for number in range(leases)]
    before, rows_before = position(database), journal(database)
    held: list[Lease] = []
    began = time.perf_counter()
    for some in in_calls(at):
        held += state.many.acquire(some, "m", None, records * len(some), lock_duration_ms=60_000).leases
    assert len(held) == leases
    few = OffsetSet.from_offsets(range(0, records, released)) if released else OffsetSet.of()
    outcomes = {AcknowledgeType.ACCEPT: OffsetSet.of((0, records)) - few}
    if few:
        outcomes[AcknowledgeType.RELEASE] = few
    for some in in_calls(held):
        state.many.acknowledge([LeaseAcknowledgement(lease, outcomes) for lease in some])
    took = time.perf_counter() - began
    wal, (rows, size) = position(database) - before, journal(database)
    return [
        f"{leases:,} of {records:,}",
        f"1 in {released}" if released else "none",
        f"{took / leases * 1e6:,.0f}",
        f"{wal / leases:,.0f}",
        f"{wal / (leases * records) * 1e6:,.0f}",
        f"{(rows - rows_before[0]) / leases:.1f}",
        f"{(size - rows_before[1]) / leases:,.0f}",
    ]


def whole_group(url: str, database: Database, share_partitions: int) -> list[str]:
    """A row of the third table. Postgres has statistics, as it has a minute after share-partitions were made."""
    with database.transaction() as connection:
        connection.exec_driver_sql("truncate sharequeue.share_partitions cascade")
    start(database, "group", share_partitions, 1_000)
    with connect(url).cursor() as cursor:
        cursor.execute("vacuum analyze sharequeue.share_partitions")
    state = State(database)
    seen = [
        LogSeen(SharePartition("bench", "group", n), "id", 0, 1_000, 1_000) for n in range(share_partitions)
    ]
    more = [LogSeen(each.share_partition, "id", 0, 1_001, 1_001) for each in seen]
    state.many.observe(seen)
    statements: list[str] = []
    sa.event.listen(database.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))

    def ms(call: Callable[[], object]) -> str:
        began = time.perf_counter()
        call()
        return f"{(time.perf_counter() - began) * 1000:,.0f}"

    described = ms(lambda: state.figures.describe("bench"))
    statements.clear()
    idle = ms(lambda: state.many.observe(seen))
    asked = len(statements)
    changed = ms(lambda: state.many.observe(more))
    return [f"{share_partitions:,}", described, idle, str(asked), changed, ms(state.sweep)]


def beats(url: str, bodies: list[dict[str, Any]], begin: Any, results: Any) -> None:
    """One process of members, who beat in turn as fast as they are answered."""
    taken: list[float] = []
    with httpx.Client(base_url=url, timeout=30) as http:
        begin.wait()
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            for body in bodies:
                began = time.perf_counter()
                answer = http.post("/v1/share-group-heartbeat", json=body).json()
                taken.append(time.perf_counter() - began)
                assert answer["error_code"] == 0, answer
                body["member_epoch"] = answer["member_epoch"]
    results.put(taken)


def heartbeats(url: str, topic: str, members: int) -> list[str]:
    """A row of the fourth table: a group of so many members."""
    bodies: list[dict[str, Any]] = []
    began = time.perf_counter()
    with httpx.Client(base_url=url, timeout=30) as http:
        for number in range(members):
            body = {"group_id": f"g{members}", "member_id": f"m{number}", "member_epoch": 0}
            answer = http.post(
                "/v1/share-group-heartbeat", json={**body, "subscribed_topic_names": [topic]}
            ).json()
            assert answer["error_code"] == 0, answer
            bodies.append({**body, "member_epoch": answer["member_epoch"]})
    joined = time.perf_counter() - began
    servers = [
        each
        for each in psutil.process_iter(["cmdline"])
        if "serve" in (line := each.info["cmdline"] or []) and str(url.rpartition(":")[2]) in " ".join(line)
    ]
    context = get_context("fork")
    begin, results = context.Barrier(PROCESSES), context.Queue()
    running = [
        context.Process(target=beats, args=(url, bodies[at::PROCESSES], begin, results))
        for at in range(PROCESSES)
    ]
    before = sum(sum(each.cpu_times()[:2]) for each in servers)
    for process in running:
        process.start()
    times = [value for _ in running for value in results.get()]
    for process in running:
        process.join()
    used = sum(sum(each.cpu_times()[:2]) for each in servers) - before
    quantiles = statistics.quantiles(times, n=100)
    return [
        str(members),
        f"{joined / members * 1000:,.1f}",
        f"{len(times) / SECONDS:,.0f}",
        f"{quantiles[49] * 1000:.1f}",
        f"{quantiles[98] * 1000:.1f}",
        f"{used / len(times) * 1000:.2f}" if servers else "?",
    ]


def main() -> None:
    """Print the four tables."""
    with server() as url:
        rows = [calls(url, *load) for load in LOADS]
        headings = ["share-partitions", "connections", "calls/s", "records/s", "p50, ms", "p99, ms"]
        report(url, f"Calls of {BATCH} records", headings, rows)
    with server() as url, Database(url) as database:
        log(database, 1_000, 200, 0)  # warms up
        kinds = ((1_000, 1_000, 0), (100_000, 1_000, 0), (100_000, 100, 100), (1_000_000, 10, 100))
        rows = [log(database, *kind) for kind in kinds]
        headings = ["leases", "released", "µs a lease", "WAL B a lease", "WAL B a 10⁶ records"]
        headings += ["journal rows a lease", "journal B a lease"]
        report(url, "Log and journal of a lease and its acknowledgement", headings, rows)
        rows = [whole_group(url, database, each) for each in GROUPS]
        headings = ["share-partitions", "describe, ms", "observe idle, ms", "statements"]
        headings += ["observe new, ms", "sweep, ms"]
        report(url, "What is asked about a whole group", headings, rows)
    with stack(service=True) as settings, Topics(settings) as topics:
        topics.create("beats", 100)
        rows = [heartbeats(settings.service_url, "beats", each) for each in MEMBERS]
        headings = [
            "members",
            "join, ms each",
            "heartbeats/s",
            "p50, ms",
            "p99, ms",
            "service's CPU, ms each",
        ]
        report(settings.database_url, "Heartbeats answered by one service process", headings, rows)
        with Database.open(settings) as database:
            query = "select count(*) as n from pg_stat_activity where datname = current_database()"
            (row,) = database.rows(sa.text(f"{query} and pid <> pg_backend_pid()"))
            print(f"connections of the service after that: {row['n']}")


if __name__ == "__main__":
    main()
