"""`sharequeue init` and `dg scaffold`: a project that loads, and passes its own test."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from dagster.components.testing import create_defs_folder_sandbox

from sharequeue.cli import command
from sharequeue.dagster import ShareGroupComponent
from sharequeue.dagster.testing import load_share_group
from sharequeue.spark import Reject
from sharequeue.starter import Starter, requirement
from tests.fixtures.stack import REPOSITORY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a project that was just made."""
    made = CliRunner().invoke(
        command, ["init", str(tmp_path / "shop"), "--group", "web-orders", "--topic", "orders"]
    )
    assert made.exit_code == 0, made.output
    return tmp_path / "shop"


def run(folder: Path, *arguments: str) -> str:
    """Run a program of this environment in the project; gives what it printed."""
    path = os.pathsep.join([str(folder), str(REPOSITORY)])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "VIRTUAL_ENV": sys.prefix},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_its_own_tests_pass_and_dagster_loads_it(folder: Path) -> None:
    """What is written is whole: handler, queue, test; `dg` finds all that a group has."""
    assert " passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    listed = run(folder, "-m", "dagster_dg_cli.cli", "list", "defs", "--json")
    found = json.loads(listed[listed.index("{") : listed.rindex("}") + 1])
    names = {kind: {each.get("asset_key", each.get("name")) for each in some} for kind, some in found.items()}
    assert {"web_orders/accepted", "web_orders/dead_letters", "web_orders/spso_and_lag"} <= names["assets"]
    assert {"web_orders", "web_orders_checks"} <= names["jobs"]
    assert {"web_orders_lag", "web_orders_observe"} <= names["sensors"]


@pytest.mark.deep
def test_dg_finds_nothing_wrong(folder: Path) -> None:
    """`dg check defs` loads what `dg list defs` does, and validates it."""
    assert "successfully" in run(folder, "-m", "dagster_dg_cli.cli", "check", "defs")


