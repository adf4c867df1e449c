"""`sharequeue up --ui` where there is no project."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sharequeue.cli import command
from sharequeue.local import dagster_ui
from sharequeue.local.preflight import StackError


def test_without_a_project_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the folder; there is no data folder afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dagster_ui, "_CHECKOUT", tmp_path)
    result = CliRunner().invoke(command, ["up", "--ui", "--home", str(tmp_path / "home")])
    assert isinstance(result.exception, StackError)
    assert str(result.exception).startswith(f"No workspace.yaml in {tmp_path}")
    assert not (tmp_path / "home").exists()
