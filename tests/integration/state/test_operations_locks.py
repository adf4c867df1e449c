"""Locks: who holds what since when, and what an outage or a restored backup does to them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.domain.errors import FencedStateEpoch, InvalidRequest
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgementBatch, AcknowledgeType, SharePartition
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.kafka.topics import Topics
from sharequeue.local import postgres, processes
from sharequeue.local.home import Home
from sharequeue.service.coordinator import Coordinator
from sharequeue.state import State
from tests import single
from tests.fixtures.stack import LOCK_BOUNDS
from tests.integration.state.state_calls import audited, take
from tests.waiting import PATIENCE_S, pass_time, wait_until

ACCEPT, RENEW = AcknowledgeType.ACCEPT, AcknowledgeType.RENEW


@pytest.fixture
def at_configs() -> Mapping[str, str | int]:
    """100 of the records may be in flight."""
    return {"share.partition.max.record.locks": 100}


# Who holds what ----------------------------------------------------------------------------------------------------


def test_who_holds_what_since_when(state: State, at: SharePartition) -> None:
    """A lease shows its holder, offsets and the time it was acquired; a renewal moves the expiry alone."""
    taken = state.now()
    lease = take(state, at)
    row = state.figures.leases("g")[0]
    assert (row.member_id, row.offsets, row.records, row.highest_delivery_count) == (
        "m",
        lease.offsets,
        10,
        1,
    )
    assert row.acquired_at == taken
    pass_time(state.database, 20)
    expires_at = single.renew(state, lease)
    renewed = state.figures.leases("g")[0]
    assert (renewed.acquired_at, renewed.expires_at) == (row.acquired_at, expires_at)
    assert renewed.seconds_left == 30  # it would have ten left
    state.fetches.acknowledge_batches(at, "m", [AcknowledgementBatch.of(3, 4, RENEW)])
    assert {each.acquired_at for each in state.figures.leases("g")} == {row.acquired_at}
    assert sorted(each.records for each in state.figures.leases("g")) == [2, 8]
    assert state.figures.describe("g")[0].oldest_since == row.acquired_at


def test_the_next_lease_has_a_time_of_its_own(state: State, at: SharePartition) -> None:
    """A lease that follows another is acquired when it is taken, not when the first was."""
    lease = take(state, at, 10, "kafka")
    first = state.figures.leases("g")[0].acquired_at
    pass_time(state.database, 10)
    single.acknowledge(state, lease, {ACCEPT: lease.offsets})
    take(state, at, 10, "kafka")
    assert state.figures.leases("g")[0].acquired_at - first == timedelta(seconds=10)


# Outages -----------------------------------------------------------------------------------------------------------


def restart_seen(state: State) -> None:
    """As after a crash of Postgres: the last beat was seen by another server."""
    state.database.rows(
        sa.text(
            "update sharequeue.service_beat set server_started_at = server_started_at - interval '1 day' returning 1"
        )
    )


def expiry(state: State) -> datetime:
    return state.figures.leases("g")[0].expires_at


def test_locks_stand_still_while_the_database_is_away(state: State, at: SharePartition) -> None:
    """After a restart of Postgres the first to look finds no lock lapsed that was alive before; then they lapse."""
    assert state.administration.beat() is None
    pass_time(state.database, 1)
    lease = take(state, at)
    state.database.rows(
        sa.text("update sharequeue.service_beat set beat_at = sharequeue.clock() returning 1")
    )
    pass_time(state.database, 600)
    restart_seen(state)
    assert single.acquire(state, at, "other", None, 1000, redelivery="kafka") is not None
    assert {each.member_id for each in state.figures.leases("g")} == {"m", "other"}
    single.renew(state, lease)
    pass_time(state.database, 31)
    state.administration.beat()
    assert state.sweep().leases == 2
    assert state.figures.verify() == []


def test_an_outage_is_made_up_for_once(state: State, at: SharePartition) -> None:
    """What was extended for an outage lapses at its new time, also when another lock is looked at before."""
    state.administration.beat()
    take(state, at)
    before = expiry(state)
    state.database.rows(
        sa.text("update sharequeue.service_beat set beat_at = sharequeue.clock() returning 1")
    )
    pass_time(state.database, 100)
    restart_seen(state)
    for _ in range(3):
        assert state.sweep().leases == 0
    made_up = expiry(state) - before
    assert made_up == timedelta(seconds=100 + 5)  # and a beat's tolerance
    pass_time(state.database, 40)
    state.administration.beat()
    assert state.sweep().leases == 1


def test_a_silent_service_makes_up_for_its_silence(state: State, at: SharePartition) -> None:
    """A silence longer than the grace is an outage, a shorter one is not; what lapsed before it stays lapsed."""
    state.administration.beat()
    take(state, at)
    pass_time(state.database, 31)
    assert state.administration.beat(timedelta(seconds=60)) is None
    later = take(state, SharePartition("g", "t", 0), 10, "kafka")
    assert later.deliveries[0].delivery_count == 2
    state.administration.beat()
    pass_time(state.database, 3600)
    outage = state.administration.beat(timedelta(seconds=10))
    assert outage is not None
    assert outage == timedelta(hours=1)
    assert state.sweep().leases == 0
    assert single.renew(state, later) > state.now()


def test_a_standstill_that_a_member_sees_before_the_service(state: State, at: SharePartition) -> None:
    """Postgres is stopped for a minute and goes on: a renewal that waited comes before the service's round. No lock
    is ended by it, of this member or of another. That of a holder who is gone lapses after the time it had left."""
    state.administration.beat()
    renewed = take(state, at, 10, "fan_out")
    gone = single.acquire(state, at, "gone", None, 10)
    assert gone is not None
    pass_time(state.database, 60)
    assert single.renew(state, renewed) > state.now()
    held = {row.member_id: row.seconds_left for row in state.figures.leases("g")}
    assert held.keys() == {"m", "gone"}
    assert 15 < held["gone"] < 40
    pass_time(state.database, 20)
    single.renew(state, renewed)
    pass_time(state.database, 20)
    assert [row.member_id for row in state.figures.leases("g") if row.seconds_left > 0] == ["m"]
    assert state.sweep().leases == 1
    assert state.figures.verify() == []


def test_the_death_of_the_service_lengthens_a_lock_once(state: State, at: SharePartition) -> None:
    """It looks like a standstill. What is leased afterwards lapses by the clock."""
    state.administration.beat()
    pass_time(state.database, 60)
    assert single.acquire(state, at, "m", None, 10) is not None
    pass_time(state.database, 31)
    assert state.sweep().leases == 1


def test_a_service_that_starts_makes_up_before_it_sweeps(
    state: State, at: SharePartition, topics: Topics
) -> None:
    """The coordinator finds at its start that nobody was heard for an hour: its first sweep ends no lock."""
    state.administration.beat()
    lease = take(state, at)
    pass_time(state.database, 3600)
    stop = threading.Event()
    service = ServiceConfigs.of({**LOCK_BOUNDS, "group.share.delivery.count.limit": "4"})
    coordinator = Coordinator(state.database, topics, service, interval=0.02)
    thread = threading.Thread(target=coordinator.run, args=(stop,))
    thread.start()
    try:
        wait_until(lambda: state.figures.describe("g")[0].next_expiry != lease.expires_at)
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert coordinator.faults == {}
    assert single.renew(state, lease) > state.now()
    rows = state.database.rows(sa.text("select delivery_count_limit from sharequeue.group_settings"))
    assert [row["delivery_count_limit"] for row in rows] == [4]


def test_a_service_whose_database_stood_still_makes_up_before_it_sweeps(
    state: State, at: SharePartition, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres is stopped and goes on: nothing fails, the next question takes an hour. No lock is ended by it."""
    configs = ServiceConfigs.of(
        {"group.share.heartbeat.interval.ms": "200", "group.share.min.heartbeat.interval.ms": "100"}
    )
    coordinator = Coordinator(state.database, topics, configs, interval=0.02)
    lease = take(state, at)
    rounds, done, rows = [0], threading.Event(), Database.rows

    class Rounds(threading.Event):
        """Counts the rounds of one thread by its waits between them."""

        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread() is thread:
                rounds[0] += 1
                if rounds[0] >= 6:
                    done.set()
            return super().wait(timeout)

    def late(database: Database, query: sa.TextClause, **parameters: Any) -> list[sa.RowMapping]:
        if threading.current_thread() is thread and rounds[0] == 3:  # the first question of the fourth round
            rounds[0] += 1
            time.sleep(0.5)  # longer than two heartbeat intervals
            rows(database, sa.text("select sharequeue.set_clock_offset(interval '1 hour')"))
        return rows(database, query, **parameters)

    monkeypatch.setattr(Database, "rows", late)
    stop = Rounds()
    thread = threading.Thread(target=coordinator.run, args=(stop,))
    thread.start()
    try:
        assert done.wait(PATIENCE_S)
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert coordinator.faults == {}
    assert single.renew(state, lease) > state.now()


