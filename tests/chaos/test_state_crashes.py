"""Calls that are killed at every moment of their life: `verify` finds nothing afterwards, and the engine has done
exactly what its clients were told.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, Lease, SharePartition
from sharequeue.local import postgres, processes
from sharequeue.local.home import Home
from sharequeue.local.processes import Running
from sharequeue.state import State
from tests import single
from tests.servers.cutting_proxy import CuttingProxy
from tests.waiting import PATIENCE_S, wait_until

AT = SharePartition("g", "t", 0)
ACCEPT, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.REJECT
RECORDS = 100
T = TypeVar("T")
APPLICATION = "the one to be killed"


def begin(database: Database, records: int = RECORDS) -> State:
    """A share-partition with so many records."""
    state = State(database)
    with database.transaction() as connection:
        connection.execute(sa.text("insert into sharequeue.share_groups (group_id) values ('g')"))
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, records, records)
    return state


def url_of(database: Database) -> sa.URL:
    """Where a database is, password included."""
    return sa.make_url(database.engine.url.render_as_string(hide_password=False))


@contextmanager
def victim(database: Database) -> Iterator[sa.Engine]:
    """Connections that can be told from all others in pg_stat_activity."""
    engine = sa.create_engine(url_of(database), connect_args={"application_name": APPLICATION})
    try:
        yield engine
    finally:
        engine.dispose()


def victims(database: Database, waiting: str = "%") -> list[int]:
    """The backends of `victim` that wait for that kind of event."""
    rows = database.rows(
        sa.text(
            "select pid from pg_stat_activity where application_name = :name and state = 'active'"
            " and coalesce(wait_event_type, '') || ':' || coalesce(wait_event, '') like :waiting"
        ),
        name=APPLICATION,
        waiting=waiting,
    )
    return [row["pid"] for row in rows]


def kill(database: Database, pids: list[int]) -> None:
    """End backends as an operator would, and wait until they are gone."""
    for pid in pids:
        database.rows(sa.text("select pg_terminate_backend(:pid, 10000)"), pid=pid)


Call = list[tuple[sa.TextClause, dict[str, object]]]
BOTH = "acknowledge, then acquire"
"""In one transaction, as a fetch of Kafka's carries acknowledgements."""


def call_of(lease: Lease, kind: str, request_id: UUID) -> Call:
    """What a client sends in one transaction, in plain SQL."""
    given: dict[str, object] = {
        "group": "g",
        "topic": "t",
        "request": str(request_id),
        "token": str(lease.token),
    }
    acquire = sa.text(
        "select * from sharequeue.acquire(:group, :topic, 0, 1, 'm2', null, 10, null, cast(:request as uuid))"
    )
    acknowledge = sa.text(
        "select * from sharequeue.acknowledge(:group, :topic, 0, 1, 'm1', null, cast(:token as uuid),"
        " cast(:request as uuid), '{[0,5),[6,8)}', '{[8,9)}', '{[5,6)}', '{[9,10)}')"
    )
    statements = {"acquire": [acquire], "acknowledge": [acknowledge], BOTH: [acknowledge, acquire]}[kind]
    return [(statement, given) for statement in statements]


def perform(engine: sa.Engine, call: Call) -> list[tuple[object, ...]]:
    """The call in a transaction of its own."""
    with engine.begin() as connection:
        return [tuple(row) for statement in call for row in connection.execute(*statement)]


def state_of(database: Database) -> list[tuple[object, ...]]:
    """Everything that a call may change."""
    queries = (
        "select spso, speo, delivery_complete_count, accepted_first from sharequeue.share_partitions",
        "select first_offset, last_offset, part, state, delivery_count, lease_id, offsets::text"
        " from sharequeue.in_flight_batches order by 1, 3",
        "select lease_id, token::text, expires_at from sharequeue.leases order by 1",
        "select outcome, delivery_count, records from sharequeue.delivery_counts order by 1, 2",
        "select request_key::text, operation from sharequeue.requests order by 1",
    )
    return [tuple(row.values()) for query in queries for row in database.rows(sa.text(query))]


def finish(state: State) -> None:
    """What is left is leased and accepted; then everything has ended once."""
    (status,) = state.figures.describe("g")
    for held in state.figures.leases("g"):
        state.release_member("g", held.member_id)
    while lease := single.acquire(state, AT, "last", None, 1000, redelivery="kafka"):
        single.acknowledge(state, lease, {ACCEPT: lease.offsets})
    assert state.figures.verify() == []
    (status,) = state.figures.describe("g")
    assert (status.spso, status.lag) == (status.log_end, 0)
    assert sum(row.records for row in state.figures.delivery_counts("g")) == status.log_end


