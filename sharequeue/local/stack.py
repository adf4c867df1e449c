"""The whole embedded stack: up, down, status, reset.

`up` starts what is not running. A server whose address is in the environment is your own: `up` uses it and does
not start it. `up` can be killed at any point and run again. `down` stops only what `up` started. Each component has
a module of its name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from sharequeue.database import Database
from sharequeue.database.migrations import may_migrate, migrate
from sharequeue.database.schema_files import schema_mismatch
from sharequeue.domain.settings import Settings
from sharequeue.local import dagster_ui, jars, kafka, ports, postgres, processes, service
from sharequeue.local.doctor import FAILURE, examine_machine
from sharequeue.local.home import Home, Progress, read_json, write_json
from sharequeue.local.preflight import Java, StackError, find_java

__all__ = ["ComponentStatus", "StackInfo", "down", "reset", "status", "up"]

COMPONENTS = (postgres.NAME, kafka.NAME, service.NAME, *dagster_ui.NAMES)


@dataclass(frozen=True, slots=True)
class StackInfo:
    """The addresses of the running stack, as in `stack.json`; None for a server that was not started."""

    home: Path
    database_url: str
    dagster_url: str
    bootstrap_servers: str
    service_url: str | None
    jars: Path
    created_at: str


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """One component: `running`, `stopped`, or `died` (it was started and has ended without a `down`)."""

    name: str
    state: str
    pid: int | None
    address: str | None
    log: Path


def up(
    home: Path | str | None = None,
    progress: Progress = print,
    *,
    service: bool = True,
    environment: Mapping[str, str] | None = None,
) -> StackInfo:
    """Start the components of the stack that are not running, and return its addresses.

    `home` defaults to the settings' data folder. `service=False` does not start the coordinator service.
    `environment` (default: this process's) may have addresses of your own servers, which are then used and not
    started. Raises `StackError` with what to do; nothing is changed if Python, Java or the disk space is not
    sufficient.
    """
    given = os.environ if environment is None else environment
    settings = Settings.load(home)
    data_folder = Home.at(settings.home)
    _examine(settings, given)
    java = find_java(given)
    progress(f"data folder  {data_folder.path} (kept by `sharequeue down`, emptied by `sharequeue reset`)")
    own_jars = Path(given.get("SHAREQUEUE_JARS") or data_folder.path / "jars").expanduser().absolute()
    with data_folder.lock(progress):
        data_folder.create()
        ivy_settings = given.get("SHAREQUEUE_IVY_SETTINGS")
        jars.ensure_stack(own_jars, java, Path(ivy_settings).absolute() if ivy_settings else None, progress)
        with ThreadPoolExecutor(max_workers=2) as pool:
            database = pool.submit(_database, data_folder, given, progress)
            broker = pool.submit(_broker, data_folder, given, java, own_jars, progress)
        _raise_all(database, broker)
        database_url, dagster_url = database.result()
        info = StackInfo(
            home=data_folder.path,
            database_url=database_url,
            dagster_url=dagster_url,
            bootstrap_servers=broker.result(),
            service_url=given.get("SHAREQUEUE_SERVICE_URL") or None,
            jars=own_jars,
            created_at=_created_at(data_folder),
        )
        _migrate(info, progress)
        if service and info.service_url is None:
            info = _serve(data_folder, info, progress)
        _write(data_folder, info)
    return info


def down(home: Path | str | None = None, progress: Progress = print) -> list[str]:
    """Stop the running components of this home's stack and no other process; return their names."""
    data_folder = Home.at(Settings.load(home).home)
    if not data_folder.exists:
        return []
    with data_folder.lock(progress):
        # The servers last, so that the others do not report that they are missing.
        first, servers = (*reversed(dagster_ui.NAMES), service.NAME), (kafka.NAME, postgres.NAME)
        stopped = [name for name in first if ports.stop(data_folder, name)]
        with ThreadPoolExecutor(max_workers=2) as pool:
            ended = pool.map(partial(ports.stop, data_folder), servers)
        stopped += [name for name, was_running in zip(servers, ended, strict=True) if was_running]
        for name in COMPONENTS:
            processes.forget(data_folder, name)  # records of components that died earlier
    for name in stopped:
        progress(f"{name:<17} stopped")
    return stopped


def status(home: Path | str | None = None) -> list[ComponentStatus]:
    """Return the status and address of each component."""
    data_folder = Home.at(Settings.load(home).home)
    chosen = ports.recorded(data_folder)
    found = []
    for name in COMPONENTS:
        recorded = (data_folder.run / f"{name}.json").exists()
        running = processes.find(data_folder, name) if data_folder.exists else None
        port = chosen.get(name)
        address = f"{ports.LOOPBACK}:{port}" if running is not None and port is not None else None
        state = "running" if running is not None else "died" if recorded else "stopped"
        log = data_folder.logs / f"{name}.log"
        found.append(ComponentStatus(name, state, running.pid if running is not None else None, address, log))
    return found


def reset(home: Path | str | None = None, progress: Progress = print) -> list[Path]:
    """Stop the stack and remove its data; return what was removed. The jars are kept, to save a download.

    Raises `StackError` while a run uses that data.
    """
    data_folder = Home.at(Settings.load(home).home)
    if data_folder.at_work:
        raise StackError(f"A run is using {data_folder.path}: end its demo with Ctrl-C, then reset.")
    down(data_folder.path, progress)
    if not data_folder.exists:
        return []
    with data_folder.lock(progress):
        removed = data_folder.owned()
        data_folder.erase()
    return removed


def _examine(settings: Settings, given: Mapping[str, str]) -> None:
    """Check this machine first; raise before anything is changed."""
    findings = examine_machine(settings, given)
    failures = [finding.text for finding in findings if finding.level == FAILURE]
    if failures:
        raise StackError("\n".join(failures))


def _database(home: Home, given: Mapping[str, str], progress: Progress) -> tuple[str, str]:
    """Return the URLs of our database and Dagster's."""
    if given.get("SHAREQUEUE_DATABASE_URL"):
        configured = Settings.load(home.path, database_url=given["SHAREQUEUE_DATABASE_URL"], dagster_url=None)
        progress("postgres     yours (SHAREQUEUE_DATABASE_URL)")
        return configured.database_url, given.get("SHAREQUEUE_DAGSTER_URL") or configured.dagster_url
    port = postgres.ensure(home, progress)
    progress(f"postgres     {ports.LOOPBACK}:{port}")
    dagster_url = given.get("SHAREQUEUE_DAGSTER_URL") or postgres.url(home, "dagster", port)
    return postgres.url(home, "sharequeue", port), dagster_url


def _broker(home: Home, given: Mapping[str, str], java: Java, jars: Path, progress: Progress) -> str:
    """Return the broker's address."""
    if given.get("SHAREQUEUE_BOOTSTRAP_SERVERS"):
        progress(
            f"kafka        yours, {given['SHAREQUEUE_BOOTSTRAP_SERVERS']} (SHAREQUEUE_BOOTSTRAP_SERVERS)"
        )
        return given["SHAREQUEUE_BOOTSTRAP_SERVERS"]
    port = kafka.ensure(home, java, jars, progress)
    progress(f"kafka        {ports.LOOPBACK}:{port}")
    return f"{ports.LOOPBACK}:{port}"


def _raise_all(*futures: Future[Any]) -> None:
    """Raise the errors of the futures; two of them become one error."""
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    if len(errors) > 1 and all(isinstance(error, StackError) for error in errors):
        raise StackError("\n".join(str(error) for error in errors))
    if errors:
        raise errors[0]


def _migrate(info: StackInfo, progress: Progress) -> None:
    """Bring the schema up to date. If the login is not a member of its owner's role, only check that it is."""
    database = Database(info.database_url)
    try:
        with database.transaction() as connection:
            mismatch = None if (mine := may_migrate(connection)) else schema_mismatch(connection)
        if mismatch:
            raise StackError(mismatch)
        applied = migrate(database) if mine else []
    finally:
        database.close()
    if applied:
        progress("schema       applied")


def _serve(home: Home, info: StackInfo, progress: Progress) -> StackInfo:
    addresses = {
        "SHAREQUEUE_DATABASE_URL": info.database_url,
        "SHAREQUEUE_DAGSTER_URL": info.dagster_url,
        "SHAREQUEUE_BOOTSTRAP_SERVERS": info.bootstrap_servers,
    }
    port = service.ensure(home, addresses, progress)
    progress(f"service      http://{ports.LOOPBACK}:{port}")
    return replace(info, service_url=f"http://{ports.LOOPBACK}:{port}")


def _created_at(home: Home) -> str:
    """Return the time of the stack's first start, kept over restarts."""
    before = read_json(home.stack_file)
    kept = before.get("created_at") if isinstance(before, dict) else None
    return str(kept or datetime.now(UTC).isoformat(timespec="seconds"))


def _write(home: Home, info: StackInfo) -> None:
    content = {
        name: str(value) for name, value in asdict(info).items() if value is not None and name != "home"
    }
    write_json(home.stack_file, content)
