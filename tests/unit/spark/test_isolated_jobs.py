"""Which errors of Spark's jobs are the same one, and whether a run goes on if every job of a round failed."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sharequeue.domain.errors import InvalidTimestamp
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import READ_UNCOMMITTED, Delivery, Lease, SharePartition
from sharequeue.spark.handler import MostFailed
from sharequeue.spark.isolated_jobs import IsolatedJobs, SparkJob, kind_of
from sharequeue.spark.leasing.crashes import ProcessKilled, parts_of
from sharequeue.spark.output.lease_files import WrittenFiles
from tests.oracle.share_partition import part_size

RAISED = """[TASK_WRITE_FAILED] Task failed. Caused by: org.apache.spark.api.python.PythonException:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
{raised}
        at org.apache.spark.api.python.BasePythonRunner
"""
LIMIT = 5
EXITED = (
    "An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: Job aborted: Lost task 1.0 in "
    "stage 3.0 (TID 7) (h executor driver): [TASK_WRITE_FAILED] Failed. Cause: Python worker exited unexpectedly "
    "(crashed). Consider setting 'spark.python.worker.faulthandler.enabled' to 'true'.\n"
    + "\tat org.apache.spark.Some.frame(Some.scala:1)\n"
    * 200
)
LOST = (
    "Lost task 0.3 in stage 1.0: ExecutorLostFailure (executor 3 exited caused by one of the running tasks)"
)


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
        (EXITED, "Python worker exited unexpectedly"),
        (LOST, None),
    ],
)
def test_the_kind_of_an_error_leaves_out_what_differs_by_record(error: str, kind: str | None) -> None:
    """The class of a Python exception, the name of a Spark error, else the first words; never a lost executor."""
    assert kind_of(error) == kind


def test_a_job_is_written_from_other_reads_until_one_works() -> None:
    """Each error is shown to the job, which gives the next result to write. An error after the last one fails it, and
    one that names what is missing ends the run."""
    failing: dict[Any, str] = {"first": "kept", "second": "scanned", "third": "neither"}
    others: dict[str, Any] = {"kept": "second", "scanned": "third", "neither": None}
    written: list[Any] = []

    def write(handled: Any, leases: object) -> Any:
        written.append(handled)
        if handled in failing:
            raise PySparkException(failing[handled])
        return handled

    def otherwise(error: Exception) -> Any:
        if isinstance(found := others[str(error)], Exception):
            raise found
        return found

    nothing: Any = None
    files: Any = SimpleNamespace(write=write)
    keeper: Any = SimpleNamespace(check=lambda: None)
    isolated = IsolatedJobs(nothing, files, keeper, nothing, delivery_limit=LIMIT)
    first: Any = "first"
    job = SparkJob([], first, otherwise)
    assert "neither" in str(isolated._one(job))
    assert written == ["first", "second", "third"]
    others["neither"] = PySparkException("while the handler plans")
    assert "while the handler plans" in str(isolated._one(job))
    others["neither"] = InvalidTimestamp("they lack a client")
    with pytest.raises(InvalidTimestamp, match="they lack a client"):
        isolated._one(job)
    del failing["third"]
    result: Any = isolated._one(job)
    assert result == "third"


class Kept:
    """The keeper of a run's leases: what was given back, whether with a refund, and why."""

    def __init__(self) -> None:
        self.given_back: list[tuple[int, bool, str | None]] = []

    def check(self) -> None: ...

    def give_back(self, leases: Any, *, refund: bool = False, reason: str | None = None) -> None:
        self.given_back += [(lease.lease_id, refund, reason) for lease in leases]


