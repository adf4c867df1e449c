"""A Postgres of the distribution, the oldest there is: TLS for every connection, a password that changes while
everything runs, and hostile clients.

The stack's own Postgres is built without TLS. What runs here is `SHAREQUEUE_TEST_POSTGRES`, the folder of a server's
binaries, or else the oldest below /usr/lib/postgresql.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg2
import pytest
import sqlalchemy as sa

from sharequeue import ShareConsumer
from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.database.pool import Joined
from sharequeue.database.schema_files import migrations
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.topics import Topics
from sharequeue.local import postgres
from sharequeue.local.home import Home
from sharequeue.local.stack import StackInfo, up
from sharequeue.spark.sinks.postgres.sink import PostgresTable
from sharequeue.spark.sinks.postgres.tables import connection_of
from sharequeue.state import State
from tests import single
from tests.deep.deep_secured import degraded, serving
from tests.deep.main_path import invoke, walk
from tests.fixtures.pipelines import Holder, all_accepted, job_of
from tests.fixtures.stack import _end, _made, _new_home, allow_short_locks
from tests.fuzzer.run import Run
from tests.integration.consumer.share_group import Work, poll_some, wait_until
from tests.servers.certificates import Authority

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTACK_SECONDS = 60


def binaries() -> Path:
    """Where the server's programs are."""
    given = os.environ.get("SHAREQUEUE_TEST_POSTGRES")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    assert given or found, (
        "No Postgres with TLS here: apt install postgresql-15, or set SHAREQUEUE_TEST_POSTGRES"
    )
    return Path(given) if given else found[0].parent


@dataclass
class Encrypted:
    """The server, its authority, and a login whose password is in a file."""

    info: StackInfo
    authority: Authority
    folder: Path
    login: str = "rotating"

    @property
    def file(self) -> Path:
        """The password file, as libpq reads it."""
        return self.folder / "pgpass"

    def write(self, password: str) -> None:
        """Write the file as a secret's keeper does: a new one in place of the old."""
        new = self.file.with_suffix(".new")
        new.write_text(f"*:*:*:{self.login}:{password}\n")
        new.chmod(0o600)
        new.rename(self.file)

    def url(self, **query: str) -> str:
        """The address of the login's connections, without a password."""
        trust = {
            "sslmode": "verify-full",
            "sslrootcert": str(self.authority.certificate),
            "passfile": str(self.file),
        }
        asked = "&".join(f"{name}={value}" for name, value in {**trust, **query}.items())
        where = sa.make_url(self.info.database_url)
        return f"postgresql+psycopg2://{self.login}@{where.host}:{where.port}/{where.database}?{asked}"

    def does(self, statement: str) -> list[tuple[object, ...]]:
        """Have the server's owner do something."""
        engine = sa.create_engine(self.info.database_url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            done = connection.exec_driver_sql(statement)
            rows = [tuple(row) for row in done] if done.returns_rows else []
        engine.dispose()
        return rows


@pytest.fixture(scope="module")
def encrypted() -> Iterator[Encrypted]:
    """Give a stack whose Postgres takes TLS only, with a certificate of an authority that nobody knows."""
    # Not below pytest's own folder, which the server's user may not enter.
    folder = Path(tempfile.mkdtemp(prefix="sharequeue-tls-"))
    folder.chmod(0o755)
    authority = Authority(folder)
    server = authority.signed("server")
    path = _new_home()
    home = Home.at(path)
    home.create()
    if os.geteuid() == 0:
        os.chown(server.key, *postgres._unprivileged(home))
    try:
        with pytest.MonkeyPatch.context() as patch:
            tls = {"ssl": "on", "ssl_cert_file": str(server.certificate), "ssl_key_file": str(server.key)}
            patch.setattr(postgres, "_binaries", binaries)
            patch.setattr(postgres, "_OPTIONS", {**postgres._OPTIONS, **tls})
            info = up(path, lambda line: None, service=False)
        found = Encrypted(info, authority, folder)
        (home.postgres / "data" / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n")
        found.does("select pg_reload_conf()")
        with Database(info.database_url) as database:
            allow_short_locks(database)
        owner = sa.make_url(info.database_url).username
        found.does(f"create role {found.login} login password 'first' in role {owner}")
        found.does("create schema sink authorization " + found.login)
        found.write("first")
        yield found
    finally:
        _end(path)
        shutil.rmtree(folder)


@pytest.fixture
def reached(encrypted: Encrypted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """Give settings that reach it by TLS, with the password of the file, as the environment has them."""
    monkeypatch.setenv("SHAREQUEUE_HOME", str(encrypted.info.home))
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", encrypted.url())
    monkeypatch.setenv("SHAREQUEUE_OUTPUT", str(tmp_path / "output"))
    return Settings.load()


def test_everything_goes_through_tls(encrypted: Encrypted, reached: Settings, spark: SparkSession) -> None:
    """The main path, and a job whose executors copy into a table: the server lets nobody in otherwise."""
    with pytest.raises(psycopg2.OperationalError, match="no pg_hba"):
        psycopg2.connect(**connection_of(encrypted.url(sslmode="disable")))
    with Database.open(reached) as database:
        walk(reached, database, spark)
        copied(encrypted, reached, database, spark, 50)


def copied(
    encrypted: Encrypted, settings: Settings, database: Database, spark: SparkSession, records: int
) -> None:
    """Run a job whose sink is a table, and find its rows there."""
    from sharequeue.spark.run import run_rounds

    name = f"t{uuid4().hex[:8]}"
    work = Work(settings, database, f"group-{name}")
    work.configure(share_auto_offset_reset="earliest")
    with Topics(settings) as topics:
        info = topics.create(name, 1)
        work.produce(name, records)
        at = SharePartition(work.group, name, 0)
        State(database).initialize(at, info.topic_id, 0, 1)
        with database.transaction() as connection:
            connection.exec_driver_sql(
                f'create table sink.{name} (topic text, "partition" int, "offset" bigint)'
            )
        run_rounds(
            settings,
            job_of(work.group, name, all_accepted, destination=PostgresTable(f"sink.{name}")),
            membership=Holder([at]),
            state=State(database),
            topics=topics,
            spark=spark,
        )
    assert encrypted.does(f"select count(*) from sink.{name}") == [(records,)]  # noqa: S608


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"sslrootcert": "another"}, "certificate verify failed"),
        ({"passfile": "/nowhere"}, "no password supplied"),
    ],
    ids=["authority", "password"],
)
def test_the_doctor_says_what_is_wrong(
    encrypted: Encrypted,
    reached: Settings,
    monkeypatch: pytest.MonkeyPatch,
    query: dict[str, str],
    said: str,
    tmp_path: Path,
) -> None:
    """A wrong authority and a missing password, in the words of Postgres."""
    if query.get("sslrootcert"):
        query = {"sslrootcert": str(Authority(tmp_path, "another").certificate)}
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", encrypted.url(**query))
    result = invoke("doctor")
    assert said in result.output, result.output


