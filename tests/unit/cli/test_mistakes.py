"""What is wrong with a command line is said before anything is done, and never with a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import psycopg2
import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy.exc import OperationalError, ProgrammingError

import sharequeue.cli
from sharequeue.cli import command
from sharequeue.cli.consuming import _line, _properties, _row
from sharequeue.cli.failures import database_failure
from sharequeue.cli.options import execute_option, parse_topics
from sharequeue.cli.output import Output, answers, text
from sharequeue.cli.run import WHOLE_ERROR
from sharequeue.database.refusals import FULL, LOGIN, PARAMETER, TLS, ConnectionRefused, RefusalKind

RESET = ("offsets", "reset", "--group", "g")
KAFKAS = ("share-groups", "--dry-run", "--reset-offsets", "--group", "g")


def test_a_topic_named_twice_is_both() -> None:
    """All partitions win over some."""
    assert parse_topics(["t:0", "t:1", "u:3,3"]) == {"t": (0, 1), "u": (3,)}
    assert parse_topics(["t:0", "t", "t:1"]) == {"t": None}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((*RESET, "--topic", "t", "--from-file", __file__), 2, "--from-file has the topics"),
        ((*RESET, "--all-topics", "--from-file", __file__), 2, "--from-file has the topics"),
        ((*RESET, "--topic", "t", "--all-topics", "--from-consumer-group", "c"), 2, "not both"),
        ((*RESET, "--topic", "t", "--by-duration", "10m"), 2, "'10m' is not an ISO-8601 duration"),
        (
            (*RESET, "--topic", "t", "--to-datetime", "2026-05-01T12:00 CET"),
            2,
            "the time zone as its difference",
        ),
        ((*RESET, "--topic", "t", "--to-datetime", "yesterday"), 2, "expected YYYY-MM-DDTHH:mm:SS.sss"),
        ((*RESET, "--topic", "t", "--to-datetime", "0001-01-01T00:00+14:00"), 2, "expected YYYY-MM-DDTHH"),
        (
            ("dlq", "list", "t", "--since", "2026-05-01T12:00:00Europe/Berlin"),
            2,
            "the time zone as its difference",
        ),
        (("audit", "--since", "2026-05-01 12:00:00.5 UTC"), 2, "the time zone as its difference"),
        (
            (*KAFKAS, "--from-file", "f", "--topic", "t"),
            1,
            '"[topic]" can\'t be used with option "[from-file]"',
        ),
        ((*KAFKAS, "--from-file", "f", "--all-topics"), 1, '"[all-topics]" can\'t be used with option'),
        ((*KAFKAS, "--group", "h", "--topic", "t", "--to-latest"), 1, "multiple arguments for option group"),
        (
            ("share-groups", "--delete-offsets", "--group", "g", "--group", "h", "--topic", "t"),
            1,
            "multiple arguments for option group",
        ),
        (("consume", "--topic", "t", "-o", "json", "--max-messages", "1"), 2, "use -o jsonl"),
        (("audit", "--act", "pauze"), 2, "'pauze' is not one of"),
        (("state", "extend-locks", "--by", "10m"), 2, "'10m' is not an ISO-8601 duration"),
        (("state", "remove-deleted-topics", "--gone-for", "x"), 2, "'x' is not an ISO-8601 duration"),
        (
            ("state", "release", "--group", "g", "--topic", "t:0", "--offsets", "abc"),
            2,
            "'abc' is not an offset",
        ),
        (
            ("journal", "changes", "--group", "g", "--topic", "t:0", "--limit", "-1"),
            2,
            "-1 is not in the range",
        ),
        (
            ("state", "release", "--group", "g", "--topic", "t:0", "--offsets", "9-3"),
            2,
            "'9-3' is not an off",
        ),
        (("journal", "changes", "--group", "g", "--topic", f"t:{2**31}"), 2, "a number from 0 to 2147483647"),
        (("trace", "t", "0", f"{2**63 - 1}"), 2, "is too large: expected at most 9223372036854775806"),
        (("trace", "t", f"{2**31}", "0"), 2, "'PARTITION': 2147483648 is too large"),
        (("trace", "t", "0", "-5"), 2, "'OFFSET': -5 is not in the range x>=0"),
        (("trace", "t", "0", "-x"), 2, "No such option"),
        (("dlq", "show", "t", "-12", "0"), 2, "'PARTITION': -12 is not in the range x>=0"),
        (("trace", "", "0", "0"), 2, "The topic name '' is not legal"),
        (("trace", "t", "0", "0", "--group", ""), 2, "'--group': the name is empty"),
        (("dlq", "list", "t", "--offsets", f"0:{2**63}"), 2, "with offsets of 0 to 9223372036854775806"),
        (("compact", "--group", "g", "--sink", "s", "--grace-seconds", "9" * 14), 2, "is too large"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: tuple[str, ...], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a server is asked: there is none here."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, [*words, "--database-url", "postgresql://nowhere.invalid/x"])
    assert result.exit_code == code, result.output
    assert said in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (("--database-url", "foo"), {}, "SETTING_INVALID: The address of the database cannot be read"),
        (("--database-url", "postgresql://h:port/x"), {}, "SETTING_INVALID"),
        (("--database-url", "mysql://h/x"), {}, "expected a Postgres URL"),
        (
            ("--bootstrap-server", "h:99999"),
            {},
            "SHAREQUEUE_BOOTSTRAP_SERVERS: the port of 'h:99999' is '99999'",
        ),
        ((), {"SHAREQUEUE_BOOTSTRAP_SERVERS": "h:1,g:x"}, "expected a number from 1 to 65535"),
        ((), {"SHAREQUEUE_DATABASE_POOL_SIZE": "abc"}, "SHAREQUEUE_DATABASE_POOL_SIZE: "),
        (
            ("--database-url", "postgresql://u:secret@h/x?nonsense=1"),
            {},
            "SETTING_INVALID: The database refuses a parameter of the connection (invalid dsn: invalid connection "
            'option "nonsense"): remove or correct it in SHAREQUEUE_DATABASE_URL',
        ),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(
    words: tuple[str, ...],
    environment: dict[str, str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It has a code, and what to look at; no password."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    printed = failed(monkeypatch, capsys, "groups", "list", "--home", str(tmp_path), *words)
    assert said in printed
    assert "Make sure that" in printed
    assert "secret" not in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dlq", "redrive", "t", "--rate", "nan"), "'--rate': 'nan' is not a finite number"),
        (("dlq", "redrive", "t", "--rate", "inf"), "'--rate': 'inf' is not a finite number"),
        (("dlq", "redrive", "t", "--rate", "1e-9"), "is not in the range x>=0.001"),
        (("journal", "keep", "--retention-days", "nan"), "'nan' is not a finite number"),
        (("journal", "keep", "--retention-days", "1e9"), "is not in the range 0<x<=36500"),
        (("run", "m:j", "--max-seconds", "nan"), "'--max-seconds': 'nan' is not a finite number"),
        (("run", "m:j", "--max-seconds", "-inf"), "is not in the range x>=0"),
        ((*RESET, "--topic", "t", "--by-duration", "P999999999D"), "expected 36,500 days (P36500D) at most"),
        (("tokens", "create", "--principal", "User:a", "--expires", "P36501D"), "is too long"),
        (
            ("state", "extend-locks", "--by", "PT99999999999999H"),
            "'PT99999999999999H' is not an ISO-8601 duration",
        ),
    ],
)
def test_a_number_without_an_end_is_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """NaN lies within every range, and what is far too long has no date: both ended in a traceback, or never."""
    result = CliRunner().invoke(command, [*words, "--database-url", "postgresql://nowhere.invalid/x"])
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize("content", ["def broken(:\n", "from os import no_such_name\n"])
def test_a_module_that_cannot_be_imported_is_one_line(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a job: what is wrong with its module, and where."""
    name = f"broken_{'syntax' if ':' in content else 'name'}"
    (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    printed = failed(monkeypatch, capsys, "run", f"{name}:job", "--home", str(tmp_path))
    assert f"NO_SUCH_JOB: module {name} cannot be imported: " in printed


@pytest.mark.parametrize(("kind", "said"), [(1, "CreateTime:5\n"), (2, "LogAppendTime:5\n")])
def test_a_record_says_whose_time_it_has(kind: int, said: str) -> None:
    """The producer's, or the broker's."""

    class Record:
        def __getattr__(self, name: str) -> Callable[[], object]:
            return lambda: (kind, 5) if name == "timestamp" else None

    record: Any = Record()
    wanted = ["print.timestamp=true", "print.value=false"]
    context = click.Context(click.Command("x"))
    chosen = _properties(context, click.Option(["--x"]), wanted)
    assert _line(_row(record, None), chosen) == said


@pytest.mark.parametrize(
    ("state", "code"),
    [("57014", "REQUEST_TIMED_OUT"), ("55P03", "REQUEST_TIMED_OUT"), ("42501", "DATABASE_REFUSED")],
)
def test_an_error_of_postgres_has_its_own_code(state: str, code: str) -> None:
    """What took too long, and what is not permitted, is no database that does not respond."""
    original = type("Original", (Exception,), {"pgcode": state})("permission denied\nCONTEXT: …")
    kind = ProgrammingError if state == "42501" else OperationalError
    refused = database_failure(kind("select", {}, original))
    assert refused.code == code
    assert "(permission denied)" in refused.format_message()


@pytest.mark.parametrize(
    ("refusal", "code", "said"),
    [
        (
            LOGIN,
            "DATABASE_LOGIN_REFUSED",
            "The database refuses the login (no): set SHAREQUEUE_DATABASE_URL to",
        ),
        (PARAMETER, "SETTING_INVALID", "The database refuses a parameter of the connection (no): remove or"),
        (
            TLS,
            "SETTING_INVALID",
            "The database cannot be reached over TLS as the address wants it (no): correct",
        ),
        (FULL, "DATABASE_NOT_AVAILABLE", "The database has no connection left (no): raise max_connections"),
        (None, "DATABASE_NOT_AVAILABLE", "The database does not respond (no)."),
    ],
)
def test_a_connection_that_is_refused_is_no_database_that_is_away(
    refusal: RefusalKind | None, code: str, said: str
) -> None:
    """Each kind has its own words and remedy."""
    original = psycopg2.OperationalError("no") if refusal is None else ConnectionRefused("no", refusal)
    refused = database_failure(OperationalError("select", {}, original))
    assert refused.code == code
    assert refused.format_message().startswith(said)


def test_an_error_of_kafkas_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script looks for the code."""

    def failing(*_: object) -> Iterator[dict[str, object]]:
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        yield {}

    monkeypatch.setattr("sharequeue.cli.consuming._consumed", failing)
    printed = failed(monkeypatch, capsys, "consume", "--topic", "t", "--home", str(tmp_path))
    assert "Error: TOPIC_AUTHORIZATION_FAILED: " in printed


@click.command()
@answers(text("DID"))
@click.option("--export", is_flag=True)
@execute_option
def act(output: Output, export: bool, execute: bool) -> None:
    output.rows([{"did": "it" if execute else "dry run"}])
    if not export:
        raise click.exceptions.Exit(1)


@pytest.mark.parametrize("export", [False, True])
def test_what_is_refused_in_part_is_asked_for_and_an_export_is_printed_once(
    export: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dry run of an export is shown beside it."""
    runner = CliRunner()
    with runner.isolation("y\n") as streams:
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        code = act.main(["--execute", *["--export"] * export], standalone_mode=False) or 0
        printed = streams[0].getvalue().decode()
    assert "\nit\n" in printed
    assert ("dry run" in printed) is not export
    assert code == (0 if export else 1)


def test_a_module_that_exits_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`sys.exit(0)` in the module of a pipeline does not look like a run that succeeded."""
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "leaves", raising=False)
    printed = failed(monkeypatch, capsys, "run", "leaves:orders")
    assert "PROGRAM_ENDED: the pipeline's code ended the program with exit code 0" in printed


@pytest.mark.parametrize("verbose", [False, True])
def test_the_error_of_a_spark_job_is_shown_without_the_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verbose: bool
) -> None:
    """The user sees what was raised, and Spark's whole error only if he asks for it."""
    (tmp_path / "fails.py").write_text(
        "from py4j.protocol import Py4JError\n"
        "from sharequeue.spark import Pipeline, pipeline\n"
        "class Failing(Pipeline):\n"
        "    def run(self, *_, **__):\n"
        "        raise Py4JError(': a.B: why\\n\\tat c.D.e(F.java:1)\\nCaused by: f.G: [OOPS] the cause')\n"
        "orders = Failing(group='g', topics=('t',), handler=lambda records: records, sink='s')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "fails", raising=False)
    printed = failed(monkeypatch, capsys, "run", "fails:orders", *["--verbose"] * verbose)
    assert "Error: JobFailed: a Spark job failed: f.G: [OOPS] the cause\n" in printed
    assert ("\tat c.D.e(F.java:1)" in printed) is verbose
    assert (WHOLE_ERROR in printed) is not verbose


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    """A command whose stdout is closed, as by `head`, ends with 0 and says nothing on stderr."""
    program = (
        "import sys; from sharequeue.cli import main; sys.argv = ['sharequeue', 'run', '--help']; main()"
    )
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_another_closed_pipe_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A connection that was closed meanwhile is not taken for a reader that has seen enough."""

    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("sharequeue.cli.groups.Database.open", closed)
    printed = failed(monkeypatch, capsys, "groups", "list", "--database-url", "postgresql://x@127.0.0.1:1/x")
    assert "BrokenPipeError: [Errno 32] Broken pipe" in printed


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("SHAREQUEUE_DATABASE_POOL_SIZE", "0", "0 is not valid: expected 1 to 10,000"),
        ("SHAREQUEUE_DATABASE_LOCK_TIMEOUT_MS", "-1", "-1 is not valid: expected 0 to 2,147,483,647"),
        ("SHAREQUEUE_DATABASE_STATEMENT_TIMEOUT_MS", "2147483648", "2147483648 is not valid"),
        ("SHAREQUEUE_SERVICE_MAX_CONNECTIONS", "9", "9 is not valid: expected 10 to 1,000,000"),
        ("SHAREQUEUE_SERVICE_IDLE_TIMEOUT_MS", "99", "99 is not valid: expected 100 to 2,147,483,647"),
        ("SHAREQUEUE_SERVICE_REQUESTS_PER_SECOND", "-1", "-1 is not valid: expected 0 to 2,147,483,647"),
    ],
)
def test_a_setting_out_of_range_is_named(
    variable: str,
    value: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error has the variable, its value and the bounds, and no traceback."""
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("SHAREQUEUE_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    command_line = ("serve",) if "SERVICE" in variable else ("groups", "list")
    printed = failed(monkeypatch, capsys, *command_line, "--database-url", "postgresql://x@127.0.0.1:1/x")
    assert f"SETTING_INVALID: A setting cannot be read ({variable}: {expected}" in printed


def failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run the command as a shell does; return what it says on stderr when it ends with exit code 1."""
    monkeypatch.setattr(sys, "argv", ["sharequeue", *words])
    with pytest.raises(SystemExit) as ended:
        sharequeue.cli.main()
    printed = capsys.readouterr().err
    assert ended.value.code == 1, printed
    assert "Traceback" not in printed
    return printed
