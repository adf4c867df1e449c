"""`sharequeue init` and `dg scaffold`: a project that loads, and passes its own test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from dagster.components.testing import create_defs_folder_sandbox

from sharequeue.cli import command
from sharequeue.dagster import ShareGroupComponent
from tests.fix_stack import REPOSITORY


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
    """What is written is whole: handler, queue, test; `dg` finds nothing wrong."""
    assert " passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "successfully" in run(folder, "-m", "dagster_dg_cli.cli", "check", "defs")


def test_nothing_is_overwritten(folder: Path) -> None:
    """Where one file is there already, none is written."""
    handler = folder / "queues" / "web_orders.py"
    handler.write_text("mine = 1\n")
    (folder / "README.md").unlink()
    again = CliRunner().invoke(command, ["init", str(folder), "--group", "web-orders"])
    assert again.exit_code == 1
    assert "is there already: give an empty folder. Nothing was written." in again.output
    assert handler.read_text() == "mine = 1\n"
    assert not (folder / "README.md").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--group", "a b", "--topic", "t"], "cannot be written everywhere as it is"),
        (["--topic", "a b"], "The topic name 'a b' is not legal"),
        (["--topic", "t" * 247], "is not legal"),
        (["--package", "my-queues"], "cannot be imported"),
        (["--package", "class"], "cannot be imported"),
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
