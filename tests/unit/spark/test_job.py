"""What a pipeline takes for granted when its author does not say it."""

from __future__ import annotations

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


def test_one_topic_may_be_a_text() -> None:
    """It is one topic, as for `lease`, and not as many as it has letters; none is refused where the job is made."""
    assert pipeline(group="g", topics="orders")(handled).topics == ("orders",)
    with pytest.raises(ValueError, match="at least one topic"):
        pipeline(group="g", topics=[])(handled)