@pytest.mark.deep
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            "def handle(record):\n"
            "    return {'text': bytes(record['value']).decode()}\n"
            "web_orders = pipeline(group='web-orders', topics=['orders'])(by_row(handle, 'text string'))\n",
            id="by row",
        ),
        pytest.param(
            "@pipeline(group='web-orders', topics=['orders'])\n"
            "def web_orders(records):\n"
            "    return records.selectExpr('*', \"'accept' as outcome\")\n",
            id="frames",
        ),
    ],
)
def test_its_own_tests_pass_with_another_handler(folder: Path, body: str) -> None:
    """A user's handler has other columns, or is a function of DataFrames without any `handle`."""
    text = f"from sharequeue.spark import by_row, pipeline\n{body}"
    (folder / "queues" / "web_orders.py").write_text(text)
    assert "2 passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.mark.parametrize(
    ("source", "suffix"),
    [
        (None, ""),
        ({"url": "file:///a%20b/sharequeue", "dir_info": {"editable": True}}, " @ file:///a%20b/sharequeue"),
        ({"url": "file:///w/s.whl", "archive_info": {}}, " @ file:///w/s.whl"),
        (
            {"url": "https://example.org/s.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}},
            " @ git+https://example.org/s.git@ab12",
        ),
    ],
)
def test_the_project_requires_what_is_installed(
    monkeypatch: pytest.MonkeyPatch, source: dict[str, object] | None, suffix: str
) -> None:
    """The source is pip's record of the installation: a checkout, an archive, a repository; else the index."""
    recorded = SimpleNamespace(read_text=lambda name: source and json.dumps(source))
    monkeypatch.setattr("sharequeue.starter.distribution", lambda name: recorded)
    text = requirement()
    assert re.fullmatch(r"sharequeue\[dagster,embedded(,java)?\]", text.removesuffix(suffix))
    assert text.endswith(suffix)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        *(("2024", "queue_2024"), ("1e3", "queue_1e3"), ("on", "on"), ("null", "null"), ("1.5", "queue_1_5")),
        *(
            ("json", "json_queue"),
            ("handle", "handle_queue"),
            ("int", "int_queue"),
            ("TypeError", "TypeError_queue"),
        ),
        *(("__init__", "init___queue"), ("resources", "resources_queue"), ("None", "None_queue")),
        *(("_x", "x_queue"), ("_1", "queue_1"), ("--", "queue_")),
    ],
)
def test_a_name_that_is_a_keyword_or_a_yaml_value_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, name: str
) -> None:
    """The project loads, with that group and that topic, and its handler works."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package = f"package_of_{name}"
    Starter(group, group, package).write(tmp_path)
    queue = load_share_group(tmp_path, name)
    assert (queue.group, list(queue.topics)) == (group, [group])
    handle = importlib.import_module(f"{package}.{name}").handle
    assert handle({"value": b'{"id": 1, "amount": 9.5}'}) == {"id": 1, "amount": 9.5}
    with pytest.raises(Reject):
        handle({"value": b"[]"})


def test_a_project_may_be_named_by_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`load_share_group(".", …)` loads what `Path(".")` does."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Starter("parcels", "parcels", "package_by_text").write(tmp_path)
    assert load_share_group(".", "parcels").group == "parcels"


def test_the_tutorial_quotes_the_reason_that_the_written_handler_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of its dead letters for an amount that is no number, as `by_row` writes it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    Starter("orders", "orders", "package_of_reason").write(tmp_path)
    handle = importlib.import_module("package_of_reason.orders").handle
    with pytest.raises(Reject) as refused:
        handle({"value": b'{"id": 1, "amount": "a lot"}'})
    tutorial = (REPOSITORY / "docs" / "tutorial" / "own-queue.md").read_text()
    assert f"`Reject: {refused.value}`" in tutorial


def test_the_folder_to_change_to_is_quoted_for_a_shell(tmp_path: Path) -> None:
    """A folder with a blank in its name."""
    made = CliRunner().invoke(command, ["init", f"{tmp_path}/my shop"])
    assert f"\ncd '{tmp_path}/my shop'\n" in made.output


def test_nothing_is_overwritten(folder: Path) -> None:
    """Where one file is there already, none is written."""
    handler = folder / "queues" / "web_orders.py"
    handler.write_text("mine = 1\n")
    (folder / "README.md").unlink()
    again = CliRunner().invoke(command, ["init", str(folder), "--group", "web-orders"])
    assert again.exit_code == 1
    assert "exists already: use an empty folder. Nothing was written." in again.output
    assert handler.read_text() == "mine = 1\n"
    assert not (folder / "README.md").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--group", "a b", "--topic", "t"], "cannot be used as it is in all files"),
        (["--topic", "a b"], "The topic name 'a b' is not legal"),
        (["--topic", "t" * 247], "is not legal"),
        (["--package", "my-queues"], "cannot be imported"),
        (["--package", "class"], "cannot be imported"),
        (["--package", "json"], "would hide another one"),
    ],
)
def test_names_that_cannot_be_used_are_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    refused = CliRunner().invoke(command, ["init", str(tmp_path), *arguments])
    assert refused.exit_code == 1
    assert message in refused.output
    assert list(tmp_path.iterdir()) == []


def test_a_queue_is_scaffolded_into_a_project() -> None:
    """`dg scaffold defs` writes a defs.yaml that loads, with the handler that it names; one that is there stays."""
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(ShareGroupComponent, "parcels", {"topic": "boxes"})
        handler = sandbox.defs_folder_path.parent / "parcels.py"
        assert "def handle(record" in handler.read_text()
        handler.write_text(handler.read_text() + "# mine\n")
        sandbox.scaffold_component(ShareGroupComponent, "parcels", {"topic": "boxes"})
        assert handler.read_text().endswith("# mine\n")
        with sandbox.load_component_and_build_defs(path) as (component, _):
            assert isinstance(component, ShareGroupComponent)
            assert (component.group, list(component.topics)) == ("parcels", ["boxes"])
