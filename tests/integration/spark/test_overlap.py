"""Two rounds of a run are held at once: whatever ends the run then, each record counts once and all is given back."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRecordState, ShareError
from sharequeue.domain.values import Acknowledged
from sharequeue.spark import lease_results
from sharequeue.spark import rounds as rounds_module
from sharequeue.spark.handler import Handler, MostFailed
from sharequeue.spark.leasing.renewal import LockLost
from sharequeue.spark.outcomes import most_failed
from sharequeue.spark.output.manifest import read_output
from sharequeue.spark.progress import Progress
from sharequeue.state import State, locks
from sharequeue.state.calls import LeaseAcknowledgement
from tests import single
from tests.fixtures.pipelines import Assigned, Holder, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S, wait_until

RECORDS, A_ROUND = 30, 10
LONG = "java_method('java.lang.Thread', 'sleep', 40000L)"
"""A round of such records takes longer than a test may, unless it is cancelled."""


ONE_CALL = {"sharequeue_retry_keep_enable": "false"}
"""A handler that leaves out the raw record is called twice at first, if the group keeps any."""


def napping(since: int, nap: str = LONG, outcome: str = "'accept'") -> Handler:
    """A handler that sleeps on the executor for each record from that offset on."""

    def handler(records: DataFrame) -> DataFrame:
        kept = records.select("topic", "partition", "offset", "lease_id")
        slept = fn.expr(f"if(offset >= {since}, {nap}, null)")
        return kept.withColumns({"outcome": fn.expr(outcome), "slept": slept})

    return handler


@pytest.fixture
def filled(make_topic: MakeTopic, produce: Produce) -> str:
    """A topic of one partition with four rounds of records."""
    topic = make_topic(1)
    produce(topic, 0, range(RECORDS))
    return topic


@pytest.fixture
def until_tasks_run(spark: SparkSession) -> Callable[[], None]:
    """Give a function that waits until a task of Spark's is at work."""
    tracker = spark.sparkContext.statusTracker()

    def at_work() -> bool:
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return any(stage.numActiveTasks for stage in stages if stage)

    return lambda: wait_until(at_work, otherwise="no task is at work")


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Give an event for which a round waits before it reads back what it wrote: the next one has come so far by then,
    however busy the machine is."""
    event, read_back = threading.Event(), vars(lease_results)["read_back"]

    def late(*given: Any, **named: Any) -> Any:
        assert event.wait(PATIENCE_S), "the next round has not come so far"
        return read_back(*given, **named)

    monkeypatch.setattr(lease_results, "read_back", late)
    return event


def deliveries(state: State, holder: Holder) -> list[int]:
    """How often each record was delivered that a new lease has: nobody holds anything else any more."""
    (at,) = holder.assignment
    assert state.figures.leases(at.group_id) == []
    lease = single.acquire(state, at, holder.member_id, None, RECORDS)
    assert lease is not None
    found = [d.delivery_count for d in lease.deliveries for _ in d.offsets.iter_offsets()]
    single.release(state, lease, refund=True)
    return found


def each_once(spark: SparkSession, state: State, run_job: RunJob, holder: Holder) -> None:
    """What is left is accepted in a run that is not disturbed; then each record is in the output once."""
    (at,) = holder.assignment
    job = job_of(at.group_id, at.topic, all_accepted)
    assert run_job(job, holder).drained
    rows = read_output(spark, state, at.group_id, job.sink).select("offset").collect()
    assert Counter(row["offset"] for row in rows) == dict.fromkeys(range(RECORDS), 1)
    assert state.figures.verify(at.group_id) == []


def test_the_next_round_is_leased_while_the_last_is_at_work(
    group: str,
    filled: str,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    go_on: threading.Event,
) -> None:
    """And written before the last is done. The figures are those of rounds one after the other; a round that took all
    there was is followed by none until it is acknowledged, so that its releases come again in order."""
    said: list[Progress] = []

    def tell(progress: Progress) -> None:
        said.append(progress)
        if (progress.round, progress.stage) == (2, "plan"):
            go_on.set()

    holder = assigned(filled)
    third = napping(RECORDS, outcome="if(offset % 3 = 0, 'release', 'accept')")
    job = job_of(group, filled, third, deliveries_per_run=2, failed_share=None)
    report = run_job(job, holder, max_records=A_ROUND, progress=tell)
    order = [(each.round, each.stage) for each in said]
    assert order.index((2, "plan")) < order.index((1, "done")) < order.index((2, "done"))
    assert [each.number for each in report.rounds] == list(range(1, len(report.rounds) + 1))
    assert [each.leased for each in report.rounds[:3]] == [A_ROUND] * 3
    assert (report.accepted, report.released, report.drained) == (20, 20, True)
    assert report.leased == report.accepted + report.released
    assert [each for each in said if each.stage == "done"][-1].records_done == report.leased
    each_once(spark, state, run_job, holder)


def test_a_round_that_begins_too_late_costs_no_delivery(
    group: str,
    filled: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was leased while the last was written. Then the time was up: its deliveries are given back."""
    holder = assigned(filled)
    passed = [0.0]
    monkeypatch.setattr(
        rounds_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0])
    )

    def an_hour_passes(progress: Progress) -> None:
        if (progress.round, progress.stage) == (2, "plan"):
            passed[0] = 3600.0

    report = run_job(
        job_of(group, filled, all_accepted),
        holder,
        max_records=A_ROUND,
        max_seconds=1800,
        progress=an_hour_passes,
    )
    assert [each.accepted for each in report.rounds] == [A_ROUND]
    assert not report.drained
    assert deliveries(state, holder) == [1] * (RECORDS - A_ROUND)


