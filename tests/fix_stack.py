"""The servers tests run against: our own Postgres and broker, on free ports, in a folder of their own.

Started by the first test that asks, stopped after the last one, whatever happened in between. What a killed
run left behind is cleaned up by the next. Tests share the servers and the database, and keep apart by names
of their own (`topic`, `group`); one that needs an empty or a private database asks for it.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.configs.names import environment_name
from sharequeue.groups.configs.published import publish_service_configs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.local import optional_jars, ports, postgres, processes
from sharequeue.local.home import Home, read_json, write_json
from sharequeue.local.stack import StackInfo, down, up
from sharequeue.settings import Settings
from sharequeue.state import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).parents[1]
PREFIX = "sharequeue-test-"

MakeTopic = Callable[..., str]

LOCK_BOUNDS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.max.record.lock.duration.ms": "3600000",
}
"""Service configs of every database of the tests: locks that lapse at once, and locks that last, as an operator who
wants them would allow them. Kafka's own bounds are 15 and 60 s; a test that wants those takes the configs back."""


SHARE_BOUNDS = """\
group.share.min.record.lock.duration.ms=1000
group.share.max.record.lock.duration.ms=3600000
group.share.min.session.timeout.ms=2000
group.share.min.heartbeat.interval.ms=200
group.share.heartbeat.interval.ms=200
group.share.max.delivery.count.limit=25
group.share.assignment.interval.ms=0
log.cleaner.backoff.ms=200
"""
"""The same of the broker's own: locks lapse, members are assigned and logs are compacted while a test waits."""


def allow_short_locks(database: Database) -> None:
    """Be the operator who allows locks of one second to an hour."""
    publish_service_configs(database, ServiceConfigs.of(LOCK_BOUNDS))


def has_share_bounds(settings: Settings) -> bool:
    """Whether the broker was started with `SHARE_BOUNDS`, the last time too."""
    resource = ConfigResource(ResourceType.BROKER, "1")
    admin = AdminClient(client_config(settings))
    entries = admin.describe_configs([resource])[resource].result(30)
    wanted = dict(line.split("=") for line in SHARE_BOUNDS.splitlines())
    return {name: entries[name].value for name in wanted} == wanted


def jars_folder() -> Path:
    """Give the jars tests share with the checkout: resolved once, by whoever comes first."""
    return Path(os.environ.get("SHAREQUEUE_JARS") or REPOSITORY / ".sharequeue" / "jars").absolute()


def say(line: str) -> None:
    """Show progress of the stack even while pytest captures output: the first start may take a minute."""
    print(line, file=sys.__stderr__, flush=True)


@pytest.fixture
def stack_home() -> Iterator[Path]:
    """Give an empty home for a test that starts a stack of its own; stopped and removed at the end."""
    home = _new_home()
    try:
        yield home
    finally:
        _end(home)


@pytest.fixture(scope="module")
def module_home() -> Iterator[Path]:
    """Give one home to tests of a module that each begin with `up`, whatever the one before left of its stack: a
    stack's first start is the longest."""
    home = _new_home()
    try:
        yield home
    finally:
        _end(home)


@pytest.fixture(scope="session")
def stack() -> Iterator[StackInfo]:
    """Give the running stack: Postgres and Kafka; ask for `service` to have the coordinator service too."""
    _end_leftovers()
    home = _new_home()
    try:
        # In the home, for every later start: some tests kill the broker and have it started again.
        Home.at(home).broker_settings.write_text(SHARE_BOUNDS)
        with pytest.MonkeyPatch.context() as patch:
            if other := os.environ.get("SHAREQUEUE_TEST_POSTGRES"):
                patch.setattr(postgres, "_binaries", lambda: Path(other))
            info = up(home, _quiet, service=False)
        _without_flushes(info)
        yield info
    finally:
        _end(home)


