"""Every command follows one grammar; a command that is added must, too."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

import sharequeue.cli
from sharequeue.cli import command
from sharequeue.cli.audit import ACTS
from sharequeue.cli.options import Whole, execute_option, named_group
from sharequeue.cli.output import Output, answers, text
from sharequeue.database.schema_files import sql_root

AT_ONCE = {
    *("up", "down", "serve", "run", "replay", "consume", "migrate", "init", "report"),
    *("groups pause", "groups resume", "acls add", "acls authorizer", "configs alter"),
    *("tokens create", "jars fetch"),
}
"""They change something and act at once. They can be undone, or write beside what is there."""
READS = {
    *("status", "env", "doctor", "verify", "groups list", "groups describe", "acls list"),
    *("audit", "configs describe", "results list", "state show"),
    *("dlq list", "dlq show", "journal changes", "journal days", "journal verify"),
    *("tokens list", "jars list", "trace"),
}
KAFKAS = {"share-groups"}
"""It takes the arguments of Kafka's own tool, and acts as that does."""
LOCAL = {"init"}
"""Commands that need no server and no data folder."""


def leaves(group: click.Group, *names: str) -> Iterator[tuple[str, click.Command]]:
    for name, each in group.commands.items():
        if isinstance(each, click.Group):
            yield from leaves(each, *names, name)
        else:
            yield " ".join((*names, name)), each


COMMANDS = dict(leaves(command))
DESTRUCTIVE = sorted(set(COMMANDS) - AT_ONCE - READS - KAFKAS)


def options(name: str) -> dict[str, click.Option]:
    return {
        opt: each for each in COMMANDS[name].params if isinstance(each, click.Option) for opt in each.opts
    }


def typed(name: str) -> list[str]:
    """The command with something for each argument and option that it must have."""
    words = name.split()
    for each in COMMANDS[name].params:
        value = "2013" if isinstance(each.type, click.DateTime) else "PT1M" if each.name == "longer" else "0"
        if isinstance(each, click.Argument):
            words.append(value)
        elif each.required or each.name == "group":
            words += [each.opts[-1], value]
    return words