def killed_while_it_waits(database: Database, call: Call, hold: str, waiting: str) -> None:
    """Kill the backend of a call while it waits for what `hold` locks: nothing has changed, and the same request done
    again does it once."""
    before = state_of(database)
    with victim(database) as engine, ThreadPoolExecutor(1) as pool:
        with database.transaction() as holder:
            holder.execute(sa.text(hold))
            killed = pool.submit(perform, engine, call)
            wait_until(lambda: bool(victims(database, waiting)))
            kill(database, victims(database))
        with pytest.raises(OperationalError):
            killed.result()
        assert state_of(database) == before
        returned = perform(engine, call)
        assert perform(engine, call) == returned


@pytest.mark.rule("R-LT-4", "R-ST-6")
@pytest.mark.parametrize("kind", ["acquire", "acknowledge", BOTH])
def test_killed_while_it_waits_for_the_row_lock(private_database: Database, kind: str) -> None:
    """Nothing has changed, and the same request done again does it once."""
    state = begin(private_database)
    lease = single.acquire(state, AT, "m1", None, 10, redelivery="kafka")
    assert lease
    hold = "select from sharequeue.share_partitions for update"
    killed_while_it_waits(private_database, call_of(lease, kind, uuid4()), hold, "Lock:%")
    finish(state)


@pytest.mark.rule("R-ST-6", "R-ST-7", "R-AK-15")
@pytest.mark.parametrize("table", ["leases", "in_flight_batches", "share_partitions", "journal"])
@pytest.mark.parametrize("kind", ["acquire", "acknowledge", BOTH])
def test_killed_inside_the_call(private_database: Database, kind: str, table: str) -> None:
    """Between one table's change and the next's: nothing has changed, and the same request does it all."""
    state = begin(private_database)
    lease = single.acquire(state, AT, "m1", None, 10, redelivery="kafka")
    assert lease
    with private_database.transaction() as connection:
        connection.exec_driver_sql(
            "create function public.stop_here() returns trigger language plpgsql as $$ begin"
            " perform pg_advisory_xact_lock_shared(7); return null; end $$"
        )
        connection.exec_driver_sql(
            f"create trigger stop_here after insert or update or delete on sharequeue.{table}"
            " for each statement execute function public.stop_here()"
        )
    hold = "select pg_advisory_xact_lock(7)"
    killed_while_it_waits(private_database, call_of(lease, kind, uuid4()), hold, "Lock:advisory")
    finish(state)


@pytest.mark.rule("R-AK-15", "R-EP-12")
@pytest.mark.parametrize("marker", ["sharequeue.", "COMMIT"])
@pytest.mark.parametrize("after", [0, 40, *(pytest.param(each, marks=pytest.mark.deep) for each in (1, 200))])
@pytest.mark.parametrize("kind", ["acquire", "acknowledge", BOTH])
def test_cut_in_the_middle_of_a_reply(private_database: Database, kind: str, marker: str, after: int) -> None:
    """Of the reply to the call, or to its commit, so many bytes arrive. Done before the commit, it is undone; after
    it, the same request gets the answer that was lost. Either way it happens once."""
    state = begin(private_database)
    lease = single.acquire(state, AT, "m1", None, 10, redelivery="kafka")
    assert lease
    call = call_of(lease, kind, uuid4())
    before = state_of(private_database)
    url = url_of(private_database)
    with CuttingProxy(str(url.host), int(url.port or 0)) as proxy:
        engine = sa.create_engine(url.set(host="127.0.0.1", port=proxy.port), poolclass=sa.NullPool)
        proxy.arm(marker, after)
        with contextlib.suppress(OperationalError):  # long enough, and all of the reply has come
            perform(engine, call)
        assert not proxy.armed
        wait_until(lambda: not in_a_transaction(private_database))
        happened = state_of(private_database) != before
        assert happened == (marker == "COMMIT")
        returned = perform(engine, call)
        after_it = state_of(private_database)
        assert perform(engine, call) == returned
        assert state_of(private_database) == after_it != before
    finish(state)


def in_a_transaction(database: Database) -> bool:
    """Whether a backend of that database, other than the one that asks, still works on something."""
    rows = database.rows(
        sa.text(
            "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            " and state <> 'idle'"
        )
    )
    return bool(rows)


@pytest.mark.rule("R-EP-12")
def test_killed_after_its_commit_and_before_the_reply(private_database: Database) -> None:
    """The reply to a call that has committed is lost or torn: the retry that `Database.call` makes by itself
    answers as the first call did, and the client never learns that anything was amiss."""
    begin(private_database)
    url = url_of(private_database)
    with CuttingProxy(str(url.host), int(url.port or 0)) as proxy:
        through = Database(
            url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False), pool_size=1
        )
        state, told = State(through), Counter[str]()
        expected = 0
        for turn in range(8):
            proxy.arm("sharequeue.acquire_many(", turn % 3)
            lease = single.acquire(state, AT, "m1", None, 5, redelivery="kafka")
            assert lease
            assert lease.offsets == OffsetSet.of((expected, expected + 5))
            assert not proxy.armed
            proxy.arm("sharequeue.acknowledge_many(", turn % 3)
            returned = single.acknowledge(state, lease, {ACCEPT: lease.offsets})
            expected += 5
            assert (returned.accepted, returned.spso) == (5, expected)
            told["accepted"] += returned.accepted
        assert proxy.cuts == 16
        counts = {row.outcome: row.records for row in state.figures.delivery_counts("g")}
        assert counts == dict(told)
        assert state.figures.leases("g") == []
        through.close()
    finish(State(private_database))


