"""Which errors of Spark's jobs are the same one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException

from sharequeue.spark.leasing.isolation import Isolation, SparkJob, kind_of
from sharequeue.words.errors import InvalidTimestamp

RAISED = """[TASK_WRITE_FAILED] Task failed. Caused by: org.apache.spark.api.python.PythonException:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
{raised}
        at org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RAISED.format(raised="ValueError: no value at 3"), "ValueError"),
        ("An error occurred.\nTraceback (most recent call last):\n  File\nmy.Own: 17\n", "my.Own"),
        (
            "[TASK_WRITE_FAILED] …\nCaused by: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012",
            "DIVIDE_BY_ZERO",
        ),
        ("Python worker exited unexpectedly: 7\n\tat x", "Python worker exited unexpectedly"),
        ("Lost task 1.0: ExecutorLostFailure (executor 3 exited caused by one of the running tasks)", None),
    ],
)
def test_the_kind_of_an_error_leaves_out_what_differs_by_record(error: str, kind: str | None) -> None:
    """The class of a Python exception, the name of a Spark error, else the first words; never a lost executor."""
    assert kind_of(error) == kind


def test_a_time_that_executors_cannot_seek_ends_the_run_by_name() -> None:
    """Without confluent-kafka there, no delivery is counted, so that no record becomes a letter without a reason."""
    overflow = (
        "ArithmeticException: long overflow\n\tat org.apache.spark.sql.kafka010.KafkaRecordToRowConverter.a"
    )
    lacking = RAISED.format(raised="ModuleNotFoundError: No module named 'confluent_kafka'")
    errors = [overflow, lacking]

    def write(*_: object) -> Any:
        raise PySparkException(errors.pop(0))

    keeper = SimpleNamespace(check=lambda: None)
    isolation = Isolation(cast("Any", None), cast("Any", keeper), write, lambda *_: frozenset())
    with pytest.raises(InvalidTimestamp, match="they lack confluent-kafka or pyarrow"):
        isolation._one(SparkJob([], cast("Any", None), lambda: cast("Any", None)))
