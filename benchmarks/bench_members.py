"""P12, P11: a thousand members after one has left, and ten thousand that send heartbeats.

P12: one group of 1,000 members and 1,000 share-partitions, each assignor in turn. One member leaves; measured until
the assignment without it is written, and how many pairs of member and share-partition came and went beside its own.

P11: the service, as a process on one core, with Postgres on the same core; 50 groups (`--groups`) of 200 members
and 200 share-partitions each. Every member has a connection of its own that stays open, and sends a heartbeat each
5 s. Once as the service does it (what only says that a member is alive is gathered), once with a call of the database
for each heartbeat. The generator runs on the other core. A heartbeat's time counts from when it was due, so that
nothing is hidden when the generator or the service is late; how late the generator itself was, and what it took of
its core, is in the table. The broker is a stand-in with the same logs each time.

    .venv/bin/python benchmarks/bench_members.py [--full] [--groups 50]
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import sqlalchemy as sa
from bench_idle import StandIn, of_postgres, seconds_of
from rig import FULL, connect, report, server

from sharequeue.database import Database
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat, refresh_group
from sharequeue.local.ports import LOOPBACK

THOUSAND = 1_000
LEAVERS = 5
GROUPS = int(sys.argv[sys.argv.index("--groups") + 1]) if "--groups" in sys.argv else 50
MEMBERS = 200
BEAT_SECONDS = 5.0
WARM_SECONDS = 10
SECONDS = 60 if FULL else 20
FILL = (
    "insert into sharequeue.share_groups (group_id) values (:group) on conflict do nothing",
    "insert into sharequeue.topics values (:topic, :id, :partitions, sharequeue.clock())",
    "select sharequeue.initialize(:group, :topic, n, :id, 0, 1) from generate_series(0, cast(:last as integer)) as n",
    "insert into sharequeue.members (group_id, member_id, member_epoch, subscribed_topic_names, joined_at,"
    " heartbeat_at, session_expires_at, client_host, principal)"
    " select :group, 'member-' || to_char(n, 'FM0000'), 2, array[:topic],"
    " sharequeue.clock(), sharequeue.clock(), sharequeue.clock() + interval '1 hour', :host, 'User:ANONYMOUS'"
    " from generate_series(0, cast(:members as integer) - 1) as n",
    "update sharequeue.share_groups set group_epoch = 2 where group_id = :group",
)


def fill(database: Database, group: str, members: int, partitions: int, configs: ServiceConfigs) -> None:
    """A group with so many members, assigned what there is."""
    names = {
        "group": group,
        "topic": f"topic-of-{group}",
        "id": f"id-topic-of-{group}",
        "partitions": partitions,
        "last": partitions - 1,
        "members": members,
        "host": LOOPBACK,
    }
    with database.transaction() as connection:
        for statement in FILL:
            connection.execute(sa.text(statement), names)
        connection.execute(
            sa.text(
                "update sharequeue.share_groups set metadata_hash = sharequeue.metadata_hash(:group)"
                " where group_id = :group"
            ),
            names,
        )
    refresh_group(database, group, configs)
    with database.transaction() as connection:
        connection.execute(
            sa.text("update sharequeue.members set member_epoch = 2 where group_id = :group"), names
        )


def one_leaves() -> None:
    """P12."""
    configs = ServiceConfigs.of({"group.share.max.size": str(THOUSAND)})
    rows = []
    with server() as url, Database(url) as database:

        def pairs(group: str) -> set[tuple[str, int]]:
            found = database.rows(
                sa.text(
                    "select member_id, share_partition_id from sharequeue.assignments where group_id = :group"
                ),
                group=group,
            )
            return {(row["member_id"], row["share_partition_id"]) for row in found}

        for assignor in ("simple", "backlog"):
            alter_group_configs(
                database, assignor, {"share.assignors": assignor, "share.assignment.interval.ms": 0}
            )
            fill(database, assignor, THOUSAND, THOUSAND, configs)
            with connect(url).cursor() as cursor:
                cursor.execute("vacuum analyze")
            times, came, went, due = [], 0, 0, 0
            for number in range(LEAVERS):
                leaver, before = f"member-{number * 37:04}", pairs(assignor)
                began = time.perf_counter()
                heartbeat(database, HeartbeatRequest(assignor, leaver, -1), configs)
                refresh_group(database, assignor, configs)
                times.append(time.perf_counter() - began)
                after = pairs(assignor)
                due += sum(member == leaver for member, _ in before)
                came += len(after - before)
                went += sum(member != leaver for member, _ in before - after)
            rows.append(
                [
                    assignor,
                    f"{statistics.median(times) * 1000:.0f}",
                    f"{max(times) * 1000:.0f}",
                    *(f"{each / LEAVERS:.1f}" for each in (due, came, went)),
                ]
            )
        rows.append(["goal", "< 1,000", "", "", "what was the leaver's", "0"])
        report(
            url,
            f"P12: one of {THOUSAND:,} members leaves {THOUSAND:,} share-partitions, ms, {LEAVERS} times",
            ["assignor", "median", "most", "pairs of the leaver", "pairs that came", "others that went"],
            rows,
        )


def serve(url: str, port: int, *, gather: bool) -> None:
    """Be the service, with a stand-in for the broker."""
    import uvicorn

    from sharequeue.service import context
    from sharequeue.service.app import create_app
    from sharequeue.service.edge.connections import BoundedServer
    from sharequeue.service.server import collect_rarely
    from sharequeue.settings import Settings

    logging.disable(logging.WARNING)
    stand_in: Any = StandIn()
    stand_in.partitions = MEMBERS
    context.Topics = lambda *_, **__: stand_in  # type: ignore[assignment,misc]
    # All members are one principal at one address.
    os.environ["SHAREQUEUE_SERVICE_REQUESTS_PER_SECOND"] = "0"
    os.environ["SHAREQUEUE_SERVICE_MAX_CONNECTIONS"] = str(GROUPS * MEMBERS + 1000)
    settings = Settings.load(database_url=url, bootstrap_servers="localhost:1")
    app = create_app(settings, ServiceConfigs())
    if not gather:
        app.state.service.beats._in_charge = lambda: False
    config = uvicorn.Config(
        app, host=LOOPBACK, port=port, log_config=None, access_log=False, server_header=False
    )
    collect_rarely()
    BoundedServer(config, settings.service_limits).run()


class Member(asyncio.Protocol):
    """A member with a connection of its own."""

    def __init__(self, group: str, member: str) -> None:
        body = json.dumps({"group_id": group, "member_id": member, "member_epoch": 2}).encode()
        head = (
            "POST /v1/share-group-heartbeat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        self._request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        self._due = 0.0
        self._answer = b""
        self.times: list[float] = []
        self.problems: list[bytes] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self.transport = transport

    @property
    def is_waiting(self) -> bool:
        """Whether a heartbeat is not answered yet."""
        return self._due > 0

    def connection_lost(self, error: Exception | None) -> None:
        """Note that the service has closed it."""
        self.problems.append(b"the connection was closed")

    def send(self, due: float) -> None:
        """Send a heartbeat that is due."""
        if self._due:
            self.problems.append(b"the last one is not answered yet")
        self._due = due
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Take a response, which may come in parts."""
        self._answer += data
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if not found or not body.endswith(b"}"):
            return
        self.times.append(time.perf_counter() - self._due)
        self._due, self._answer = 0.0, b""
        if b'"error_code":0' not in body:
            self.problems.append(head[:60] + body[:300])


