"""Jars of versions that do not fit together are named, before a lease where that is known."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from sharequeue.spark.following import _can_wait
from sharequeue.spark.session import JarsDoNotFit
from sharequeue.spark.sinks.delta import reads_checkpoints
from sharequeue.spark.spark_jobs import missing_in_jars

MISSING = "java.lang.NoSuchMethodError: 'void org.apache.spark.Converter.<init>(boolean, boolean)'"


def test_a_missing_method_is_found_in_sparks_error() -> None:
    """And no other error of a job is one."""
    assert (
        missing_in_jars(PySparkException(f"Job aborted due to stage failure: {MISSING}\n\tat …")) == MISSING
    )
    assert (
        missing_in_jars(PySparkException("Job aborted: java.lang.ArithmeticException: long overflow")) is None
    )


def test_jars_that_do_not_fit_end_a_follower() -> None:
    """Time does not cure it."""
    assert not _can_wait(JarsDoNotFit("the jars do not fit together"))
    assert not JarsDoNotFit.retriable


@pytest.mark.parametrize(
    ("delta", "spark", "reads"),
    [
        ("4.1.0", "4.1.4", False),
        ("4.2.0", "4.1.2", False),
        ("4.1.0", "4.1.1", True),
        ("4.3.1", "4.1.4", True),
        ("4.0.0", "4.0.5", True),
        ("4.10.0-SNAPSHOT", "4.2.0", True),
    ],
)
def test_versions_of_delta_that_cannot_read_their_checkpoints_are_known(
    delta: str, spark: str, reads: bool
) -> None:
    """By the versions of Delta and Spark."""
    assert reads_checkpoints(delta, spark) is reads
