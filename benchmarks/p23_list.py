"""P23: the list of 4,000 groups, and heartbeats during 24 concurrent requests for it, or for the metrics.

One database of 4,000 groups, once without ACLs, once with one for each group. First `GET /v1/groups` and the first
page alone; then heartbeats of one member, one after the other, while 24 clients of the same principal request the
list continuously, and while as many scrape `/metrics`. The service is a separate process, and so is each kind of
load.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import httpx
import sqlalchemy as sa

from benchmarks.database import members, server, settle
from benchmarks.harness import Table, case, median, part, percentile, seconds
from benchmarks.p11_heartbeats import PORT, service
from sharequeue.database import Database
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.local.ports import LOOPBACK

READERS = 24
BEAT = {"group_id": "group", "member_id": "member-0000", "member_epoch": 2}
GROUPS = (
    "insert into sharequeue.share_groups (group_id)"
    " select 'group-' || n from generate_series(2, cast(:groups as integer)) as n"
)
ACLS = (
    "insert into sharequeue.acls (principal, operation, permission, pattern_type, resource_name, resource_type)"
    " select 'User:ANONYMOUS', 'READ', 'ALLOW', 'LITERAL', group_id, 'GROUP' from sharequeue.share_groups"
)


def client() -> httpx.Client:
    """Return a client of the service."""
    return httpx.Client(base_url=f"http://{LOOPBACK}:{PORT}", trust_env=False, timeout=120)


def read() -> None:
    """Request the list with 24 clients until this process is ended."""
    request_always("/v1/groups")


def scrape() -> None:
    """Scrape with 24 clients until this process is ended."""
    request_always("/metrics")


def request_always(path: str) -> None:
    """Request a path with 24 clients without a pause."""

    def ask() -> None:
        with client() as http:
            while True:
                http.get(path).raise_for_status()

    for _ in range(READERS):
        threading.Thread(target=ask).start()


def beats(duration: int) -> list[float]:
    """Return the milliseconds of heartbeats, at most one every 20 ms."""
    times = []
    with client() as http:

        def beat() -> None:
            response = http.post("/v1/share-group-heartbeat", json=BEAT).json()
            assert response["error_code"] == 0, response

        until = time.perf_counter() + duration
        while time.perf_counter() < until:
            times.append(seconds(beat) * 1000)
            time.sleep(max(0.0, 0.02 - times[-1] / 1000))
    return times


def request(path: str) -> float:
    """Return the median of the seconds of five requests."""
    with client() as http:
        return median([seconds(lambda: http.get(path).raise_for_status()) for _ in range(5)])


def beside(load: str, duration: int) -> list[float]:
    """Return the milliseconds of heartbeats beside a load of this module."""
    with part(f"p23_list:{load}"):
        time.sleep(3)
        return beats(duration)


def measured(acls: str, duration: int) -> list[str]:
    """Return one row of the table."""
    listed, page, alone = request("/v1/groups"), request("/"), beats(duration)
    during = beside("read", duration)
    p99 = (f"{percentile(each, 99):,.0f}" for each in (alone, during))
    return [acls, f"{listed:.2f}", f"{page:.2f}", *p99, f"{max(during):,.0f}", f"{len(during):,}"]


def scraped(turns: int, duration: int) -> list[list[str]]:
    """Return a row for each turn: the p99 of heartbeats alone, beside scrapers, and their ratio."""
    rows = []
    for turn in range(1, turns + 1):
        alone, during = percentile(beats(duration), 99), percentile(beside("scrape", duration), 99)
        rows.append([str(turn), f"{alone:,.1f}", f"{during:,.1f}", f"{during / alone:.2f}"])
    return rows


@case(
    "P23",
    "list ≤ 1 s, page ≤ 1 s, p99 of a heartbeat beside ≤ 100 ms; beside 24 scrapers ≤ 2 × alone",
    duration=15,
)
def long_list(groups: int = 4_000, duration: int = 60) -> Iterator[Table]:
    """Measure the list of 4,000 groups, and a heartbeat beside 24 requests for it."""
    with server() as url, Database(url) as database:
        members(database, "group", 10, 10, ServiceConfigs())
        with database.transaction() as connection:
            connection.execute(sa.text(GROUPS), {"groups": groups})
        settle(url)
        with service(url, 11_000, "gathered"):
            rows = [measured("none", duration)]
            with database.transaction() as connection:
                connection.exec_driver_sql(ACLS)
            rows.append(measured("one for each group", duration))
            of_metrics = scraped(5, duration // 3)
    headings = ["ACLs", "list s", "page s", "p99 ms alone", "p99 ms beside", "most", "heartbeats"]
    yield Table(headings, rows, f"{groups:,} groups; {READERS} requests for the list, {duration} s")
    headings = ["turn", "p99 ms alone", "p99 ms beside", "ratio"]
    yield Table(
        headings, of_metrics, f"{groups:,} groups; {READERS} scrapers of /metrics, {duration // 3} s a side"
    )
