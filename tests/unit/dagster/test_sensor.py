"""The lag sensor: when it asks for a run, and when it does not."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest

from sharequeue.dagster.sensors import (
    PAUSE_AFTER_FAILURE_SECONDS,
    lag_sensor,
    reason_to_wait,
    waiting_records,
)
from sharequeue.values import SharePartitionStatus
from tests.fix_dagster import share_group

GROUP = "flight-delays"
JOB = "flight_delays"


def status(**figures: int) -> SharePartitionStatus:
    """One share-partition's figures; what is not given is 0."""
    names = (
        *("partition", "state_epoch", "spso", "speo", "log_start", "log_end", "last_stable_offset", "lag"),
        *("in_flight", "available", "acquired", "archiving", "delivery_complete_count", "lost_records"),
        *("highest_delivery_count", "leases"),
    )
    values: dict[str, Any] = dict.fromkeys(names, 0) | figures
    return SharePartitionStatus(
        group_id=GROUP,
        topic="flights",
        topic_id="id",
        status="active",
        observed_at=datetime.now(UTC),
        next_expiry=None,
        **values,
    )


class FakeQueue:
    """Stands in for the state: returns the figures it was given."""

    def __init__(self, *statuses: SharePartitionStatus) -> None:
        self.statuses = list(statuses)

    @property
    def state(self) -> "FakeQueue":
        """Itself, and so are the state's figures."""
        return self

    figures = state

    def describe(self, group_id: str) -> list[SharePartitionStatus]:
        """The figures, for the group that is watched."""
        assert group_id == GROUP
        return self.statuses


@contextmanager
def evaluated(instance: dg.DagsterInstance, *statuses: SharePartitionStatus) -> Iterator[Any]:
    """Give the result of a tick of the sensor."""
    with dg.build_sensor_context(instance=instance, resources={"queue": FakeQueue(*statuses)}) as context:
        yield lag_sensor(share_group(GROUP))(context)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """Give an instance in memory."""
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def add_run(instance: dg.DagsterInstance, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    """A run of the job in a given state."""

    @dg.job(name=JOB)
    def job() -> None: ...

    return instance.create_run_for_job(job, status=status)


def test_no_lag_no_run(instance: dg.DagsterInstance) -> None:
    """A drained group asks for nothing."""
    with evaluated(instance, status(log_end=10, spso=10)) as result:
        assert isinstance(result, dg.SkipReason)
        assert result.skip_message == "lag 0: nothing to do"


def test_lag_requests_a_run(instance: dg.DagsterInstance) -> None:
    """Records that nobody holds ask for one run, tagged with the group's own name."""
    with evaluated(instance, status(lag=5), status(lag=7, partition=1)) as result:
        (request,) = result.run_requests
        assert request.run_key == "flight-delays:first"
        assert request.tags == {"sharequeue/group": GROUP}
        assert json.loads(result.cursor)["lag_records"] == 12


def test_records_that_members_hold_request_nothing(instance: dg.DagsterInstance) -> None:
    """A run could lease nothing while all that lags is held."""
    with evaluated(instance, status(lag=5, acquired=5)) as result:
        assert isinstance(result, dg.SkipReason)


def test_dead_letters_to_write_request_a_run(instance: dg.DagsterInstance) -> None:
    """Records that only wait to be written as dead letters lag too, and want a run."""
    assert waiting_records([status(lag=3, archiving=3)]) == 3


def test_a_run_at_work_is_left_alone(instance: dg.DagsterInstance) -> None:
    """While a run of the job is at work, lag or not, no other is requested."""
    run = add_run(instance, dg.DagsterRunStatus.STARTED)
    with evaluated(instance, status(lag=5)) as result:
        assert isinstance(result, dg.SkipReason)
        assert run.run_id in str(result.skip_message)


def test_a_repeated_tick_asks_for_the_same_run(instance: dg.DagsterInstance) -> None:
    """The run key names the latest run, so a tick repeated after a crash requests nothing twice."""
    run = add_run(instance, dg.DagsterRunStatus.SUCCESS)
    keys = []
    for _ in range(2):
        with evaluated(instance, status(lag=5)) as result:
            keys.append(result.run_requests[0].run_key)
    assert keys == [f"flight-delays:{run.run_id}"] * 2


def test_a_failed_run_is_followed_by_a_pause(instance: dg.DagsterInstance) -> None:
    """A job that fails is not requested again at every tick, but after a pause it is."""
    run = add_run(instance, dg.DagsterRunStatus.STARTED)
    instance.report_run_failed(run)
    (record,) = instance.get_run_records()
    assert record.end_time is not None
    assert "failed" in str(reason_to_wait(record, record.end_time + 1))
    assert reason_to_wait(record, record.end_time + PAUSE_AFTER_FAILURE_SECONDS) is None
