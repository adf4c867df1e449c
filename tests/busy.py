"""A pytest plugin that gives tests all that they may not depend on: `pytest -p tests.busy tests/integration/…`.

Files and their tests come in reverse order, or in one of `--seed=n`. The shared service runs from the moment at which
the shared database is there, and never rests: it looks at all topics and sweeps all groups twenty times a second.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WITHOUT_REST = '''
import importlib.util
import sys
from importlib.abc import MetaPathFinder

COORDINATOR = "sharequeue.service.coordinator.coordinator"


class Finder(MetaPathFinder):
    """Finds the coordinator, and shortens its pauses."""

    def find_spec(self, name, path=None, target=None):
        if name != COORDINATOR:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            module.REST = 0
            module.KEEP_INTERVAL_SECONDS, module.CHANGES_INTERVAL_SECONDS = 1.0, 0.2
            module.Coordinator.__init__.__kwdefaults__.update(interval=0.05, watch_interval=0.05)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
'''
"""Python runs a module `sitecustomize` on its path before the program."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Have `--seed`."""
    parser.addoption("--seed", type=int, help="the order of the tests; without it, reverse")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files, and the tests of each, into another order; a file stays together."""
    by_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.path, []).append(item)
    seed = config.getoption("seed")

    def other(some: list[Any]) -> list[Any]:
        return some[::-1] if seed is None else random.Random(seed).sample(some, len(some))  # noqa: S311

    items[:] = [item for file in other(list(by_file.values())) for item in other(file)]


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Iterator[None]:
    """Start the service as soon as there is a shared database."""
    yield
    if (fixturedef.argname, fixturedef.scope) == ("database", "session"):
        from tests.fixtures import stack  # not before its assertions can be rewritten

        home = request.getfixturevalue("stack").home
        (home / "sitecustomize.py").write_text(WITHOUT_REST)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("PYTHONPATH", str(home))
            stack.start_service(home)
