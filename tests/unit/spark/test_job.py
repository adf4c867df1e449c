"""What a pipeline takes for granted when its author does not say it."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from sharequeue.spark import by_row, pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def handled(records: DataFrame) -> DataFrame:
    return records


def checked(record: dict[str, Any]) -> dict[str, Any]:
    return record


@pytest.mark.parametrize(
    ("handler", "sink"),
    [
        (handled, "handled"),
        (by_row(checked, "a int"), "checked"),
        (lambda records: records, "orders"),
        (by_row(lambda record: record, "a int"), "orders"),
    ],
)
def test_a_sink_without_a_name_is_named_after_the_users_function(handler: Any, sink: str) -> None:
    """So two pipelines do not meet in one folder because both are made by `by_row`, or of a lambda."""
    assert pipeline(group="orders", topics=["orders"])(handler).sink == sink


def test_a_single_topic_may_be_a_string() -> None:
    """It is one topic, as for `lease`, and not as many as it has letters; none is refused where the job is made."""
    assert pipeline(group="g", topics="orders")(handled).topics == ("orders",)
    with pytest.raises(ValueError, match="at least one topic"):
        pipeline(group="g", topics=[])(handled)


def test_a_pipeline_is_remembered_by_module_and_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `by_row` by the user's function; the same whether its file is imported or run as a script; or by a name of
    its own."""

    def name(handler: Any, **given: str) -> str:
        return pipeline(group="g", topics="t", **given)(handler).pipeline_name  # type: ignore[arg-type]

    assert name(handled) == f"{__name__}:handled"
    assert name(by_row(checked, "a int")) == f"{__name__}:checked"
    assert name(handled, name="orders") == "orders"

    def orders(records: DataFrame) -> DataFrame:
        return records

    orders.__module__, orders.__qualname__ = "__main__", "orders"
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert name(orders) == "__main__:orders"  # a notebook
    main.__file__ = "/jobs/my_module.py"
    assert name(orders) == "my_module:orders"
    main.__spec__ = ModuleSpec("jobs.my_module", None)
    assert name(orders) == "jobs.my_module:orders"
    main.__spec__ = ModuleSpec("jobs.__main__", None)
    assert name(orders) == "jobs:orders"


def test_a_callable_object_is_remembered_by_its_class() -> None:
    """It has no name of its own."""

    class Handler:
        def __call__(self, records: DataFrame) -> DataFrame:
            return records

    assert pipeline(group="g", topics="t")(Handler()).pipeline_name.endswith("<locals>.Handler")