def test_a_password_changes_while_all_goes_on(
    encrypted: Encrypted, reached: Settings, spark: SparkSession
) -> None:
    """The service, a consumer with its notifications, and a job: each new connection has the password of the file."""
    topic = f"topic-{uuid4().hex[:8]}"
    with Topics(reached) as topics:
        topics.create(topic, 1)
    with Database.open(reached) as database:
        work = Work(reached, database, f"group-{topic}")
        work.configure(share_auto_offset_reset="earliest")
        with serving() as url, ShareConsumer({"group.id": work.group}) as consumer:
            consumer.subscribe([topic])
            work.produce(topic, 1)
            assert len(poll_some(consumer)) == 1
            wait_until(lambda: consumer._listener.active, 20)
            encrypted.does(f"alter role {encrypted.login} password 'second'")
            theirs = f"usename = '{encrypted.login}' and pid <> pg_backend_pid()"
            encrypted.does(f"select pg_terminate_backend(pid) from pg_stat_activity where {theirs}")  # noqa: S608
            wait_until(lambda: degraded(url), 60)
            encrypted.write("second")
            work.produce(topic, 1)
            assert len(poll_some(consumer, 1, 60)) == 1
            consumer.commit_sync()
            wait_until(lambda: not degraded(url), 60)
            wait_until(lambda: consumer._listener.active, 60)
        copied(encrypted, reached, database, spark, 20)


def test_results_under_attack_are_true(encrypted: Encrypted, private_copy: Database, told: list[str]) -> None:
    """Hostile clients for a minute, all at once, on this version of Postgres."""
    [(version,)] = encrypted.does("show server_version")
    seed = random.SystemRandom().randrange(1, 10**6)
    run = Run(private_copy, seed)
    faults = run.at_once(time.monotonic() + ATTACK_SECONDS)
    told.append(f"PostgreSQL {version}: {run.told()}")
    assert not faults, f"{len(faults)} faults, seed {seed}\n{faults[0]}"


@pytest.fixture
def private_copy(encrypted: Encrypted) -> Iterator[Database]:
    """Give a migrated database of this test alone, on that server."""
    engine = sa.create_engine(encrypted.info.database_url, isolation_level="AUTOCOMMIT")
    with _made(engine, "") as opened:
        assert len(migrate(opened)) == len(migrations())
        allow_short_locks(opened)
        yield opened
    engine.dispose()


class _Plans(list[str]):
    """The notices of a connection, all of them: the driver keeps fifty."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def append(self, notice: str) -> None:
        self.seen.append(notice)


def test_no_statement_of_an_operation_is_compiled(private_copy: Database) -> None:
    """With `jit` on and every estimate above its bound, no statement inside an acquire, an acknowledgement or a sweep
    is compiled. The session's own statements would be."""
    at = SharePartition("g", "t", 0)
    alter_group_configs(private_copy, "g", {"share.auto.offset.reset": "earliest"})
    State(private_copy).initialize(at, "id", 0, 2)
    single.observe(State(private_copy), at, "id", 0, 1000, 1000)
    plans = _Plans()
    with private_copy.engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        driver.notices = plans
        connection.exec_driver_sql(
            "load 'auto_explain'; set auto_explain.log_min_duration = 0; set auto_explain.log_nested_statements = on;"
            " set auto_explain.log_analyze = on; set client_min_messages = log; set jit = on; set jit_above_cost = 0"
        )
        state = State(Joined(connection))
        for _ in range(3):
            lease = single.acquire(state, at, "m", None, 50)
            assert lease is not None
            offsets = list(lease.offsets.iter_offsets())
            outcomes = {
                AcknowledgeType.RELEASE: OffsetSet.from_offsets(offsets[::2]),
                AcknowledgeType.ACCEPT: OffsetSet.from_offsets(offsets[1:10:2]),
            }
            single.acknowledge(state, lease, outcomes)
            state.sweep()
    compiled = [plan for plan in plans.seen if "JIT:" in plan]
    assert any("in_flight_batches" in plan for plan in plans.seen)
    assert [plan for plan in compiled if "in_flight_batches" in plan] == []
    assert compiled, "the server would compile"
