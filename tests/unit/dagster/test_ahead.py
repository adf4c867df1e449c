"""What is imported while Spark starts is what later steps import, under the names that they have."""

import importlib.util

import pytest

from orchestration.definitions import defs
from sharequeue.dagster import ahead
from sharequeue.dagster.ahead import import_ahead


def test_the_steps_and_modules_are_there() -> None:
    """Each step is one of a run's, and each module can be found."""
    steps = {node.name for node in defs().get_repository_def().get_job("flight_delays").nodes}
    assert {f"flight_delays_{step}" for step in ahead.IMPORTS} <= steps
    packages = {module.partition(".")[0] for modules in ahead.IMPORTS.values() for module in modules}
    assert all(importlib.util.find_spec(package) for package in packages)


def test_what_cannot_be_imported_is_left_to_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the run nor the thread fails; a step that needs nothing imports nothing."""
    monkeypatch.setattr(ahead, "IMPORTS", {"reports": ("no_such_module", "colorsys")})
    for steps in (["reports"], ["accepted"]):
        thread = import_ahead(steps)
        thread.join(10)
        assert not thread.is_alive()
