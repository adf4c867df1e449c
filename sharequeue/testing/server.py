"""An embedded Postgres in a temporary folder, with a migrated database that is copied for each test."""

from __future__ import annotations

import random
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.database.migrations import migrate
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.configs.published import publish_service_configs
from sharequeue.local import ports, postgres, processes
from sharequeue.local.home import Home, read_json, write_json
from sharequeue.testing.queue import Queue

_PREFIX = "sharequeue-postgres-"
_PORTS = range(10_000, 20_000)
"""Below the ports of `sharequeue up`, so that a stack that is down for a moment keeps its port."""


@dataclass(frozen=True, slots=True)
class TemporaryPostgres:
    """A running Postgres with the schema of sharequeue. `url` is the database that is copied: leave it empty."""

    url: str

    @contextmanager
    def queue(self, *, service_configs: Mapping[str, str] | None = None) -> Iterator[Queue]:
        """Yield a queue in a database of its own, dropped at the end; a copy takes some tenths of a second.

        `service_configs` are the service's configs, by Kafka's names, such as
        `group.share.min.record.lock.duration.ms`; locks last 15 to 60 s otherwise. Raises InvalidConfig.
        """
        configs = ServiceConfigs.of(dict(service_configs or {}))
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        name = f"test_{uuid.uuid4().hex}"  # without any input
        # Connected to `postgres`: the database that is copied must have no connections.
        with sa.create_engine(
            engine.url.set(database="postgres"), isolation_level="AUTOCOMMIT"
        ).connect() as admin:
            admin.exec_driver_sql(f"create database {name} template {engine.url.database}")
            database = Database(engine.url.set(database=name).render_as_string(hide_password=False))
            try:
                publish_service_configs(database, configs)
                yield Queue(database)
            finally:
                database.close()
                admin.exec_driver_sql(f"drop database {name} with (force)")


@contextmanager
def embedded_postgres() -> Iterator[TemporaryPostgres]:
    """Start a Postgres with the schema on a free port; stop and remove it at the end. Takes seconds: use it once per
    session.

    Needs `sharequeue[embedded]`. A server left behind by a killed test session is ended first. Raises StackError.
    """
    _end_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    folder.chmod(0o711)  # root's Postgres runs as another user, who must be able to enter
    home = Home.at(folder)
    try:
        write_json(folder / "owner.json", processes.record_of(psutil.Process()))
        free = next(port for port in random.sample(_PORTS, 500) if ports.is_free(port))
        write_json(home.ports_file, {postgres.NAME: free})
        with home.lock(_quiet):
            home.create()
            port = postgres.ensure(home, _quiet)
        url = postgres.url(home, "sharequeue", port)
        database = Database(url)
        try:
            migrate(database)
        finally:
            database.close()
        _without_flushes(url)
        yield TemporaryPostgres(url)
    finally:
        _end(home)


def _without_flushes(url: str) -> None:
    """Switch off waiting for the disk: the data need not survive a crash of the machine."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("alter system set fsync = off")
        connection.exec_driver_sql("select pg_reload_conf()")


def _end(home: Home) -> None:
    ports.stop(home, postgres.NAME)
    shutil.rmtree(home.path, ignore_errors=True)


def _end_leftovers() -> None:
    """End the servers of test sessions that were killed: their owner is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = read_json(folder / "owner.json")
        if owner is not None and processes.recorded(owner) is None:
            _end(Home.at(folder))


def _quiet(line: str) -> None:
    """Print nothing: errors of the start are raised."""