class Rounds:
    """The rounds of a run without Spark: each job ends as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.kept = Kept()
        nothing: Any = None
        kept: Any = self.kept
        source: Any = SimpleNamespace(unread=lambda errors, places: frozenset())
        self.isolated = IsolatedJobs(source, nothing, kept, nothing, delivery_limit=LIMIT, **options)
        self._monkeypatch = monkeypatch

    def round(self, leases: list[Lease], errors: list[str | None]) -> list[int]:
        """Do a round of one job for each lease; return the ids of the leases to acknowledge."""
        nothing: Any = None
        jobs = [SparkJob([lease], nothing, lambda error: None) for lease in leases]
        results = [WrittenFiles({}, {}, 0) if error is None else Py4JError(error) for error in errors]
        self._monkeypatch.setattr(self.isolated, "_side_by_side", lambda planned: results)
        return [lease.lease_id for lease in self.isolated.write(jobs).leases]


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """Give the rounds of a run that has done nothing yet."""
    return Rounds(monkeypatch)


def leased(number: int, records: int, deliveries: int = 1, *, suspects: bool | None = None) -> Lease:
    """A lease of so many records of `orders-0`, which are suspects from the second delivery on."""
    return Lease(
        *(number, SharePartition("g", "orders", 0), 1, "m", 1, UUID(int=number), datetime.now(UTC), 30_000),
        (Delivery(deliveries, OffsetSet.of((100 * number, 100 * number + records))),),
        READ_UNCOMMITTED,
        suspects=deliveries > 1 if suspects is None else suspects,
        last_attempt=deliveries == LIMIT,
    )


def test_the_first_crash_does_not_end_the_run_and_says_what_follows(
    rounds: Rounds, caplog: pytest.LogCaptureFixture
) -> None:
    """The records are given back once, as suspects with their reason. The warning names them, their parts and how
    many failures are by design, in one line without a frame of Java."""
    with caplog.at_level(logging.WARNING):
        assert rounds.round([leased(1, 60_000)], [EXITED]) == []
    assert rounds.kept.given_back == [
        (
            1,
            False,
            "ProcessKilled: killed its process: Python worker exited unexpectedly (crashed)",
        )
    ]
    (said,) = caplog.messages
    assert said.startswith(
        "60,000 records of orders-0 (leases 1) ended without an acknowledgement: Python worker exited unexpectedly "
        "(crashed). These records are suspects: one of them may have killed the process. They are delivered again in "
        "16 parts, each a separate Spark job. The part with the cause fails again and is divided again, by design: "
        "up to 4 more failures, until the cause is alone and is given up. All other records are processed; the run "
        "goes on"
    )
    assert "\n" not in said
    assert rounds.round([leased(2, 3750, 2), leased(3, 3750, 2)], [None, EXITED]) == [2]
    assert "suspects" not in caplog.messages[1]


def test_parts_that_all_fail_like_the_whole_end_the_run_with_their_deliveries(rounds: Rounds) -> None:
    """No record is the cause: nothing is given back at the cost of a delivery, also if an earlier round succeeded."""
    for worked in (False, True):
        if worked:
            rounds.round([leased(1, 10)], [None])
        rounds.round([leased(2, 10)], [EXITED])
        before = list(rounds.kept.given_back)
        with pytest.raises(
            MostFailed, match=r"all 2 Spark jobs .*since the process died before.*Check whether"
        ):
            rounds.round([leased(3, 5, 2), leased(4, 5, 2)], [EXITED, EXITED])
        assert rounds.kept.given_back == before  # the run refunds what this error leaves


def test_executors_that_are_lost_for_the_whole_and_its_parts_cost_one_delivery(rounds: Rounds) -> None:
    """The loss of an executor is no evidence about the handler: the run ends, and only the first crash counts."""
    rounds.round([leased(1, 10)], [LOST])
    with pytest.raises(ProcessKilled, match="deliveries of this round were given back"):
        rounds.round([leased(2, 5, 2), leased(3, 5, 2)], [LOST, LOST])
    assert [(number, refund) for number, refund, _ in rounds.kept.given_back] == [
        (1, False),
        (2, True),
        (3, True),
    ]


def test_a_crash_on_a_single_record_ends_a_run_without_a_success(rounds: Rounds) -> None:
    """The handler may be the cause as well. The message says so first, and a few lines of Spark's come last."""
    with pytest.raises(ProcessKilled) as raised:
        rounds.round([leased(1, 1)], [EXITED])
    first, *below = str(raised.value).splitlines()
    assert first.startswith("A process died with 1 record of orders-0 (leases 1): Python worker exited")
    assert "after up to 4 more failures, by design, it is given up. Check whether memory ran out" in first
    assert below[0] == "Spark reports:"
    assert len(below) == 3
    assert "\tat" not in str(raised.value)
    assert [number for number, refund, _ in rounds.kept.given_back if not refund] == [1]


def test_a_crash_on_a_single_record_does_not_end_a_run_with_a_success(rounds: Rounds) -> None:
    """Other records were processed, so it is the cause: it fails until its last delivery, and then it is named."""
    rounds.round([leased(1, 2), leased(2, 2)], [None, EXITED])
    for deliveries in range(2, LIMIT + 1):
        assert rounds.round([leased(2, 1, deliveries)], [EXITED]) == []
    assert [lease.deliveries[0].delivery_count for lease in rounds.isolated.given_up] == [LIMIT]


def test_three_last_attempts_in_a_row_end_the_run(rounds: Rounds) -> None:
    """Whatever worked before: three records are given up, and then somebody has to look."""
    rounds.round([leased(1, 2)], [None])
    for number in (2, 3):
        rounds.round([leased(number, 1, LIMIT)], [EXITED])
    with pytest.raises(ProcessKilled, match="its last delivery, alone: it is given up"):
        rounds.round([leased(4, 1, LIMIT)], [EXITED])
    assert [lease.lease_id for lease in rounds.isolated.given_up] == [2, 3, 4]


def test_rounds_without_suspects_that_fail_one_after_the_other_are_bounded(rounds: Rounds) -> None:
    """One may have been leased before the crash, others are of other share-partitions; then the run ends."""
    for number in (1, 2, 3):
        assert rounds.round([leased(number, 10)], [EXITED]) == []
    with pytest.raises(ProcessKilled, match="given back"):
        rounds.round([leased(4, 10)], [EXITED])
    assert [refund for _, refund, _ in rounds.kept.given_back] == [False, False, False, True]


def test_an_exception_of_a_task_ends_the_run_as_it_is(rounds: Rounds) -> None:
    """It names its own cause. So does a round in which not only processes died."""
    raised = RAISED.format(raised="ValueError: no value at 3")
    for errors in ([raised], [EXITED, raised]):
        leases = [leased(number, 10) for number in range(len(errors))]
        with pytest.raises(Py4JError):
            rounds.round(leases, [*errors])
    assert rounds.kept.given_back == []


def test_with_failed_share_none_each_failed_round_costs_a_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `failed_share=None` nothing is given back with a delivery; the run ends all the same."""
    rounds = Rounds(monkeypatch, stop_alike=False)
    rounds.round([leased(1, 10)], [EXITED])
    with pytest.raises(ProcessKilled, match="are delivered again in 4 parts"):
        rounds.round([leased(2, 5, 2), leased(3, 5, 2)], [EXITED, EXITED])
    assert not any(refund for _, refund, _ in rounds.kept.given_back)


@pytest.mark.parametrize(
    ("records", "deliveries"), [(60_000, 1), (3750, 2), (235, 3), (15, 4), (9, 5), (1, 1)]
)
def test_a_warning_names_as_many_parts_as_the_state_makes(records: int, deliveries: int) -> None:
    """As many as the state will make of the lease."""
    size = part_size(records, LIMIT - deliveries) if deliveries < LIMIT else 1
    assert parts_of(leased(1, records, deliveries), LIMIT) == -(-records // size)
