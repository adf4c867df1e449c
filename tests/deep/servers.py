"""A Postgres with a standby that streams from it, and the service as a process on any code of ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg2
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidConfig
from sharequeue.groups.configs import alter_group_configs
from sharequeue.local import ports, postgres, processes
from sharequeue.local.home import Home
from sharequeue.local.stack import StackInfo
from tests.fixtures.stack import REPOSITORY
from tests.waiting import wait_until

HEARTBEAT = "/v1/share-group-heartbeat"


@dataclass
class Pair:
    """The primary of a stack, and its standby, made by pg_basebackup from it. Once the standby is promoted it is the
    primary, of which another standby can be made, at the address of the one that died."""

    info: StackInfo
    port: int
    """The standby's; of who will be the standby, while there is none."""
    standby: psutil.Process | None = None
    primary: psutil.Process | None = None
    """Who was promoted last; None: it is the stack's own."""
    primary_port: int = field(init=False)
    _prefix: list[str] = field(init=False)
    _made: int = 0

    def __post_init__(self) -> None:
        self._prefix = postgres._as_other_user(self._home, postgres._binaries())
        self.primary_port = sa.make_url(self.info.database_url).port or 0

    @property
    def _home(self) -> Home:
        return Home.at(self.info.home)

    def url(self) -> str:
        """The address of both, of which libpq takes the one that can be written."""
        own = sa.make_url(self.info.database_url)
        hosts = [f"127.0.0.1:{port}" for port in sorted((self.primary_port, self.port))]
        given = {"host": hosts, "target_session_attrs": "read-write", "connect_timeout": "2"}
        return own.set(host=None, port=None, query=given).render_as_string(hide_password=False)

    def sql(self, statement: str, *, standby: bool = False) -> Any:
        """The first value of a statement's first row, done by the one or the other."""
        connection = psycopg2.connect(self._of(self.port if standby else self.primary_port))
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                row = cursor.fetchone() if cursor.description else None
                return row[0] if row else None
        finally:
            connection.close()

    def _of(self, port: int, **changed: Any) -> str:
        url = sa.make_url(self.info.database_url).set(drivername="postgresql", port=port, **changed)
        return url.render_as_string(hide_password=False)

    def begin(self) -> None:
        """Copy the primary, and have the copy stream from it; nobody waits for it yet. A standby that a failed test
        has left is ended before."""
        self.sql("alter system set synchronous_standby_names = ''")
        self.sql("select pg_reload_conf()")
        if self.standby is not None:
            self.standby.kill()
            self.standby.wait(30)
        self._made += 1
        folder = self._home.postgres / f"standby-{self._made}"
        binaries = postgres._binaries()
        source = self._of(self.primary_port, database="postgres")
        copy = [str(binaries / "pg_basebackup"), "-D", str(folder), "-X", "stream", "-c", "fast", "-R"]
        made = postgres._run([*self._prefix, *copy, "-d", source])
        assert made.returncode == 0, made.stderr
        options = [part for name, value in postgres._OPTIONS.items() for part in ("-c", f"{name}={value}")]
        server = [str(binaries / "postgres"), "-D", str(folder), "-p", str(self.port), *options]
        with (self._home.logs / f"standby-{self._made}.log").open("wb") as log:
            started = subprocess.Popen(
                [*self._prefix, *server],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=postgres._environment(),
            )
        self.standby = psutil.Process(started.pid)
        wait_until(lambda: self.senders() != [], 60, "the standby does not stream")

    def wait_for_it(self, setting: str) -> None:
        """From now on a commit waits for the standby (`on`: until it is on its disk), or for nobody (`local`)."""
        self.sql(f"alter system set synchronous_standby_names = '{'*' if setting != 'local' else ''}'")
        self.sql(f"alter system set synchronous_commit = '{setting}'")
        self.sql("select pg_reload_conf()")
        wanted = "sync" if setting != "local" else "async"
        wait_until(lambda: self.sql("select sync_state from pg_stat_replication") == wanted, 30)

    def catch_up(self) -> None:
        """Wait until the standby has what the primary has now."""
        now = self.sql("select pg_current_wal_lsn()")
        reached = f"select replay_lsn >= '{now}' from pg_stat_replication"  # noqa: S608 - an LSN of its own
        wait_until(lambda: bool(self.sql(reached)), 30)

    def senders(self) -> list[int]:
        """The processes of the primary that stream to a standby."""
        found = self.sql("select array_agg(pid) from pg_stat_replication where state = 'streaming'")
        return list(found or [])

    def cut(self) -> None:
        """From now on nothing reaches the standby: what sends to it stands still."""
        for pid in self.senders():
            os.kill(pid, signal.SIGSTOP)

    def kill_primary(self) -> None:
        """SIGKILL to every process of the primary."""
        server = self.primary
        if server is None:
            running = processes.find(self._home, postgres.NAME)
            assert running is not None
            server = psutil.Process(running.pid)
        everybody = [server, *server.children(recursive=True)]
        for each in everybody:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(everybody, timeout=20)

    def promote(self) -> None:
        """Make the standby the primary."""
        assert self.sql("select pg_promote(true, 60)", standby=True)
        self.primary, self.standby = self.standby, None
        self.primary_port, self.port = self.port, self.primary_port

    def end(self) -> None:
        """Stop the standby, and who was promoted."""
        for each in (self.standby, self.primary):
            if each is not None and each.is_running():
                each.send_signal(signal.SIGINT)
                each.wait(30)
        self.standby = self.primary = None


