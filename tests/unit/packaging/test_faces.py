"""What a stranger imports: every name is there, and importing the package itself is cheap."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

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


def test_a_function_keeps_its_name_before_the_module_of_that_name() -> None:
    """`lease`, `by_row` and `pipeline` are functions, whichever import comes first."""
    code = (
        "from sharequeue.spark.by_row import Reject\n"
        "import sharequeue.spark.lease, sharequeue.spark.pipeline\n"
        "from sharequeue.spark import by_row, lease, pipeline, session\n"
        "assert callable(by_row) and callable(lease) and callable(pipeline)\n"
        "assert session.spark_session\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
