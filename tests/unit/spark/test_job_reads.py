"""In which ways the records of a job are read, one after the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from sharequeue.domain.errors import InvalidTimestamp
from sharequeue.spark.job_reads import JobReads
from sharequeue.spark.kept_records import NOTHING_KEPT, KeptReads

DAMAGED = PySparkException("the file is gone")
OVERFLOW = PySparkException(
    "ArithmeticException: long overflow\n\tat org.apache.spark.sql.kafka010.KafkaRecordToRowConverter.a"
)
LACKING = PySparkException("ModuleNotFoundError: No module named 'confluent_kafka'")
OTHER = PySparkException("the handler fails")
KEPT = KeptReads({1: ()})


class Reads:
    """A job whose handler is called, and fails as it is told."""

    def __init__(self, *fails: Exception, keeps: bool = True) -> None:
        self.fails = list(fails)
        self.tried: list[tuple[bool, bool]] = []
        """What each call has read: whether from kept files, whether by offset."""
        files: Any = SimpleNamespace(
            found_damaged=lambda error, leases, kept: error is DAMAGED and kept is KEPT
        )
        self.job: Any = JobReads([], files if keeps else None, KEPT if keeps else NOTHING_KEPT, self.handle)

    def handle(self, kept: KeptReads, by_offset: bool) -> Any:
        self.tried.append((kept is KEPT, by_offset))
        if self.fails:
            raise self.fails.pop(0)
        return self.tried[-1]


@pytest.mark.parametrize(
    ("errors", "ways"),
    [
        ((DAMAGED, OVERFLOW), [(False, False), (False, True)]),
        ((OVERFLOW, DAMAGED), [(True, True), (False, True)]),
    ],
)
def test_files_and_scans_are_given_up_one_after_the_other(
    errors: tuple[Exception, ...], ways: list[tuple[bool, bool]]
) -> None:
    """In the order of the errors, each once; the same error again has no other way."""
    reads = Reads()
    assert reads.job.handled() == (True, False)
    assert [reads.job.otherwise(error) for error in errors] == ways
    assert [reads.job.otherwise(error) for error in (*errors, OTHER)] == [None, None, None]


def test_a_handler_that_reads_while_it_plans_gets_the_other_ways() -> None:
    """Each error is one of a call of the handler."""
    reads = Reads(OVERFLOW, DAMAGED)
    assert reads.job.handled() == (False, True)
    assert reads.tried == [(True, False), (True, True), (False, True)]
    with pytest.raises(PySparkException, match="the handler fails"):
        Reads(DAMAGED, OTHER).job.handled()


def test_executors_that_cannot_read_by_offset_end_the_run_by_name() -> None:
    """Without confluent-kafka there, no delivery is counted, so that no record becomes a letter without a reason."""
    reads = Reads(keeps=False)
    assert reads.job.otherwise(LACKING) is None
    assert reads.job.otherwise(OVERFLOW) == (False, True)
    with pytest.raises(InvalidTimestamp, match="they lack confluent-kafka or pyarrow"):
        reads.job.otherwise(LACKING)
