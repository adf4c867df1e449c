"""A Postgres for a case, with groups and members, and a stand-in for the broker."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psutil
import psycopg2
import sqlalchemy as sa
from psycopg2 import extensions

from benchmarks.harness import MADE_OF
from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.domain.errors import ShareError
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import (
    Acknowledged,
    AcknowledgeType,
    Lease,
    LeaseOutput,
    LogSeen,
    SharePartition,
)
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.configs.published import publish_service_configs
from sharequeue.groups.heartbeats import refresh_group
from sharequeue.kafka.topics import LogOffsets, TopicInfo, TopicsFound
from sharequeue.local import ports, postgres
from sharequeue.local.home import Home
from sharequeue.local.ports import LOOPBACK
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement

ALL_LOCKS = 2**31 - 1
BATCH = 500
"""The number of records acquired from a share-partition at once."""
Held = Mapping[int, tuple[str, str]]
"""Lease token and offsets by partition."""
SHARE_PARTITIONS = (
    "select sharequeue.initialize(%s, %s, n, %s, 0, 1), sharequeue.observe(%s, %s, n, %s, 0, %s, %s)"
    " from generate_series(%s, %s) as n"
)
MEMBERS = (
    "insert into sharequeue.share_groups (group_id) values (:group) on conflict do nothing",
    "insert into sharequeue.topics values (:topic, :id, :partitions, sharequeue.clock())",
    "select sharequeue.initialize(:group, :topic, n, :id, 0, 1) from generate_series(0, cast(:last as integer)) as n",
    "insert into sharequeue.members (group_id, member_id, member_epoch, subscribed_topic_names, joined_at,"
    " heartbeat_at, session_expires_at, client_host, principal)"
    " select :group, 'member-' || to_char(n, 'FM0000'), 2, array[:topic],"
    " sharequeue.clock(), sharequeue.clock(), sharequeue.clock() + interval '1 hour', :host, 'User:ANONYMOUS'"
    " from generate_series(0, cast(:members as integer) - 1) as n",
    "update sharequeue.share_groups set group_epoch = 2 where group_id = :group",
    "update sharequeue.share_groups set metadata_hash = sharequeue.metadata_hash(:group) where group_id = :group",
)


@contextmanager
def server() -> Iterator[str]:
    """Run a Postgres with fsync on; yield the URL of a migrated database with group ``bench``."""
    home = Home.at(tempfile.mkdtemp(prefix="sharequeue-bench-"))
    home.path.chmod(0o755)  # as root, Postgres runs as `nobody` and needs access
    for folder in (home.logs, home.run, home.postgres):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        url = postgres.url(home, "sharequeue", postgres.ensure(home, lambda line: None))
        note_version(url)
        with Database(url) as database:
            migrate(database)
            # Locks that last longer than the preparation of a case.
            publish_service_configs(
                database, ServiceConfigs.of({"group.share.max.record.lock.duration.ms": "3600000"})
            )
            with database.transaction() as connection:
                connection.exec_driver_sql("insert into sharequeue.share_groups (group_id) values ('bench')")
                connection.exec_driver_sql(
                    "insert into sharequeue.group_configs"
                    " values ('bench', 'share.partition.max.record.locks', '2147483647')"
                )
        yield url
    finally:
        ports.stop(home, postgres.NAME)
        shutil.rmtree(home.path, ignore_errors=True)


def note_version(url: str) -> None:
    """Add the server's version to the notes under a table."""
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("show server_version")
        (MADE_OF["PostgreSQL"],) = cursor.fetchone() or ("?",)


def connect(url: str) -> extensions.connection:
    """Return a plain connection in autocommit mode."""
    parts = sa.make_url(url)
    connection = psycopg2.connect(
        host=parts.host, port=parts.port, user=parts.username, password=parts.password, dbname=parts.database
    )
    connection.autocommit = True
    return connection


def settle(url: str) -> None:
    """Vacuum, analyze and checkpoint now, so that none of them runs during a measurement."""
    with connect(url).cursor() as cursor:
        cursor.execute("vacuum analyze")
        cursor.execute("checkpoint")


def share_partitions(
    cursor: Any, topic: str, records: int, count: int = 1, group: str = "bench", topic_id: str = "id"
) -> None:
    """Create share-partitions 0 to ``count`` - 1 of a group, each with a log of the given number of records."""
    of = (group, topic, topic_id)
    cursor.execute(SHARE_PARTITIONS, (*of, *of, records, records, 0, count - 1))


def lease_all(state: State, at: SharePartition, topic_id: str, log_end: int) -> Lease:
    """Observe the given end of a log and lease all available records."""
    state.observe([LogSeen(at, topic_id, 0, log_end, log_end)])
    (lease,) = state.acquire([at], "member", None, ALL_LOCKS).leases
    return lease


