"""Through PgBouncer in transaction mode: nothing of ours outlives a transaction on the server's side.

Always through a small pooler of our own (``tests/servers/transaction_pooler.py``), which is harsher than PgBouncer;
and through PgBouncer itself where there is one: on the PATH, or named by SHAREQUEUE_TEST_PGBOUNCER.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg2
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.database.schema_files import migrations
from sharequeue.domain.settings import DatabaseOptions, Settings
from sharequeue.domain.values import AcknowledgeType
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.kafka.topics import Topics
from sharequeue.local import ports
from sharequeue.local.doctor import FAILURE, OK, examine_servers
from sharequeue.local.stack import StackInfo
from sharequeue.service.coordinator import Coordinator
from sharequeue.state import State
from tests import single
from tests.operation_calls import call_every_operation, start
from tests.servers.ports import free_port
from tests.servers.transaction_pooler import TransactionPooler
from tests.waiting import one_round, wait_until

PGBOUNCER = os.environ.get("SHAREQUEUE_TEST_PGBOUNCER") or shutil.which("pgbouncer")
POOLERS = ["ours", *(["pgbouncer"] if PGBOUNCER else [])]


def _database(url: sa.URL, options: DatabaseOptions | None = None) -> Database:
    return Database(url.render_as_string(hide_password=False), options=options)


@pytest.fixture(params=POOLERS)
def pooled(request: pytest.FixtureRequest, private_database: Database, tmp_path: Path) -> Iterator[Database]:
    """Give the private database, reached through two server connections in transaction mode."""
    target = private_database.engine.url
    if request.param == "ours":
        pooler = TransactionPooler(target)
        url, close = pooler.url, pooler.close
    else:
        url, close = _pgbouncer(target, tmp_path)
    database = _database(url)
    try:
        yield database
    finally:
        database.close()
        close()


def _pgbouncer(target: sa.URL, folder: Path) -> tuple[sa.URL, Callable[[], None]]:
    port = free_port()
    for each in (folder, *folder.parents[:3]):
        each.chmod(0o755)
    (folder / "users").write_text(f'"{target.username}" "{target.password}"\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={target.host} port={target.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\npool_mode = transaction\ndefault_pool_size = 2\nmin_pool_size = 2\n"
        f"auth_type = plain\nauth_file = {folder / 'users'}\nunix_socket_dir =\nserver_round_robin = 1\n"
    )
    as_nobody = ["-u", "nobody"] if os.geteuid() == 0 else []
    running = subprocess.Popen(
        [str(PGBOUNCER), *as_nobody, str(folder / "pgbouncer.ini")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: not ports.is_free(port))

    def close() -> None:
        running.kill()
        running.wait()

    return target.set(host="127.0.0.1", port=port), close


@pytest.mark.slow
def test_every_operation_works_through_it(pooled: Database) -> None:
    """From the migration to the end of a group, each transaction on another server connection than the last."""
    with pooled.transaction() as connection:
        connection.exec_driver_sql("drop schema sharequeue, sharequeue_internal cascade")
    assert len(migrate(pooled)) == len(migrations())
    call_every_operation(pooled)
    serving = sa.text("select pg_backend_pid() as pid")
    assert len({pooled.rows(serving)[0]["pid"] for _ in range(8)}) == 2


def test_groups_and_coordinator_work_through_it(
    pooled: Database, stack: StackInfo, group: str, topic: str
) -> None:
    """Heartbeat, assignment and the coordinator's own step."""
    start(pooled, pooled, group, topic)
    joined = heartbeat(pooled, HeartbeatRequest(group, "member", 0, subscribed_topic_names=(topic,)))
    assert joined.member_epoch == 2
    one_round(Coordinator(pooled, Topics(Settings.load(stack.home))))
    assert State(pooled).figures.verify() == []