async def load(port: int) -> dict[str, Any]:
    """Send the heartbeats of all members at an even pace; return what was seen."""
    loop = asyncio.get_running_loop()
    members: list[Member] = []
    for number in range(MEMBERS):
        for group in range(GROUPS):
            _, member = await loop.create_connection(
                lambda group=group, number=number: Member(f"group-{group}", f"member-{number:04}"),  # type: ignore[misc]
                LOOPBACK,
                port,
            )
            # As a member does: the service does not keep a connection that asks for nothing.
            member.send(time.perf_counter())
            members.append(member)
    while any(member.is_waiting for member in members):
        await asyncio.sleep(0.01)
    pace = BEAT_SECONDS / len(members)
    lateness: list[float] = []
    start, turn = time.perf_counter(), 0

    async def send_for(seconds: float) -> None:
        nonlocal turn
        while (now := time.perf_counter()) < start + seconds:
            while (due := start + turn * pace) <= now:
                members[turn % len(members)].send(due)
                lateness.append(now - due)
                turn += 1
            await asyncio.sleep(0.001)

    await send_for(WARM_SECONDS)
    lateness.clear()
    for member in members:
        member.times.clear()
        member.problems.clear()
    print("warm", flush=True)
    began, spent = time.perf_counter(), time.process_time()
    await send_for(WARM_SECONDS + SECONDS)
    spent = (time.process_time() - spent) / (time.perf_counter() - began)
    print("measured", flush=True)
    await asyncio.sleep(0.5)
    times = sorted(each for member in members for each in member.times)
    problems = [each for member in members for each in member.problems]
    late = sorted(lateness)
    return {
        "beats": len(times) / SECONDS,
        "p50": times[len(times) // 2],
        "p99": times[len(times) * 99 // 100],
        "most": times[-1],
        "late": late[len(late) * 99 // 100],
        "spent": spent,
        "problems": len(problems),
        "first": problems[0].decode() if problems else "",
    }


@contextmanager
def process(*arguments: str, cores: set[int]) -> Iterator[subprocess.Popen[str]]:
    """Run a part of this benchmark in a process of its own, on some cores."""
    started = subprocess.Popen(
        [sys.executable, __file__, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    try:
        yield started
    finally:
        # One that is overloaded would take its time.
        started.kill()
        started.wait()


def heartbeats(port: int = 18765) -> None:
    """P11."""
    ours, others = {0}, {1} if (os.cpu_count() or 1) > 1 else {0}
    configs = ServiceConfigs()
    rows = []
    with server() as url, Database(url) as database:
        for number in range(GROUPS):
            fill(database, f"group-{number}", MEMBERS, MEMBERS, configs)
        with connect(url).cursor() as cursor:
            cursor.execute("vacuum analyze")
            cursor.execute("checkpoint")
        postmaster = of_postgres(url)
        # What it starts from now on is on the same core; a backend that was there may be gone.
        for each in (postmaster, *postmaster.children()):
            with suppress(psutil.NoSuchProcess):
                each.cpu_affinity(list(ours))
        for name, how in (("gathered", "gathered"), ("a call for each", "each")):
            with process("--serve", url, str(port), how, "--groups", str(GROUPS), cores=ours) as service:
                while True:
                    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
                        break
                    assert service.poll() is None, "the service has not started"
                    time.sleep(0.2)
                time.sleep(5)  # by then it has looked at all groups
                with process("--load", str(port), "--groups", str(GROUPS), cores=others) as generator:
                    assert generator.stdout is not None
                    marks, seen = [], {}
                    for line in generator.stdout:
                        if line.strip() in ("warm", "measured"):
                            times = psutil.Process(service.pid).cpu_times()
                            marks.append(
                                (time.monotonic(), times.user + times.system, seconds_of(postmaster))
                            )
                            continue
                        seen = json.loads(line)
                        break
            assert seen, "the generator has ended early"
            passed, of_service, of_server = (b - a for a, b in zip(*marks, strict=True))
            if seen["first"]:
                print(name, seen["first"])
            rows.append(
                [
                    name,
                    f"{seen['beats']:,.0f}",
                    *(f"{seen[key] * 1000:,.1f}" for key in ("p50", "p99", "most", "late")),
                    f"{of_service / passed:.0%}",
                    f"{of_server / passed:.0%}",
                    f"{(of_service + of_server) / passed / seen['beats'] * 1000:.2f}",
                    f"{seen['spent']:.0%}",
                    str(seen["problems"]),
                ]
            )
        rows.append(
            ["goal", f"{GROUPS * MEMBERS / BEAT_SECONDS:,.0f}", "", "< 50", *[""] * 4, "0.50", "", "0"]
        )
        report(
            url,
            f"P11: {GROUPS * MEMBERS:,} members, a heartbeat each {BEAT_SECONDS:.0f} s, {SECONDS} s",
            [
                "",
                "beats/s",
                "p50 ms",
                "p99 ms",
                "most",
                "late p99",
                "service",
                "Postgres",
                "ms a beat",
                "generator",
                "problems",
            ],
            rows,
        )


def main() -> None:
    """Print both tables."""
    if "--serve" in sys.argv:
        serve(sys.argv[2], int(sys.argv[3]), gather=sys.argv[4] == "gathered")
    elif "--load" in sys.argv:
        print(json.dumps(asyncio.run(load(int(sys.argv[2])))), flush=True)
    else:
        if "--groups" not in sys.argv:
            one_leaves()
        heartbeats()


if __name__ == "__main__":
    main()
