"""Which marked test fails when a rule is broken.

The conformance suite's own tests, called as pytest would call them, with every set of their parameters, on the engine
in Postgres: so that a broken copy of the functions can be held to them without a second stack.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from sharequeue.database import Database
from tests.conformance.postgres_engine import PostgresEngine
from tests.conformance.table import marks


def marked(family: str) -> list[Callable[..., None]]:
    """The tests of the conformance suite that are marked with a rule of a family and run on every engine."""
    names = {test for rule, tests in marks().items() if rule.rpartition("-")[0] == family for test in tests}
    found = []
    for name in sorted(names):
        file, _, test = name.partition("::")
        if file.startswith("conformance/"):
            module = importlib.import_module(f"tests.{file.removesuffix('.py').replace('/', '.')}")
            function = getattr(module, test)
            if "engine" in inspect.signature(function).parameters:
                found.append(function)
    return found


def failing(database: Database, tests: list[Callable[..., None]]) -> list[str]:
    """The tests that fail on the engine in this database, by name."""
    before, PostgresEngine.shared = PostgresEngine.shared, database
    try:
        return [test.__name__ for test in tests if any(_fails(test, given) for given in _parameters(test))]
    finally:
        PostgresEngine.shared = before


def _fails(test: Callable[..., None], given: dict[str, Any]) -> bool:
    try:
        test(**given)
    except BaseException:  # pytest's own failures are no Exceptions
        return True
    return False


def _parameters(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    sets: list[list[dict[str, Any]]] = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names = mark.args[0]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        if names == ["engine"]:
            continue
        values = [value if len(names) > 1 else (value,) for value in mark.args[1]]
        sets.append([dict(zip(names, value, strict=True)) for value in values])
    for chosen in product(*sets):
        given: dict[str, Any] = {"engine": "postgres"}
        for each in chosen:
            given |= each
        yield given
