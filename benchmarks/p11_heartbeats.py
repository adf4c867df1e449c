"""P11: ten thousand members that send heartbeats to one service.

The service is a process on one core, with Postgres on the same core; 50 groups of 200 members and 200
share-partitions each. Every member has its own connection, which stays open, and sends a heartbeat every 5 s. One
side is the service as it is (heartbeats that only keep a member alive are collected), the other makes a database call
for each heartbeat. The generator runs on the other core. A heartbeat's time counts from when it was due, so that no
delay of the generator or the service is hidden; the delay of the generator and its use of its core are in the table.
The broker is a stand-in with the same logs each time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from benchmarks.database import StandIn, members, postmaster_of, processor_of, server, settle, wait_until
from benchmarks.harness import Table, case, part, percentile
from sharequeue.database import Database
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.local.ports import LOOPBACK

MEMBERS = 200
BEAT_SECONDS = 5.0
WARM_SECONDS = 10
PORT = 18765


def serve(url: str, connections: str, how: str) -> None:
    """Run the service with a stand-in for the broker; ``how`` is `gathered` or a call for each heartbeat."""
    import uvicorn

    from sharequeue.domain.settings import Settings
    from sharequeue.service import context
    from sharequeue.service.app import create_app
    from sharequeue.service.server import configured, favour_heartbeats

    logging.disable(logging.WARNING)
    stand_in: Any = StandIn(MEMBERS)
    context.Topics = lambda *_, **__: stand_in  # type: ignore[assignment,attr-defined]
    # All members are one principal at one address.
    os.environ["SHAREQUEUE_SERVICE_REQUESTS_PER_SECOND"] = "0"
    os.environ["SHAREQUEUE_SERVICE_MAX_CONNECTIONS"] = connections
    settings = Settings.load(database_url=url, bootstrap_servers="localhost:1")
    app = create_app(settings, ServiceConfigs())
    if how != "gathered":
        app.state.service.heartbeats._gathered._keeps_up = lambda: False
    favour_heartbeats()
    uvicorn.Server(configured(app, settings.service_limits, LOOPBACK, PORT)).run()


@contextmanager
def service(
    url: str, connections: int, how: str, cores: set[int] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start the service and wait until it has checked all groups."""
    with part("p11_heartbeats:serve", url, connections, how, cores=cores) as process:

        def accepts() -> bool:
            assert process.poll() is None, "the service has not started"
            with suppress(OSError), socket.create_connection((LOOPBACK, PORT), timeout=1):
                return True
            return False

        wait_until(accepts)
        time.sleep(5)
        yield process