@pytest.mark.parametrize("name", COMMANDS)
def test_a_refusal_is_never_cut(name: str) -> None:
    """Nor is why something waits: these columns are as long as what they hold, without `--verbose` as well."""
    views = COMMANDS[name].callback.columns  # type: ignore[union-attr]
    assert not [
        each.name
        for columns in views.values()
        for each in columns
        if each.cut and each.name in ("STATUS", "REASON", "REMARK")
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_writes_text_and_json(name: str) -> None:
    """`-o text|json|jsonl` and `--verbose` everywhere."""
    has = options(name)
    assert isinstance(has["-o"].type, click.Choice)
    assert list(has["-o"].type.choices) == ["text", "json", "jsonl"]
    assert "--verbose" in has


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_its_settings_alike(name: str) -> None:
    """Each says where its data folder is; who needs servers takes their addresses; a group is always `--group`."""
    has = options(name)
    assert name in LOCAL or has["--home"].envvar == "SHAREQUEUE_HOME"
    if "--database-url" in has:
        assert {"--bootstrap-server", "--service-url"} <= set(has)
    assert "group" not in {each.name for each in COMMANDS[name].params if isinstance(each, click.Argument)}


def test_a_number_has_an_upper_limit() -> None:
    """That of the database, of Kafka's client or of a clock, so that neither fails. An offset to which a group is
    reset is moved into its log."""
    endless = {
        (name, each.name)
        for name, found in COMMANDS.items()
        for each in found.params
        if isinstance(each.type, click.types.IntParamType)
        if not isinstance(each.type, Whole) and getattr(each.type, "max", None) is None
    }
    assert endless == {("offsets reset", "to_offset"), ("share-groups", "to_offset")}


def test_a_group_has_a_name() -> None:
    """An empty `--group`, as from a variable of a shell that is not set, is refused by every command that has one."""
    groups = {name: has["--group"] for name in set(COMMANDS) - KAFKAS if "--group" in (has := options(name))}
    assert [name for name, each in groups.items() if each.callback is not named_group] == []


@pytest.mark.parametrize("name", DESTRUCTIVE)
def test_what_destroys_is_a_dry_run_and_is_never_done_unasked(
    name: str, no_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without --execute nothing is done; where nobody can be asked --execute needs --yes, before all else."""
    has = options(name)
    assert has["--execute"].default is False
    assert has["--execute"].secondary_opts == ["--dry-run"]
    assert "--yes" in has
    # Nobody's data, if this ever fails.
    no_environment.setenv("SHAREQUEUE_HOME", str(tmp_path))
    for format in ("text", "json", "jsonl"):
        result = CliRunner().invoke(command, [*typed(name), "--execute", "-o", format])
        assert result.exit_code == 2, result.output
        assert "add --yes" in result.output


@pytest.mark.parametrize("name", sorted(AT_ONCE | READS))
def test_what_acts_at_once_or_reads_has_nothing_to_execute(name: str) -> None:
    """The two lists are of commands that there are, and none of these has --execute."""
    assert not {"--execute", "--yes"} & set(options(name))


def test_only_execute_prompts() -> None:
    """No command prompts but through `--execute`."""
    folder = Path(sharequeue.cli.__file__).parent
    asking = {
        path.name
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("confirm", "prompt", "confirmation_option")
    }
    assert asking == {"options.py"}


@click.command()
@answers(text("DID"))
@execute_option
def act(output: Output, execute: bool) -> None:
    output.rows([{"did": "it" if execute else output.planned}])


@pytest.mark.parametrize(
    ("words", "answer", "did", "code"),
    [
        ((), "", ["dry run"], 0),
        (("--execute",), "y\n", ["to be done", "it"], 0),
        (("--execute",), "n\n", ["to be done"], 1),
        (("--execute", "--yes"), "", ["it"], 0),
        (("--execute", "--yes", "-o", "jsonl"), "", ["it"], 0),
    ],
)
def test_on_a_terminal_it_shows_and_asks(
    words: tuple[str, ...], answer: str, did: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would be done is shown first; then it asks, unless --yes."""
    runner = CliRunner()
    with runner.isolation(answer) as streams:
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        try:
            found = act.main([*words], standalone_mode=False) or 0
        except click.ClickException as error:
            found = error.exit_code
        printed = streams[0].getvalue().decode()
    assert found == code
    assert [
        each for each in ("dry run", "to be done", "it") if f"\n{each}\n" in printed or f'"{each}"' in printed
    ] == did


@pytest.mark.parametrize("terminal", [(False, False), (True, False), (False, True)])
def test_without_a_terminal_only_yes_does_it(
    terminal: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where something is piped into it: who is not asked has to say --yes."""
    runner = CliRunner()
    with runner.isolation("y\n") as streams:
        monkeypatch.setattr(sys.stdin, "isatty", lambda: terminal[0])
        monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal[1])
        with pytest.raises(click.UsageError, match=r"there is no terminal.*add --yes"):
            act.main(["--execute"], standalone_mode=False)
        assert streams[0].getvalue() == b""
        act.main(["--execute", "--yes"], standalone_mode=False)
        assert streams[0].getvalue().decode().splitlines()[-1] == "it"


def test_make_asks_as_the_command_does() -> None:
    """No target of the Makefile says --yes by itself; `make help` says that `reset` asks."""
    lines = (Path(__file__).parents[3] / "Makefile").read_text().splitlines()
    assert not [line for line in lines if "--yes" in line and "$(if $(YES),--yes)" not in line]
    (reset,) = [line for line in lines if line.startswith("reset:")]
    assert "asks first" in reset


def test_what_is_shown_before_the_question_is_no_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --execute on a terminal nothing claims to be a dry run; without --execute one line says that it is one."""
    said = "a dry run: nothing was changed; add --execute to make the changes"
    assert CliRunner().invoke(act, []).stdout.splitlines()[-2:] == ["dry run", said]
    runner = CliRunner()
    with runner.isolation("n\n") as streams:
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        with pytest.raises(click.ClickException, match=r"Nothing was changed\."):
            act.main(["--execute"], standalone_mode=False)
        printed = streams[0].getvalue().decode()
    assert "to be done" in printed
    assert "dry run" not in printed


def test_tab_completes_commands_options_and_choices() -> None:
    """click's own completion, as `_SHAREQUEUE_COMPLETE=bash_source sharequeue` installs it."""
    complete = BashComplete(command, {}, "sharequeue", "_SHAREQUEUE_COMPLETE")

    def of(words: list[str], begun: str) -> list[str]:
        return [each.value for each in complete.get_completions(words, begun)]

    assert "groups" in of([], "gro")
    assert "describe" in of(["groups"], "")
    assert of(["groups", "list"], "--out") == ["--output"]
    assert of(["groups", "list", "-o"], "js") == ["json", "jsonl"]
    assert of(["groups", "describe", "--group"], "x") == []  # no database here: no names, and no error
    assert "sharequeue" in complete.source()


def test_audit_knows_every_act_that_is_written_down() -> None:
    """`--act` takes the names that the SQL functions write, no other."""
    written = re.findall(
        r"perform sharequeue_internal\.audit\(\s*([^,]+),",
        "\n".join(file.read_text() for file in (sql_root() / "functions").rglob("*.sql")),
    )
    literals = {name for act in written for name in re.findall(r"'(\w+)'", act)}
    assert literals == {"force_" if act.startswith("force_") else act for act in ACTS}
