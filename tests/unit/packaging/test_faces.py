"""What a stranger imports: every name is there, and importing the package itself is cheap."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module

import pytest

from tools.pages import ROOT

FACES = ("sharequeue", "sharequeue.spark")


@pytest.mark.parametrize("face", FACES)
def test_every_name_is_there(face: str) -> None:
    """Each name of `__all__` can be imported, and is in `dir`; another one is an error as usual."""
    module = import_module(face)
    for name in module.__all__:
        found = getattr(module, name)
        assert found.__name__ == name
        assert name in dir(module)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_importing_loads_nothing_heavy() -> None:
    """Neither a database driver, nor a Kafka client, nor Spark is loaded before a name is used."""
    heavy = {
        "sqlalchemy",
        "psycopg2",
        "confluent_kafka",
        "pydantic",
        "httpx",
        "pyspark",
        "pyarrow",
        "dagster",
    }
    code = f"import sharequeue, sys; print(*({heavy!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_no_function_hides_the_module_of_its_name() -> None:
    """`import sharequeue.spark.lease as x` would be a function if a module of a package exported one of its name."""
    hidden = [
        f"{door.parent.relative_to(ROOT)}: {each.name}"
        for door in (ROOT / "sharequeue").rglob("__init__.py")
        for node in ast.walk(ast.parse(door.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module != ".".join(door.parent.relative_to(ROOT).parts)
        for each in node.names
        if door.with_name(f"{each.asname or each.name}.py").exists()
    ]
    assert hidden == []


def test_no_two_classes_have_one_name() -> None:
    """A class is known by its name alone: no two modules of the library define one of the same name."""
    places: dict[str, list[str]] = {}
    for path in (ROOT / "sharequeue").rglob("*.py"):
        for name in re.findall(r"^class _?(\w+)", path.read_text(), re.MULTILINE):
            places.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