@dataclass
class Replica:
    """A coordinator service as a process, of the code in a folder."""

    environment: dict[str, str]
    log: Path
    code: Path = REPOSITORY
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Replica:
        """Start it, and wait until it lives."""
        self.port = self.port or next(
            port for port in range(20_000 + os.getpid() % 5_000, 32_000) if ports.is_free(port)
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sharequeue.cli", "serve", "--port", str(self.port)],
                cwd=self.code,
                env=of_code(self.code, self.environment),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(lambda: self.answers("/health") == 200, 60, lambda: self.log.read_text()[-3000:])
        return self

    def answers(self, path: str) -> int | None:
        """The status of a look, None when nobody answers."""
        try:
            return httpx.get(f"{self.url}{path}", trust_env=False, timeout=5).status_code
        except httpx.HTTPError:
            return None

    def heartbeat(self, **body: Any) -> dict[str, Any] | None:
        """What it answers to a member; None when it is not there, or cannot ask its database."""
        try:
            response = httpx.post(f"{self.url}{HEARTBEAT}", json=body, trust_env=False, timeout=10)
        except httpx.HTTPError:
            return None
        answer: dict[str, Any] = response.json()
        return None if answer["error_code"] == 15 else answer  # COORDINATOR_NOT_AVAILABLE

    def stop(self) -> None:
        """SIGTERM, as an update of Kubernetes sends it."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)
            self.process = None


def of_code(code: Path, given: dict[str, str]) -> dict[str, str]:
    """The environment of a process that runs the code in this folder, and sees none of our own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHAREQUEUE_")}
    return {**kept, "PYTHONPATH": str(code), **given}


def set_configs(database: Database, group: str, configs: Mapping[str, str]) -> None:
    """Set the configs of a group, once the service that has just been started has published its bounds for them."""
    refused: list[InvalidConfig] = []

    def is_set() -> bool:
        try:
            alter_group_configs(database, group, configs)
        except InvalidConfig as error:
            refused.append(error)
            return False
        return True

    wait_until(is_set, otherwise=lambda: refused[-1])


def sharequeue(code: Path, given: dict[str, str], *arguments: str) -> str:
    """Run a command of the code in this folder; return what it printed."""
    ran = subprocess.run(
        [sys.executable, "-m", "sharequeue.cli", *arguments],
        cwd=code,
        env=of_code(code, given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr
