"""Postgres fails over to a standby that streams from it: who waits for the standby loses nothing that was confirmed.

Who does not wait loses the last moments, and after `state raise-epochs` no holder from before can end anything. The
standby is real: pg_basebackup from the running primary, streaming replication, `pg_promote`. The primary's processes
get SIGKILL. Everybody has one URL with both hosts and `target_session_attrs=read-write`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy.exc import DBAPIError

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.domain.errors import FencedStateEpoch, InvalidRecordState, ShareError
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.configs.names import environment_name
from sharequeue.local import ports
from sharequeue.local.stack import up
from sharequeue.state import State
from tests import single
from tests.deep.servers import Pair, Replica, sharequeue
from tests.fixtures.stack import LOCK_BOUNDS, REPOSITORY, allow_short_locks
from tests.waiting import wait_until

AT = SharePartition("g", "t", 0)
RECORDS = 100_000
ACCEPT = AcknowledgeType.ACCEPT


@pytest.fixture
def pair(stack_home: Path) -> Iterator[Pair]:
    """A stack's Postgres with the schema, and a standby of it."""
    info = up(stack_home, lambda line: None, service=False)
    with Database(info.database_url) as database:
        migrate(database)
        allow_short_locks(database)
    found = Pair(info, next(port for port in range(21_000, 32_000) if ports.is_free(port)))
    try:
        found.begin()
        yield found
    finally:
        found.end()


class Worker:
    """Leases ten records and accepts them, again and again; notes what was confirmed, and goes on after an error of
    its connection, as a run or a consumer does."""

    def __init__(self, url: str) -> None:
        self.confirmed: Counter[int] = Counter()
        self.unknown: set[int] = set()
        """Offsets whose acknowledgement got no reply: done or not, as it happens."""
        self.errors = 0
        self.refused = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url,))
        self._thread.start()

    def _run(self, url: str) -> None:
        with Database(url) as database:
            state = State(database)
            while not self._stop.is_set():
                lease = None
                try:
                    lease = single.acquire(state, AT, "worker", None, 10, lock_duration_ms=1000)
                    if lease is None:
                        self._stop.wait(0.05)
                        continue
                    single.acknowledge(state, lease, {ACCEPT: lease.offsets})
                    self.confirmed.update(lease.offsets.iter_offsets())
                except DBAPIError:
                    self.errors += 1
                    self.unknown |= set(lease.offsets.iter_offsets()) if lease else set()
                    self._stop.wait(0.1)
                except ShareError as error:  # no share-partition yet, or its lock has lapsed meanwhile
                    self.refused = str(error)
                    self._stop.wait(0.05)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("setting", ["on", "remote_apply"])
def test_who_waits_for_the_standby_loses_nothing_confirmed(
    pair: Pair, setting: str, tmp_path: Path, told: list[str]
) -> None:
    """The primary dies under a service, its member and a worker; the standby is promoted. Service and worker go on by
    themselves, the member is still one, and no record whose acknowledgement was confirmed comes again."""
    pair.wait_for_it(setting)
    broker = {"bootstrap.servers": pair.info.bootstrap_servers}
    admin = AdminClient({**broker})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
    producer = Producer({**broker, "queue.buffering.max.messages": RECORDS + 1})
    for number in range(RECORDS):
        producer.produce("t", str(number).encode())
        producer.poll(0)
    assert producer.flush(60) == 0
    given = {
        "SHAREQUEUE_DATABASE_URL": pair.url(),
        "SHAREQUEUE_BOOTSTRAP_SERVERS": pair.info.bootstrap_servers,
        **{environment_name(name): value for name, value in LOCK_BOUNDS.items()},
    }
    with Database(pair.url()) as database:
        state = State(database)
        alter_group_configs(database, "g", {"share.auto.offset.reset": "earliest"})
        replica = Replica(given, tmp_path / "service.log").start()
        worker = Worker(pair.url())
        try:
            asks = {"group_id": "g", "member_id": "m"}
            joined = None

            def member_joined() -> bool:
                nonlocal joined
                joined = replica.heartbeat(**asks, member_epoch=0, subscribed_topic_names=["t"])
                return joined is not None

            wait_until(member_joined, 30)
            assert joined is not None
            wait_until(lambda: len(worker.confirmed) > 500, 60, lambda: worker.refused)
            pair.kill_primary()
            began = time.monotonic()
            wait_until(lambda: worker.errors > 0, 30, "nobody noticed")
            pair.promote()
            before = len(worker.confirmed)
            wait_until(lambda: len(worker.confirmed) > before + 500, 120, "the worker does not go on")
            answers: list[dict[str, object]] = []

            def heard() -> bool:
                answer = replica.heartbeat(**asks, member_epoch=joined["member_epoch"])
                answers.extend([answer] if answer else [])
                return answer is not None

            wait_until(heard, 60, "the service does not go on")
            took = time.monotonic() - began
            wait_until(lambda: replica.answers("/ready") == 200, 30)
        finally:
            worker.stop()
            replica.stop()
        assert answers[-1]["error_code"] == 0, "the member is still one"
        twice = {offset for offset, times in worker.confirmed.items() if times > 1}
        assert twice == set(), "a confirmed acknowledgement was lost"
        done = state.figures.describe("g")[0].spso
        assert set(range(done)) <= set(worker.confirmed) | worker.unknown
        assert state.figures.verify() == []
        told.append(
            f"failover, synchronous_commit={setting}: {len(worker.confirmed):,} records confirmed, none lost;"
            f" {worker.errors} errors met, service and worker at work {took:.1f} s after the kill"
        )


