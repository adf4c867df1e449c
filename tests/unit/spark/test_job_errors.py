"""What a user sees of the error of a Spark job: his own lines, never the stack of the JVM."""

from __future__ import annotations

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from sharequeue.spark.handler import HandlerError
from sharequeue.spark.job_errors import JobFailed, cause_of, for_user, in_words

WORKER = "/lib/python/pyspark.zip/pyspark/worker.py"
TRACEBACK = f"""Traceback (most recent call last):
  File "{WORKER}", line 3369, in main
    process()
    ~~~~~~~^^
  File "/site-packages/sharequeue/spark/by_row.py", line 162, in _outcome
    row = self.function(record)
  File "/jobs/orders.py", line 12, in price
    return cents / count
           ~~~~~~^~~~~~~
ZeroDivisionError: division by zero
in 3 orders
"""
FRAMES = (
    "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala:1)\n" * 50
)
RAISED = (
    "An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: Job aborted due to stage "
    "failure: Lost task 0.0 in stage 1.0 (TID 1) (host executor driver): "
    f"org.apache.spark.api.python.PythonException: {TRACEBACK}\n{FRAMES}\nDriver stacktrace:\n{FRAMES}"
    f"Caused by: org.apache.spark.api.python.PythonException: {TRACEBACK}\n{FRAMES}\t... 1 more\n"
)
IN_JAVA = (
    f"An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: Job aborted.\n{FRAMES}"
    f"Caused by: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero.\n{FRAMES}"
)


def test_the_error_of_a_handler_is_its_own_traceback() -> None:
    """With the notes on the error, and no frame of Java, of Spark's worker or of ours."""
    error = Py4JError(RAISED)
    error.add_note("3 records of orders-0 (leases 7) ended without an outcome")
    assert str(in_words(error)).splitlines() == [
        "a Spark job failed: ZeroDivisionError: division by zero (3 records of orders-0 (leases 7) ended without an "
        "outcome)",
        "The last lines of the handler's traceback:",
        '    File "/jobs/orders.py", line 12, in price',
        "      return cents / count",
        "             ~~~~~~^~~~~~~",
        "  ZeroDivisionError: division by zero",
        "  in 3 orders",
    ]


def test_an_error_of_spark_is_its_cause() -> None:
    """In one line, and what else Spark says, without stacks."""
    cause = "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero."
    assert cause_of(Py4JError(IN_JAVA)) == cause
    assert str(in_words(Py4JError(IN_JAVA))).splitlines() == [
        f"a Spark job failed: {cause}",
        "Spark reports:",
        "  An error occurred while calling o1.parquet.",
        "  : org.apache.spark.SparkException: Job aborted.",
    ]
    assert (
        cause_of(Py4JError("An error occurred while calling o1.x.\n: a.B: why\n\tat c.D.e(F.java:1)"))
        == "a.B: why"
    )
    assert (
        cause_of(Py4JError("[CAST_INVALID_INPUT] 'a7' is no INT\n== SQL =="))
        == "[CAST_INVALID_INPUT] 'a7' is no INT"
    )


def test_an_error_that_spark_caused_is_shown_alone() -> None:
    """Spark's whole text is for the log. An error without Spark is shown as it is."""
    ours = HandlerError("what was expected")
    assert for_user(ours) == (ours, "")
    ours.__cause__ = Py4JError(IN_JAVA)
    assert for_user(ours) == (ours, IN_JAVA)
    shown, whole = for_user(Py4JError(IN_JAVA))
    assert isinstance(shown, JobFailed)
    assert whole == IN_JAVA
