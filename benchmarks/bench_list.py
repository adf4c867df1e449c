"""P23: the list of 4,000 groups, and a heartbeat beside 24 requests for it.

One database of 4,000 groups, once without ACLs, once with one for each group. `GET /v1/groups` and the first page
alone; then heartbeats of one member, one after the other, while 24 clients of the same principal ask for the list
without a break. The service is a process of its own, and so is each kind of load.

    .venv/bin/python benchmarks/bench_list.py [--full]
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import sqlalchemy as sa
from bench_members import fill, serve
from rig import FULL, connect, report, server

from sharequeue.database import Database
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.local.ports import LOOPBACK

GROUPS = 4_000
READERS = 24
PORT = 18766
SECONDS = 60 if FULL else 15
URL = f"http://{LOOPBACK}:{PORT}"
BEAT = {"group_id": "group", "member_id": "member-0000", "member_epoch": 2}


@contextmanager
def process_of(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a part of this benchmark in a process of its own."""
    started = subprocess.Popen([sys.executable, __file__, *arguments])
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def read() -> None:
    """Ask for the list, by 24 clients, until somebody ends this process."""

    def ask() -> None:
        with httpx.Client(base_url=URL, trust_env=False, timeout=120) as client:
            while True:
                client.get("/v1/groups").raise_for_status()

    for _ in range(READERS):
        threading.Thread(target=ask).start()


def beats() -> list[float]:
    """Return how long heartbeats took, one each 20 ms at most."""
    times = []
    until = time.perf_counter() + SECONDS
    with httpx.Client(base_url=URL, trust_env=False, timeout=120) as client:
        while (began := time.perf_counter()) < until:
            answer = client.post("/v1/share-group-heartbeat", json=BEAT).json()
            assert answer["error_code"] == 0, answer
            times.append(time.perf_counter() - began)
            time.sleep(max(0.0, 0.02 - times[-1]))
    return sorted(times)


def took(path: str) -> float:
    """Return the median of five requests."""
    times = []
    with httpx.Client(base_url=URL, trust_env=False, timeout=120) as client:
        for _ in range(5):
            began = time.perf_counter()
            client.get(path).raise_for_status()
            times.append(time.perf_counter() - began)
    return sorted(times)[2]


def measured(acls: str) -> list[str]:
    """Return one row of the table."""
    listed, page = took("/v1/groups"), took("/")
    alone = beats()
    with process_of("--read"):
        time.sleep(3)
        beside = beats()
    return [
        acls,
        f"{listed:.2f}",
        f"{page:.2f}",
        *(f"{each[len(each) * 99 // 100] * 1000:,.0f}" for each in (alone, beside)),
        f"{beside[-1] * 1000:,.0f}",
        f"{len(beside):,}",
    ]


def main() -> None:
    """Print the table."""
    if "--serve" in sys.argv:
        serve(sys.argv[2], PORT, gather=True)
        return
    if "--read" in sys.argv:
        read()
        return
    rows = []
    with server() as url, Database(url) as database:
        fill(database, "group", 10, 10, ServiceConfigs())
        with database.transaction() as connection:
            connection.execute(
                sa.text(
                    "insert into sharequeue.share_groups (group_id)"
                    " select 'group-' || n from generate_series(2, :groups) as n"
                ),
                {"groups": GROUPS},
            )
        with connect(url).cursor() as cursor:
            cursor.execute("vacuum analyze")
        with process_of("--serve", url) as service:
            while True:
                with suppress(OSError), socket.create_connection((LOOPBACK, PORT), timeout=1):
                    break
                assert service.poll() is None, "the service has not started"
                time.sleep(0.2)
            time.sleep(5)  # by then it has looked at all groups
            rows.append(measured("none"))
            with database.transaction() as connection:
                connection.exec_driver_sql(
                    "insert into sharequeue.acls (principal, operation, permission, pattern_type, resource_name,"
                    " resource_type) select 'User:ANONYMOUS', 'READ', 'ALLOW', 'LITERAL', group_id, 'GROUP'"
                    " from sharequeue.share_groups"
                )
            rows.append(measured("one for each group"))
        rows.append(["goal", "≤ 1", "≤ 1", "", "≤ 100", "", ""])
        report(
            url,
            f"P23: {GROUPS:,} groups; a heartbeat beside {READERS} requests for the list, {SECONDS} s",
            ["ACLs", "list s", "page s", "p99 ms alone", "p99 ms beside", "most", "heartbeats"],
            rows,
        )


if __name__ == "__main__":
    main()