def test_a_handler_that_fails_on_the_next_round_lets_the_last_be_acknowledged(
    group: str, filled: str, assigned: Assigned, run_job: RunJob, spark: SparkSession, state: State
) -> None:
    holder = assigned(filled, **ONE_CALL)
    rounds: list[int] = []

    def second_fails(records: DataFrame) -> DataFrame:
        rounds.append(len(rounds))
        if len(rounds) == 2:
            raise LookupError("no such table")
        return all_accepted(records)

    with pytest.raises(LookupError, match="no such table"):
        run_job(job_of(group, filled, second_fails), holder, max_records=A_ROUND)
    assert deliveries(state, holder) == [1] * (RECORDS - A_ROUND)
    each_once(spark, state, run_job, holder)


class _Refusing(State):
    """It acknowledges nothing: an error comes as soon as the next round is at work."""

    def __init__(self, database: Database, wait: Callable[[], None]) -> None:
        super().__init__(database)
        self.wait = wait

    def acknowledge(
        self, acknowledgements: Sequence[LeaseAcknowledgement], *, request_id: UUID | None = None
    ) -> list[Acknowledged | ShareError]:
        self.wait()
        raise ConnectionError("away")


def test_an_error_of_the_last_round_cancels_the_next(
    group: str,
    filled: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    database: Database,
    until_tasks_run: Callable[[], None],
    go_on: threading.Event,
) -> None:
    """It is not waited for. Both are given back: the failed round's records are suspects, which come in parts; a
    task of the other had run, too, but its records are none."""
    holder = assigned(filled)
    refusing = _Refusing(database, until_tasks_run)

    def tell(progress: Progress) -> None:
        if (progress.round, progress.stage) == (2, "write"):
            go_on.set()

    with pytest.raises(ConnectionError, match="away"):
        run_job(
            job_of(group, filled, napping(A_ROUND)),
            holder,
            state=refusing,
            max_records=A_ROUND,
            progress=tell,
        )
    parts = run_job(job_of(group, filled, all_accepted), holder, max_rounds=1).rounds[0]
    assert (parts.accepted, len(parts.lease_ids) > 2) == (RECORDS, True)
    assert state.figures.describe(group)[0].lag == 0


def test_a_handler_that_fails_most_records_costs_neither_round_a_delivery(
    group: str,
    filled: str,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next round was at work when the last one was seen to have failed; the handler is to blame for both."""
    monkeypatch.setattr(most_failed, "FAILED_RECORDS", 5)
    holder = assigned(filled)
    job = job_of(group, filled, napping(A_ROUND, outcome="'release'"))
    with pytest.raises(MostFailed):
        run_job(job, holder, max_records=A_ROUND)
    assert deliveries(state, holder) == [1] * RECORDS


@pytest.mark.parametrize(
    ("number", "stage", "how"),
    [
        (1, "acknowledge", "lost"),
        (2, "plan", "stopped"),
        *(
            pytest.param(number, stage, how, marks=pytest.mark.deep)
            for number, stage in [(2, "acquire"), (2, "plan"), (1, "read back"), (1, "acknowledge")]
            for how in ("lost", "stopped")
            if (number, stage, how) not in ((1, "acknowledge", "lost"), (2, "plan", "stopped"))
        ),
    ],
)
def test_a_lost_lock_or_an_interrupt_ends_both_rounds(
    group: str,
    filled: str,
    assigned: Assigned,
    run_job: RunJob,
    spark: SparkSession,
    state: State,
    until_tasks_run: Callable[[], None],
    go_on: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    stage: str,
    how: str,
) -> None:
    """A lock is lost, or somebody stops the run, while one round is written and the other is planned or acknowledged:
    Spark's job is cancelled, nothing is held any more, and each record counts once."""
    holder = assigned(filled, **ONE_CALL)
    # A lost lock is seen at once; one of a minute is lost by nobody's sleep.
    monkeypatch.setattr(locks, "RENEWALS_PER_LOCK", 120)

    def disturb() -> None:
        if how == "lost":
            state.release_member(group, holder.member_id)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    def tell(progress: Progress) -> None:
        at = (progress.round, progress.stage)
        if stage == "read back" or at == (2, "write"):
            go_on.set()
        if at == (number, stage) and stage != "plan":
            if stage != "read back":  # the next round is about to be written, and tells it after this
                until_tasks_run()
            disturb()

    nap = napping(0 if number == 2 else A_ROUND)
    calls: list[int] = []

    def handler(records: DataFrame) -> DataFrame:
        calls.append(len(calls) + 1)
        if stage == "plan" and len(calls) == 2:
            until_tasks_run()
            disturb()
        return nap(records)

    job = job_of(group, filled, handler)
    with pytest.raises((LockLost, InvalidRecordState) if how == "lost" else KeyboardInterrupt):
        run_job(job, holder, max_records=A_ROUND, progress=tell)
    go_on.set()
    (status,) = state.figures.describe(group)
    # Of what was leased; the acknowledgement may have been under way already.
    assert (status.acquired, status.available) in [(0, 2 * A_ROUND), (0, A_ROUND)]
    assert state.figures.leases(group) == []
    each_once(spark, state, run_job, holder)
