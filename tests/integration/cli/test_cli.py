"""The command: results on stdout, one line of error on stderr, exit codes that can be relied on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.local.doctor import FAILURE, OK, examine
from sharequeue.local.stack import StackInfo, status, up
from sharequeue.state import State
from tests import single
from tests.fixtures.stack import REPOSITORY
from tests.servers.command import command_server

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    """Give a function that runs the command as a user does, in a process that need not import it first."""
    with command_server(tmp_path_factory.mktemp("command")) as programs:
        yield partial(sharequeue, program=(str(programs / "sharequeue"),))


def sharequeue(
    *arguments: str,
    home: Path,
    program: Sequence[str] = (sys.executable, "-m", "sharequeue.cli"),
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return subprocess.run(
        [*program, *arguments],
        env={**os.environ, "SHAREQUEUE_HOME": str(home), **environment},
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_whole_stack_comes_up_and_answers(module_home: Path) -> None:
    """`up -o json`, `status` and `doctor`, as an operator types them; no password is printed."""
    result = sharequeue("up", "-o", "json", home=module_home)
    assert result.returncode == 0, result.stderr
    info = json.loads(result.stdout)
    assert info["service_url"].startswith("http://127.0.0.1:")
    assert (module_home / "postgres" / "password").read_text() not in result.stdout + result.stderr
    listed = json.loads(sharequeue("status", "-o", "json", home=module_home).stdout)
    assert {each["name"] for each in listed if each["state"] == "running"} == {"postgres", "kafka", "service"}
    doctor = sharequeue("doctor", home=module_home)
    assert doctor.returncode == 0, doctor.stdout
    assert all(line.startswith("ok ") for line in doctor.stdout.splitlines())


def test_the_service_is_started_again_after_kill_9(module_home: Path) -> None:
    """The same address, another process."""
    before = up(module_home, lambda line: None)
    pid = next(each.pid for each in status(module_home) if each.name == "service")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert up(module_home, lambda line: None) == before
    assert next(each.pid for each in status(module_home) if each.name == "service") not in (None, pid)


def test_reset_only_shows_without_execute(called: Call, module_home: Path) -> None:
    """Nothing is removed by a dry run, nor where nobody can be asked and nobody says `--yes`."""
    up(module_home, lambda line: None)
    running = [each.name for each in status(module_home) if each.state == "running"]
    for unasked in (("--execute",), ("--execute", "-o", "json")):
        refused = called("reset", *unasked, home=module_home)
        assert (refused.returncode, "add --yes" in refused.stderr) == (2, True)
    told = called("reset", home=module_home)
    assert told.returncode == 0
    assert "postgres, kafka" in told.stdout
    assert [each.name for each in status(module_home) if each.state == "running"] == running


@pytest.mark.slow
def test_down_stops_all_and_reset_removes_the_data(called: Call, module_home: Path) -> None:
    """`down` names what it stopped, and does nothing twice; each failure of `doctor` then ends with a remedy, and its
    exit code tells a script; `reset --execute --yes` removes the data."""
    up(module_home, lambda line: None)
    gone = sharequeue("down", home=module_home)
    assert gone.stdout.splitlines() == [f"{name:<17} stopped" for name in ("service", "kafka", "postgres")]
    assert called("down", home=module_home).stdout == "nothing was running\n"
    result = called("doctor", "-o", "json", home=module_home)
    assert result.returncode == 1
    failed = {each["subject"]: each for each in json.loads(result.stdout) if each["level"] == FAILURE}
    assert set(failed) == {"database", "broker", "service"}
    assert all(
        "sharequeue up" in each["remedy"] or "sharequeue up" in each["seen"] for each in failed.values()
    )
    assert called("reset", "--execute", "--yes", home=module_home).returncode == 0
    assert not (module_home / "postgres").exists()


def test_a_home_with_a_comma_is_refused(called: Call, tmp_path: Path) -> None:
    """Kafka would take it for two folders, and Spark for two jars: named before anything is made."""
    home = tmp_path / "one,two"
    result = called("up", home=home)
    assert result.returncode == 1
    assert f"{home} has a comma in its path" in result.stderr
    assert not home.exists()


def test_doctor_sees_a_schema_that_waits(stack: StackInfo, private_database: Database) -> None:
    """A database that was never migrated is a failure with the command that mends it."""
    with private_database.transaction() as connection:
        connection.exec_driver_sql("drop schema sharequeue, sharequeue_internal cascade")
    url = private_database.engine.url.render_as_string(hide_password=False)
    found = {each.subject: each for each in examine(Settings.load(stack.home).replace(database_url=url))}
    assert found["schema"].level == FAILURE
    assert found["schema"].remedy == "run `sharequeue migrate`"
    assert found["broker"].level == found["clock"].level == OK


def test_migrate_says_first_and_does_then(called: Call, stack: StackInfo, private_database: Database) -> None:
    """A dry run changes nothing; a second run has nothing to do."""
    with private_database.transaction() as connection:
        connection.exec_driver_sql("drop schema sharequeue, sharequeue_internal cascade")
    url = private_database.engine.url.render_as_string(hide_password=False)

    def migrate(*options: str) -> list[str]:
        result = called("migrate", *options, home=stack.home, SHAREQUEUE_DATABASE_URL=url)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    would = migrate("--dry-run")
    assert would
    assert all(line.startswith("would apply ") for line in would)
    assert migrate() == [line.replace("would apply", "applied") for line in would]
    assert migrate() == ["the schema is up to date"]


def test_describe_shows_kafkas_columns_and_figures(
    called: Call, stack: StackInfo, database: Database, state: State, group: str, topic: str
) -> None:
    """GROUP TOPIC PARTITION START-OFFSET LAG come first, as in kafka-share-groups.sh."""
    at = SharePartition(group, topic, 0)
    ensure_group(database, group)
    state.initialize(at, "an-id", 3, 1)
    single.observe(state, at, "an-id", 0, 13, 13)
    text = called("groups", "describe", "--group", group, home=stack.home)
    assert text.returncode == 0, text.stderr
    head, _, row = text.stdout.splitlines()[:3]
    assert head.split()[:5] == ["GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"]
    assert row.split()[:5] == [group, topic, "0", "3", "10"]
    listed = json.loads(called("groups", "list", "-o", "json", home=stack.home).stdout)
    [mine] = [each for each in listed if each["group"] == group]
    assert (mine["state"], mine["members"]) == ("Empty", 0)
    assert called("verify", "--group", group, home=stack.home).stdout == "every invariant holds\n"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (
            ("groups", "describe", "--group", "no-such-group"),
            1,
            "Error: GROUP_ID_NOT_FOUND: There is no share",
        ),
        (("dlq", "list", "no-such-topic"), 1, "Error: UNKNOWN_TOPIC_OR_PARTITION: "),
        (("groups", "describe"), 2, "Give --group or --all-groups"),
        (("no-such-command",), 2, "No such command"),
    ],
)
def test_expected_errors_are_shown_without_a_traceback(
    called: Call, stack: StackInfo, arguments: tuple[str, ...], code: int, told: str
) -> None:
    """1 when it cannot be done, 2 when the command line is wrong; stdout stays empty."""
    result = called(*arguments, home=stack.home)
    assert (result.returncode, result.stdout) == (code, "")
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_a_command_without_addresses_says_what_to_set(called: Call, tmp_path: Path) -> None:
    """No stack, no environment: where it was looked for, in the order in which one wins over the other."""
    result = called("groups", "list", home=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: SettingMissing: ")
    looked = ("--database-url", "the variable SHAREQUEUE_DATABASE_URL", str(tmp_path / "stack.json"))
    assert sorted(looked, key=result.stderr.index) == list(looked)
    assert "set SHAREQUEUE_DATABASE_URL, or run `sharequeue up`" in result.stderr


def test_a_database_that_is_gone_is_said_with_what_to_look_at(called: Call, stack: StackInfo) -> None:
    """A refused connection is no traceback. A variable wins over the file, an option over the variable."""
    url = "postgresql://u:p@127.0.0.1:1/x"
    result = called("groups", "list", home=stack.home, SHAREQUEUE_DATABASE_URL=url)
    assert result.returncode == 1
    first, second, *points = result.stderr.splitlines()
    assert first.startswith("Error: DATABASE_NOT_AVAILABLE: The database does not respond")
    assert second == "Make sure that"
    assert all(point.startswith("  - ") for point in points)
    given = ("--database-url", stack.database_url)
    listed = called("groups", "list", *given, home=stack.home, SHAREQUEUE_DATABASE_URL=url)
    assert listed.returncode == 0, listed.stderr