def _without_flushes(info: StackInfo) -> None:
    """Have Postgres wait for no disk: tests kill its processes, never the machine."""
    engine = sa.create_engine(info.database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("alter system set fsync = off")
        connection.exec_driver_sql("select pg_reload_conf()")
    engine.dispose()


@pytest.fixture(scope="session")
def service(stack: StackInfo) -> str:
    """Give the URL of the coordinator service, running as a process of the stack."""
    info = start_service(stack.home)
    assert info.service_url is not None
    return info.service_url


def start_service(home: Path) -> StackInfo:
    """Start the shared stack's service, and what else of the stack does not run.

    It drains no dead letters: tests that stop a drain somewhere want to find what it left.
    """
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SHAREQUEUE_SERVICE_DRAIN_DEAD_LETTERS", "false")
        return up(home, _quiet)


@pytest.fixture
def settings(stack: StackInfo) -> Settings:
    """Give the settings that lead to the stack."""
    return Settings.load(stack.home)


@pytest.fixture(scope="session")
def database(stack: StackInfo) -> Iterator[Database]:
    """Give the stack's database, migrated, shared by the session."""
    opened = Database(stack.database_url)
    allow_short_locks(opened)
    yield opened
    opened.close()


@pytest.fixture
def empty_database(database: Database) -> Database:
    """Give the stack's database with no rows in it but the schema's own."""
    with database.transaction() as connection:
        rows = connection.execute(
            sa.text(
                "select quote_ident(schemaname) || '.' || quote_ident(tablename) from pg_tables "
                # The audit log cannot be emptied, by design; which state this is, is of the schema's own.
                "where schemaname = 'sharequeue'"
                " and tablename not in ('schema_migrations', 'audit_log', 'state_identity')"
            )
        )
        tables = ", ".join(name for (name,) in rows)
        if tables:
            connection.exec_driver_sql(f"truncate {tables} restart identity cascade")
    allow_short_locks(database)
    return database


@pytest.fixture(scope="session")
def migrated(stack: StackInfo) -> Iterator[str]:
    """Give the name of a migrated database that is copied: a copy takes a tenth of the time of the migrations."""
    engine = sa.create_engine(stack.database_url, isolation_level="AUTOCOMMIT")
    with _made(engine, "") as opened:
        migrate(opened)
        allow_short_locks(opened)
        opened.close()
        yield str(opened.engine.url.database)
    engine.dispose()


@pytest.fixture
def private_database(stack: StackInfo, migrated: str) -> Iterator[Database]:
    """Give a database of this test alone, migrated."""
    engine = sa.create_engine(stack.database_url, isolation_level="AUTOCOMMIT")
    with _made(engine, f"template {migrated}") as opened:
        # A state of its own, not the copied one's.
        with opened.transaction() as connection:
            connection.exec_driver_sql("update sharequeue.state_identity set state_id = default")
        yield opened
    engine.dispose()


@contextmanager
def _made(engine: sa.Engine, options: str) -> Iterator[Database]:
    """A new database on this server, dropped afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with engine.connect() as connection:
        connection.exec_driver_sql(f"create database {name} {options}")
    opened = Database(engine.url.set(database=name).render_as_string(hide_password=False))
    try:
        yield opened
    finally:
        opened.close()
        with engine.connect() as connection:
            connection.exec_driver_sql(f"drop database {name} with (force)")


@pytest.fixture
def state(database: Database) -> State:
    """Give the state of the shared database."""
    return State(database)


@pytest.fixture
def topics(settings: Settings) -> Topics:
    """Give what the broker says of topics."""
    return Topics(settings)


@pytest.fixture
def group() -> str:
    """Give a group id no other test uses."""
    return f"group-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def topic() -> str:
    """Give a topic name no other test uses; the topic is not made."""
    return f"topic-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def make_topic(settings: Settings) -> Iterator[MakeTopic]:
    """Give a function that makes a topic, `make_topic(partitions=1, name=None, **configs)`, and gives its
    name.

    Configs are written with underscores. The topics are deleted afterwards.
    """
    admin = AdminClient(client_config(settings))
    made: list[str] = []

    def make(partitions: int = 1, name: str | None = None, **configs: str) -> str:
        wanted = name or f"topic-{uuid.uuid4().hex[:10]}"
        config = {key.replace("_", "."): value for key, value in configs.items()}
        new = NewTopic(wanted, num_partitions=partitions, replication_factor=1, config=config)
        admin.create_topics([new])[wanted].result(30)
        made.append(wanted)
        return wanted

    yield make
    if made:
        for deleted in admin.delete_topics(made).values():
            deleted.exception(30)  # a test may have deleted its topic itself


@pytest.fixture(scope="session")
def spark(stack: StackInfo, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Give the one Spark session of this process, local, with Kafka's connector; in a deep run also as for an output
    on S3, for tables of Delta and Iceberg, and for values in Avro; their jars are fetched once.
    """
    from sharequeue.spark.session import spark_session

    settings = Settings.load(stack.home)
    if request.config.getoption("--deep"):
        settings = settings.replace(spark_jars=("s3a", "delta", "iceberg", "avro"))
        optional_jars.ensure(settings, settings.spark_jars, _quiet)
    session = spark_session(settings, "tests")
    yield session
    session.stop()


def _quiet(line: str) -> None:
    if line.startswith("jars:"):
        say(line)


def _new_home() -> Path:
    os.environ["SHAREQUEUE_JARS"] = str(jars_folder())
    # A service publishes its own configs when it starts.
    os.environ.update({environment_name(name): value for name, value in LOCK_BOUNDS.items()})
    home = Path(tempfile.mkdtemp(prefix=PREFIX))
    home.chmod(0o755)  # as root, Postgres runs as `nobody` and must get in
    write_json(home / "owner.json", {"pid": os.getpid(), "identity": processes.identity(os.getpid())})
    # Ports that no other stack looks at: one that was down for a moment would find its own taken by another worker's.
    free = (port for port in random.sample(range(10_000, 20_000), 500) if ports.is_free(port))
    write_json(Home.at(home).ports_file, dict(zip(ports.PREFERRED, free, strict=False)))
    return home


def _end(home: Path) -> None:
    try:
        down(home, lambda line: None)
        left = [name for name in ("postgres", "kafka", "service") if processes.find(Home.at(home), name)]
        assert not left, f"{left} still run after down"
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _end_leftovers() -> None:
    """End the stacks of test runs that were killed: their owner is gone."""
    for home in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = read_json(home / "owner.json")
        if isinstance(owner, dict) and processes.identity(owner["pid"]) != owner["identity"]:
            _end(home)