def acknowledge(
    state: State,
    lease: Lease,
    outcomes: Mapping[AcknowledgeType, OffsetSet],
    outputs: Sequence[LeaseOutput] = (),
) -> Acknowledged:
    """Acknowledge a lease; raise an error if it is refused."""
    (result,) = state.acknowledge([LeaseAcknowledgement(lease, outcomes, outputs)])
    if isinstance(result, ShareError):
        raise result
    return result


def window(cursor: Any, records: int) -> None:
    """Limit the records in flight of a share-partition, so that all share-partitions of a call get the same
    number."""
    cursor.execute(
        "insert into sharequeue.group_configs values ('bench', 'share.partition.max.record.locks', %s)"
        " on conflict (group_id, name) do update set value = excluded.value",
        (str(records),),
    )


def accept(cursor: Any, topic: str, member: str, held: Held) -> None:
    """Accept the held records of these share-partitions, in one call."""
    if not held:
        return
    tokens, offsets = zip(*held.values(), strict=True)
    count = len(held)
    cursor.execute(
        "select max(error_code) from sharequeue.acknowledge_many('bench', %s, %s, %s, %s, null,"
        " cast(%s as uuid[]), %s, cast(%s as int8multirange[]), cast(%s as int8multirange[]),"
        " cast(%s as int8multirange[]), cast(%s as int8multirange[]), %s, cast(%s as timestamptz[]))",
        (
            *([topic] * count, list(held), [1] * count, member, list(tokens), str(uuid4()), list(offsets)),
            *([["{}"] * count] * 3),
            *(json.dumps([[]] * count), [None] * count),
        ),
    )
    assert cursor.fetchone() == (0,)


def fetch(cursor: Any, topic: str, partitions: Sequence[int], member: str, held: Held) -> Held:
    """Accept the held records of these share-partitions and acquire ``BATCH`` records of each, in two calls, as
    consumers and runs do. Return the newly held records."""
    accept(cursor, topic, member, held)
    cursor.execute(
        "select partition, token::text, offsets::text from sharequeue.acquire_many('bench', %s, %s, %s, null, %s,"
        " p_request_id => %s, p_redelivery => 'fan_out')",
        ([topic] * len(partitions), list(partitions), member, BATCH * len(partitions), str(uuid4())),
    )
    return {partition: (token, offsets) for partition, token, offsets in cursor.fetchall()}


def members(database: Database, group: str, count: int, partitions: int, configs: ServiceConfigs) -> None:
    """Create a group of members that do not leave, with all share-partitions of one topic assigned."""
    topic = f"topic-of-{group}"
    names = {
        "group": group,
        "topic": topic,
        "id": f"id-{topic}",
        "partitions": partitions,
        "last": partitions - 1,
        "members": count,
        "host": LOOPBACK,
    }
    with database.transaction() as connection:
        for statement in MEMBERS:
            connection.execute(sa.text(statement), names)
    refresh_group(database, group, configs)
    with database.transaction() as connection:
        connection.execute(
            sa.text("update sharequeue.members set member_epoch = 2 where group_id = :group"), names
        )


class StandIn:
    """A broker that has every requested topic, always with the same logs."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions

    def cluster_id(self) -> str:
        """Return the id of the cluster."""
        return "bench"

    def check_settings(self) -> None:
        """Accept all settings."""

    def close(self) -> None:
        """Do nothing."""

    def ask(self, names: list[str]) -> TopicsFound:
        """Return all requested topics."""
        return TopicsFound({name: TopicInfo(f"id-{name}", self.partitions) for name in names}, {})

    def offsets(self, name: str, patience: float | None = None) -> dict[int, LogOffsets]:
        """Return the logs of a topic."""
        return dict.fromkeys(range(self.partitions), LogOffsets(0, 1000, 1000))

    def offsets_of(
        self, partitions: Mapping[str, Iterable[int]], refused: Any = None
    ) -> dict[tuple[str, int], LogOffsets]:
        """Return new values each time, as from a broker."""
        return {
            (name, partition): LogOffsets(0, 1000, 1000)
            for name, some in sorted(partitions.items())
            for partition in some
        }


def postmaster_of(url: str) -> psutil.Process:
    """Return the server's first process."""
    with connect(url) as connection:
        return psutil.Process(psutil.Process(connection.info.backend_pid).ppid())


def processor_of(*processes: psutil.Process) -> float:
    """Return the CPU seconds of these processes and of their children, including ended ones."""
    total = 0.0
    for process in processes:
        total += sum(process.cpu_times()[:4])
        for child in process.children():
            try:
                total += sum(child.cpu_times()[:2])
            except psutil.NoSuchProcess:
                continue
    return total


def wait_until(done: Callable[[], bool], limit: float = 60.0) -> None:
    """Wait until a condition holds; raise AssertionError after ``limit`` seconds."""
    until = time.monotonic() + limit
    while not done():
        assert time.monotonic() < until, f"not done in {limit:g} s"
        time.sleep(0.05)