def test_without_a_service_the_clock_alone_decides(state: State, at: SharePartition) -> None:
    """No beat was ever written: a lock lapses at its expiry, whatever happened in between."""
    take(state, at)
    pass_time(state.database, 31)
    assert state.sweep().leases == 1


def test_all_locks_extended_by_hand(state: State, at: SharePartition) -> None:
    """One call makes every lock last longer, and what a share-partition knows of its earliest expiry with it."""
    take(state, at)
    assert state.administration.extend_locks(timedelta(hours=1)) == 1
    pass_time(state.database, 3600)
    assert state.sweep().leases == 0
    with pytest.raises(InvalidRequest):
        state.administration.extend_locks(timedelta(seconds=-1))
    assert state.figures.verify() == []


def test_a_restored_backup_fences_everybody(state: State, at: SharePartition) -> None:
    """After raise_state_epochs holders from before are fenced and their records come again."""
    lease = take(state, at)
    assert state.administration.raise_state_epochs() == 1
    with pytest.raises(FencedStateEpoch):
        single.acknowledge(state, lease, {ACCEPT: lease.offsets})
    assert (state.figures.describe("g")[0].available, state.figures.verify()) == (10, [])
    assert audited(state)[-1] == "raise_state_epochs"


def test_a_lock_survives_the_crash_of_everything(stack_home: Path) -> None:
    """SIGKILL of Postgres, a minute away: the holder renews the same lease and answers; nobody else got it."""
    home = Home.at(stack_home)
    home.create()

    def started() -> Database:
        with home.lock(lambda line: None):
            port = postgres.ensure(home, lambda line: None)
        return Database(postgres.url(home, "sharequeue", port))

    at = SharePartition("g", "t", 0)
    with started() as database:
        migrate(database)
        alter_group_configs(database, "g", {})
        state = State(database)
        state.initialize(at, "id", 0, 1)
        single.observe(state, at, "id", 0, 100, 100)
        state.administration.beat()
        lease = take(state, at)
        found = processes.find(home, postgres.NAME)
        assert found is not None
        os.kill(found.pid, signal.SIGKILL)
    while found.alive:
        time.sleep(0.01)
    with started() as database:
        state = State(database)
        pass_time(state.database, 60)
        other = single.acquire(state, at, "other", None, 5)
        assert other is not None
        assert other.offsets == OffsetSet.of((10, 15))
        assert state.sweep().leases == 0
        assert single.renew(state, lease) > state.now()
        assert single.acknowledge(state, lease, {ACCEPT: lease.offsets}).accepted == 10
        assert state.figures.verify() == []


