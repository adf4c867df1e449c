"""Which worker of a run of several has which files."""

from __future__ import annotations

import pytest

from tests.spark_workers import needs_spark, next_file

SPARK = ("tests/integration/spark/test_run.py", "tests/integration/dagster/test_queues.py")
OTHERS = ("tests/unit/test_times.py", "tests/integration/state/test_ends.py")


def test_a_file_that_needs_a_session_is_known_by_its_text() -> None:
    """All in the folder of Spark, and what asks elsewhere for the session or for a function that runs a job."""
    assert [needs_spark(file) for file in (*SPARK, *OTHERS)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("worker", "workers", "spark_first"),
    [
        *((f"gw{number}", 4, number < 2) for number in range(4)),
        *((f"gw{number}", 3, number < 2) for number in range(3)),
        *(("gw0", 2, True), ("gw1", 2, False), ("gw0", 1, True)),
    ],
)
def test_half_of_the_workers_take_spark_first(worker: str, workers: int, spark_first: bool) -> None:
    """And the others take it last, each in the order of the files; nobody waits while there are any."""
    files = [OTHERS[0], SPARK[0], OTHERS[1], SPARK[1]]
    wanted = [*SPARK, *OTHERS] if spark_first else [*OTHERS, *SPARK]
    taken = []
    while files:
        taken.append(next_file(files, worker, workers))
        files.remove(taken[-1])
    assert taken == wanted
