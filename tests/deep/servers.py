"""A Postgres with a standby that streams from it, and the service as a process on any code of ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg2
import sqlalchemy as sa

from sharequeue.local import ports, postgres, processes
from sharequeue.local.home import Home
from sharequeue.local.stack import StackInfo
from tests.fix_stack import REPOSITORY
from tests.waiting import wait_until

HEARTBEAT = "/v1/share-group-heartbeat"


@dataclass
class Pair:
    """The primary of a stack, and its standby, made by pg_basebackup from it."""

    info: StackInfo
    port: int
    standby: psutil.Process | None = None
    _runner: postgres._Runner = field(init=False)

    def __post_init__(self) -> None:
        self._runner = postgres._Runner.choose(self._home, postgres._binaries())

    @property
    def _home(self) -> Home:
        return Home.at(self.info.home)

    @property
    def folder(self) -> Path:
        """The standby's data."""
        return self._home.postgres / "standby"

    def url(self, *, primary: bool = True, standby: bool = True) -> str:
        """The address of both, of which libpq takes the one that can be written; or of one of them."""
        first = sa.make_url(self.info.database_url)
        hosts = [f"127.0.0.1:{first.port}"] * primary + [f"127.0.0.1:{self.port}"] * standby
        hosts_given = (
            {"host": hosts, "target_session_attrs": "read-write"} if len(hosts) > 1 else {"host": hosts[0]}
        )
        changed = first.set(host=None, port=None, query={**hosts_given, "connect_timeout": "2"})
        return changed.render_as_string(hide_password=False)

    def sql(self, statement: str, *, standby: bool = False) -> Any:
        """The first value of a statement's first row, done by the one or the other."""
        url = sa.make_url(self.info.database_url).set(drivername="postgresql")
        url = url.set(port=self.port) if standby else url
        connection = psycopg2.connect(url.render_as_string(hide_password=False))
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                row = cursor.fetchone() if cursor.description else None
                return row[0] if row else None
        finally:
            connection.close()

    def begin(self) -> None:
        """Copy the primary, and have the copy stream from it."""
        source = sa.make_url(self.info.database_url).set(drivername="postgresql", database="postgres")
        binaries = postgres._binaries()
        made = self._runner.run(
            [
                *(
                    str(binaries / "pg_basebackup"),
                    "-D",
                    str(self.folder),
                    "-X",
                    "stream",
                    "-c",
                    "fast",
                    "-R",
                ),
                *("-d", source.render_as_string(hide_password=False)),
            ]
        )
        assert made.returncode == 0, made.stderr
        user, group = self._runner.user or (None, None)
        options = [part for name, value in postgres._OPTIONS.items() for part in ("-c", f"{name}={value}")]
        with (self._home.logs / "standby.log").open("wb") as log:
            started = subprocess.Popen(
                [
                    *self._runner.prefix,
                    str(binaries / "postgres"),
                    "-D",
                    str(self.folder),
                    "-p",
                    str(self.port),
                    *options,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=postgres._environment(),
                user=user,
                group=group,
                extra_groups=None if user is None else [],
            )
        self.standby = psutil.Process(started.pid)
        wait_until(lambda: self.senders() != [], 60, "the standby does not stream")

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

    def end(self) -> None:
        """Stop the standby."""
        if self.standby is not None:
            self.standby.send_signal(signal.SIGINT)
            self.standby.wait(30)


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