@pytest.mark.timeout(300)
def test_what_a_failover_without_waiting_loses(pair: Pair, told: list[str]) -> None:
    """The standby has not had the last moments. Leases and acknowledgements from then are gone: their records come
    again. Nobody who held one of them can end anything, though another holder may have the same lease id; after
    `state raise-epochs` nobody from before the failover can, and the invariants hold."""
    pair.wait_for_it("local")
    with Database(pair.url()) as database:
        state = State(database)
        alter_group_configs(database, "g", {"share.auto.offset.reset": "earliest"})
        state.initialize(AT, "id", 0, 1)
        single.observe(state, AT, "id", 0, 100, 100)
        kept = single.acquire(state, AT, "kept", None, 10)
        assert kept is not None
        pair.catch_up()
        pair.cut()
        single.acknowledge(state, kept, {ACCEPT: kept.offsets})  # confirmed, and lost
        lost = single.acquire(state, AT, "lost", None, 10)
        assert lost is not None
        assert [*lost.offsets.iter_offsets()] == [*range(10, 20)]
        pair.kill_primary()
    pair.promote()
    with Database(pair.url()) as database:
        state = State(database)
        assert state.figures.describe("g")[0].spso == 0, (
            "what was accepted is leased again, as the standby knew it"
        )
        with pytest.raises(InvalidRecordState):
            single.acknowledge(state, lost, {ACCEPT: lost.offsets})
        another = single.acquire(state, AT, "another", None, 10)
        assert another is not None
        assert another.offsets == lost.offsets
        with pytest.raises(InvalidRecordState):
            single.acknowledge(state, lost, {ACCEPT: lost.offsets})
        settings = {"SHAREQUEUE_DATABASE_URL": pair.url()}
        assert "would raise" in sharequeue(REPOSITORY, settings, "state", "raise-epochs")
        assert "raised" in sharequeue(REPOSITORY, settings, "state", "raise-epochs", "--execute", "--yes")
        for stale in (kept, lost, another):
            with pytest.raises(FencedStateEpoch):
                single.acknowledge(state, stale, {ACCEPT: stale.offsets})
        came: list[int] = []
        while (again := single.acquire(state, AT, "again", None, 100)) is not None:
            single.acknowledge(state, again, {ACCEPT: again.offsets})
            came += again.offsets.iter_offsets()
        assert came == [*range(100)], "all that was not known to be done, once"
        assert state.figures.verify() == []
        assert database.rows(sa.text("select * from sharequeue.verify_journal('g')")) == []
        told.append(
            f"failover without waiting: 10 confirmed records and lease {lost.lease_id} lost, the next one was"
            f" {another.lease_id}; stale holders refused; after raise-epochs all 100 came once more"
        )


@pytest.mark.timeout(300)
def test_a_commit_that_waits_for_no_disk_is_lost_by_a_crash(pair: Pair, told: list[str]) -> None:
    """With `synchronous_commit = off` a confirmed acknowledgement may be gone after a crash of the primary alone."""
    pair.end()
    pair.sql("alter system set wal_writer_delay = '10s'")
    pair.sql("alter system set synchronous_commit = 'off'")
    pair.sql("select pg_reload_conf()")
    url = pair.info.database_url
    with Database(url) as database:
        state = State(database)
        alter_group_configs(database, "g", {"share.auto.offset.reset": "earliest"})
        state.initialize(AT, "id", 0, 1)
        single.observe(state, AT, "id", 0, 100, 100)
        lease = single.acquire(state, AT, "m", None, 10)
        assert lease is not None
        # Long enough since the settings; the checkpoint writes what was done until now.
        pair.sql("checkpoint")
        single.acknowledge(state, lease, {ACCEPT: lease.offsets})
        assert state.figures.describe("g")[0].spso == 10
        pair.kill_primary()
    up(pair.info.home, lambda line: None, service=False)
    with Database(url) as database:
        state = State(database)
        assert state.figures.describe("g")[0].spso == 0
        single.acknowledge(state, lease, {ACCEPT: lease.offsets})
        assert state.figures.verify() == []
    told.append("crash with synchronous_commit=off: a confirmed acknowledgement of 10 records was gone")