class Member(asyncio.Protocol):
    """A member with its own connection."""

    def __init__(self, group: str, member: str) -> None:
        body = json.dumps({"group_id": group, "member_id": member, "member_epoch": 2}).encode()
        head = (
            "POST /v1/share-group-heartbeat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        self._request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        self._response = b""
        self.due = 0.0
        self.times: list[float] = []
        self.problems: list[bytes] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Record that the service has closed it."""
        self.problems.append(b"the connection was closed")

    def send(self, due: float) -> None:
        """Send a heartbeat that is due."""
        if self.due:
            self.problems.append(b"the last one has no response yet")
        self.due = due
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Receive a response, which may arrive in parts."""
        self._response += data
        head, found, body = self._response.partition(b"\r\n\r\n")
        if not found or not body.endswith(b"}"):
            return
        self.times.append(time.perf_counter() - self.due)
        self.due, self._response = 0.0, b""
        if b'"error_code":0' not in body:
            self.problems.append(head[:60] + body[:300])


def load(groups: str, duration: str) -> None:
    """Send the heartbeats of all members at an even pace; print the end of the warm-up, the end, and the figures."""
    print(json.dumps(asyncio.run(send_all(int(groups), float(duration)))), flush=True)


async def send_all(groups: int, duration: float) -> dict[str, Any]:
    """Connect all members, then send."""
    loop = asyncio.get_running_loop()
    all_members: list[Member] = []
    for group in range(groups):
        for name in range(MEMBERS):
            _, member = await loop.create_connection(
                lambda g=group, n=name: Member(f"group-{g}", f"member-{n:04}"),  # type: ignore[misc]
                LOOPBACK,
                PORT,
            )
            # As a member does: the service closes a connection without requests.
            member.send(time.perf_counter())
            all_members.append(member)
    while any(member.due for member in all_members):
        await asyncio.sleep(0.01)
    pace = BEAT_SECONDS / len(all_members)
    lateness: list[float] = []
    start, turn = time.perf_counter(), 0

    async def send_until(seconds: float) -> None:
        nonlocal turn
        while (now := time.perf_counter()) < start + seconds:
            while (due := start + turn * pace) <= now:
                all_members[turn % len(all_members)].send(due)
                lateness.append(now - due)
                turn += 1
            await asyncio.sleep(0.001)

    await send_until(WARM_SECONDS)
    lateness.clear()
    for member in all_members:
        member.times.clear()
        member.problems.clear()
    print("warm", flush=True)
    began, spent = time.perf_counter(), time.process_time()
    await send_until(WARM_SECONDS + duration)
    spent = (time.process_time() - spent) / (time.perf_counter() - began)
    print("measured", flush=True)
    await asyncio.sleep(0.5)
    times = [each for member in all_members for each in member.times]
    problems = [each for member in all_members for each in member.problems]
    return {
        "beats": len(times) / duration,
        "ms": [percentile(times, 50), percentile(times, 99), max(times), percentile(lateness, 99)],
        "spent": spent,
        "problems": len(problems),
        "first": problems[0].decode() if problems else "",
    }


def beats(url: str, groups: int, duration: int, how: str) -> list[str]:
    """Return a row with the figures of members and service."""
    ours, others = {0}, {1} if (os.cpu_count() or 1) > 1 else {0}
    postmaster = postmaster_of(url)
    # Processes that it starts from now on use the same core; an earlier backend may have ended.
    for each in (postmaster, *postmaster.children()):
        with suppress(psutil.NoSuchProcess):
            each.cpu_affinity(list(ours))
    marks, seen = [], {}
    with (
        service(url, groups * MEMBERS + 1000, how, ours) as process,
        part("p11_heartbeats:load", groups, duration, cores=others) as generator,
    ):
        assert generator.stdout is not None
        for line in generator.stdout:
            if line.strip() not in ("warm", "measured"):
                seen = json.loads(line)
                break
            used = sum(psutil.Process(process.pid).cpu_times()[:2])
            marks.append((time.monotonic(), used, processor_of(postmaster)))
    assert seen, "the generator has ended early"
    passed, of_service, of_server = (b - a for a, b in zip(*marks, strict=True))
    if seen["first"]:
        print(how, seen["first"])
    return [
        how,
        f"{seen['beats']:,.0f}",
        *(f"{each * 1000:,.1f}" for each in seen["ms"]),
        f"{of_service / passed:.0%}",
        f"{of_server / passed:.0%}",
        f"{(of_service + of_server) / passed / seen['beats'] * 1000:.2f}",
        f"{seen['spent']:.0%}",
        str(seen["problems"]),
    ]


@case("P11", "10,000 members: 2,000 beats/s, p99 < 50 ms, ≤ 0.50 ms a beat, no problems", duration=20)
def heartbeats(groups: int = 50, duration: int = 60) -> Iterator[Table]:
    """Measure the heartbeats that one service on one core carries, Postgres on the same core."""
    with server() as url, Database(url) as database:
        for number in range(groups):
            members(database, f"group-{number}", MEMBERS, MEMBERS, ServiceConfigs())
        settle(url)
        rows = [beats(url, groups, duration, how) for how in ("gathered", "a call each")]
    headings = ["", "beats/s", "p50 ms", "p99 ms", "most", "late p99", "service", "Postgres", "ms a beat"]
    title = f"{groups * MEMBERS:,} members, a heartbeat each {BEAT_SECONDS:.0f} s, {duration} s"
    yield Table([*headings, "generator", "problems"], rows, title)