def test_a_lock_survives_the_kill_of_one_backend(stack_home: Path) -> None:
    """SIGKILL of one connection's process makes Postgres recover, though it goes on as the same server: the sweep
    after it ends no lock, and once it has been made up for they lapse as ever."""
    home = Home.at(stack_home)
    home.create()
    with home.lock(lambda line: None):
        port = postgres.ensure(home, lambda line: None)
    at = SharePartition("g", "t", 0)
    started = sa.text("select pg_postmaster_start_time() as it")
    checkpointer = sa.text("select pid from pg_stat_activity where backend_type = 'checkpointer'")
    with Database(postgres.url(home, "sharequeue", port)) as database:
        migrate(database)
        alter_group_configs(database, "g", {})
        state = State(database)
        state.initialize(at, "id", 0, 1)
        single.observe(state, at, "id", 0, 100, 100)
        state.administration.beat()
        lease = take(state, at)
        before, checkpointed = database.rows(started), database.rows(checkpointer)
        pass_time(state.database, 60)
        with database.engine.connect() as victim:
            pid = victim.execute(sa.text("select pg_backend_pid()")).scalar_one()
            os.kill(pid, signal.SIGKILL)
            victim.invalidate()
        database.engine.dispose()

        def has_recovered() -> bool:
            """The server may take connections for a moment until it knows; then all its processes are new ones."""
            try:
                now = database.rows(checkpointer)
            except sa.exc.OperationalError:
                return False
            return now not in ([], checkpointed)

        wait_until(has_recovered)
        assert database.rows(started) == before
        assert state.sweep().leases == 0
        assert single.renew(state, lease) > state.now()
        outage = state.administration.beat()
        assert outage is None, "noted already, once"
        pass_time(state.database, 120)
        state.administration.beat()
        assert state.sweep().leases == 1
        assert state.figures.verify() == []