class Client:
    """A worker that keeps its own books and never takes a lost connection for an answer."""

    def __init__(self, url: Callable[[], str], number: int, deadline: float) -> None:
        self.url, self.member, self.deadline = url, f"c{number}", deadline
        self.accepted: list[int] = []
        self.rejected: list[int] = []
        self.lost = 0
        self.database: Database | None = None

    def run(self) -> None:
        """Lease, accept most, reject some, until the log is done."""
        while True:
            lease = self.ask(partial(self.acquire, request_id=uuid4()))
            if lease is not None:
                self.acknowledge(lease)
            elif self.ask(lambda state: state.figures.describe("g")[0].lag):
                self.ask(lambda state: state.sweep())
            else:
                break
        if self.database:
            self.database.close()

    def acquire(self, state: State, request_id: UUID) -> Lease | None:
        """The same lease, however often it is asked for under one id."""
        return single.acquire(state, AT, self.member, None, 40, redelivery="kafka", request_id=request_id)

    def acknowledge(self, lease: Lease) -> None:
        """Every seventeenth offset is rejected; what was confirmed goes into the books."""
        offsets = list(lease.offsets.iter_offsets())
        good = [offset for offset in offsets if offset % 17]
        bad = [offset for offset in offsets if offset % 17 == 0]
        sets = {kind: OffsetSet.from_offsets(chosen) for kind, chosen in ((ACCEPT, good), (REJECT, bad))}
        request = uuid4()
        returned = self.ask(lambda state: single.acknowledge(state, lease, sets, request_id=request))
        assert (returned.accepted, returned.rejected) == (len(good), len(bad))
        self.accepted += good
        self.rejected += bad

    def ask(self, call: Callable[[State], T]) -> T:
        """The same call until it is answered."""
        while True:
            try:
                if self.database is None:
                    self.database = Database(self.url(), pool_size=1)
                return call(State(self.database))
            except (OperationalError, DBAPIError):
                assert time.monotonic() < self.deadline, "the server never came back"
                self.lost += 1
                if self.database is not None:
                    self.database.close()
                self.database = None
                time.sleep(0.02)


def more_than(clients: list[Client], records: int) -> bool:
    """Whether they have got so far together."""
    return sum(len(client.accepted) for client in clients) > records


def gone(server: Running) -> bool:
    """Whether a process has ended."""
    return not server.alive


@pytest.mark.rule("R-IN-3", "R-EP-4", "R-LS-5")
def test_postgres_killed_under_load(stack_home: Path) -> None:
    """SIGKILL, three times, with four clients at work: every answer that any of them was given holds, each offset
    ended exactly once, and by the books of exactly one client."""
    home, records, kills = Home.at(stack_home), 12000, 3
    home.create()

    def ensure() -> str:
        with home.lock(lambda line: None):
            port = postgres.ensure(home, lambda line: None)
        return postgres.url(home, "sharequeue", port)

    urls = [ensure()]
    database = Database(urls[-1])
    migrate(database)
    begin(database, records)
    database.close()
    clients = [Client(lambda: urls[-1], number, time.monotonic() + PATIENCE_S) for number in range(4)]
    done: list[Future[None]] = []
    with ThreadPoolExecutor(len(clients)) as pool:
        done = [pool.submit(client.run) for client in clients]
        for turn in range(kills):
            enough = records * turn // (kills + 1)
            wait_until(partial(more_than, clients, enough))
            found = processes.find(home, postgres.NAME)
            assert found is not None
            os.kill(found.pid, signal.SIGKILL)
            wait_until(partial(gone, found))
            urls.append(ensure())
        for each in done:
            each.result()
    assert sum(client.lost for client in clients) >= kills
    with Database(urls[-1]) as after:
        state = State(after)
        assert state.figures.verify() == []
        (status,) = state.figures.describe("g")
        assert (status.spso, status.lag, status.leases) == (records, 0, 0)
        told = Counter(offset for client in clients for offset in (*client.accepted, *client.rejected))
        assert told == Counter(range(records))
        kept: Counter[str] = Counter()
        for row in state.figures.delivery_counts("g"):
            kept[row.outcome] += row.records
        assert kept == {
            "accepted": sum(len(client.accepted) for client in clients),
            "rejected": sum(len(client.rejected) for client in clients),
        }