def test_more_workers_than_connections(pooled: Database, group: str, topic: str) -> None:
    """Eight workers over two server connections: every record once, none twice."""
    at = start(pooled, pooled, group, topic)

    def work(number: int) -> list[int]:
        state = State(pooled)
        done: list[int] = []
        while lease := single.acquire(state, at, f"member-{number}", None, 25):
            single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
            done += [offset for first, past in lease.offsets.ranges for offset in range(first, past)]
        return done

    with ThreadPoolExecutor(8) as pool:
        done = sorted(offset for each in pool.map(work, range(8)) for offset in each)
    assert done == list(range(1000))


def test_time_zone_and_timeouts_belong_to_the_transaction(pooled: Database) -> None:
    """They hold inside each transaction, whichever connection it gets, and have left nothing behind afterwards."""
    bounded = _database(pooled.engine.url, DatabaseOptions(statement_timeout_ms=3000, lock_timeout_ms=2500))
    told = sa.text("select current_setting('TimeZone') as zone, current_setting('lock_timeout') as wait")
    try:
        for _ in range(4):
            assert dict(bounded.rows(told)[0]) == {"zone": "UTC", "wait": "2500ms"}
            with bounded.transaction() as connection:
                connection.execute(sa.text("select 1"))
                assert dict(connection.execute(told).mappings().one()) == {"zone": "UTC", "wait": "2500ms"}
        with pytest.raises(OperationalError, match="statement timeout"):
            bounded.rows(sa.text("select pg_sleep(60)"))
    finally:
        bounded.close()
    url = pooled.engine.url
    raw = psycopg2.connect(
        host=url.host, port=url.port, user=url.username, password=url.password, dbname=url.database
    )
    raw.autocommit = True
    with raw.cursor() as cursor:
        for name in ("statement_timeout", "lock_timeout") * 4:
            cursor.execute(f"show {name}")
            assert cursor.fetchone() == ("0",)
    raw.close()


def test_a_startup_option_is_refused(pooled: Database) -> None:
    """What the pooler is there to show: a client that sends `options` does not get in, ours does."""
    url = pooled.engine.url
    with pytest.raises(psycopg2.OperationalError, match="unsupported startup parameter"):
        psycopg2.connect(
            host=url.host,
            port=url.port,
            user=url.username,
            password=url.password,
            dbname=url.database,
            options="-c statement_timeout=1000",
        )
    assert State(pooled).figures.verify() == []


def test_doctor_refuses_a_pooler_in_statement_mode(private_database: Database, stack: StackInfo) -> None:
    """It ends every transaction; the driver only says that the connection was closed."""
    pooler = TransactionPooler(private_database.engine.url, statements=True)
    url = pooler.url.render_as_string(hide_password=False)
    try:
        found = {
            each.subject: each
            for each in examine_servers(Settings.load(stack.home).replace(database_url=url))
        }
    finally:
        pooler.close()
    assert found["database"].level == FAILURE
    assert "a pooler in statement mode is between: set pool_mode = transaction" in found["database"].text


def test_doctor_refuses_a_pool_that_forces_one_user_on_all(
    private_database: Database, stack: StackInfo
) -> None:
    """The address says who is calling, Postgres says who is logged in: where they differ, ACLs are blind."""
    pooler = TransactionPooler(private_database.engine.url)
    settings = Settings.load(stack.home)

    def login(url: sa.URL) -> tuple[str, str]:
        changed = settings.replace(database_url=url.render_as_string(hide_password=False))
        found = {each.subject: each for each in examine_servers(changed)}
        return found["login"].level, found["login"].text

    try:
        assert login(pooler.url)[0] == OK
        # Supabase's pooler and Azure have the name of the project or server behind the user's.
        for name in ("sharequeue.project", "sharequeue@server"):
            assert login(pooler.url.set(username=name))[0] == OK
        level, text = login(pooler.url.set(username="ann"))
        assert level == FAILURE
        assert "the address has the user ann, but Postgres sees sharequeue: the pool forces one user" in text
    finally:
        pooler.close()
