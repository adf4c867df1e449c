"""The demo's judgement: what is done, who is waited for, who may run."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestration.demo.position import Position
from orchestration.demo.runs import sole_demo, stage_of
from orchestration.demo.waiting import Holder, wait_for_holders
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.kafka.topics import LogOffsets
from sharequeue.local.home import Home
from tests.waiting import PATIENCE_S


def status(**figures: int) -> SharePartitionStatus:
    """One share-partition's figures; what is not given is 0."""
    names = (
        *("partition", "state_epoch", "spso", "speo", "log_start", "log_end", "last_stable_offset", "lag"),
        *("in_flight", "available", "acquired", "archiving", "delivery_complete_count", "lost_records"),
        *("highest_delivery_count", "leases"),
    )
    values: dict[str, Any] = dict.fromkeys(names, 0) | figures
    return SharePartitionStatus(
        group_id="flight-delays",
        topic="flights",
        topic_id="id",
        status="active",
        observed_at=datetime.now(UTC),
        next_expiry=None,
        **values,
    )


def logs(*ends: int) -> dict[int, LogOffsets]:
    """The log offsets of partitions that begin at 0."""
    return {partition: LogOffsets(0, end, end) for partition, end in enumerate(ends)}


def test_the_demo_is_done_when_state_and_broker_agree() -> None:
    """Lag 0 in the state is not enough: the broker may have records the state was not told of."""
    drained = (status(log_end=10, spso=10),)
    assert Position(drained, logs(10)).done
    assert not Position(drained, logs(11)).done
    assert Position(drained, logs(11)).waiting == 1


def test_a_group_that_never_ran_has_everything_to_do() -> None:
    """Without a share-partition the whole log waits."""
    position = Position((), logs(5, 6))
    assert (position.lag, position.waiting, position.total) == (11, 11, 11)


def test_held_records_are_not_done_and_do_not_wait() -> None:
    """While a dead run holds everything there is lag, but nothing a new run could take."""
    position = Position((status(log_end=10, lag=10, acquired=10),), logs(10))
    assert not position.done
    assert position.waiting == 0


def test_a_drained_group_waits_for_no_member() -> None:
    """A drained group is not held up by a dead member's session."""
    done = Position((), logs(0))
    result = wait_for_holders(
        lambda: done, lambda position: pytest.fail("asked for holders"), lambda: None, lambda found: None
    )
    assert result is done


def test_waiting_names_the_holders_until_all_locks_are_settled() -> None:
    """Each look that finds holders is told of, and lapsed locks are settled before the next."""
    position = Position((status(log_end=10, lag=10, acquired=10),), logs(10))
    looks = iter([[Holder("run 1a2b", "holds 10 records of flights-0", 0.2)], []])
    said: list[str] = []
    settled: list[bool] = []
    result = wait_for_holders(
        lambda: position,
        lambda position: next(looks),
        lambda: settled.append(True),
        lambda found: said.extend(map(str, found)),
    )
    assert result is position
    assert said == ["run 1a2b holds 10 records of flights-0 for 0 s more"]
    assert settled == [True]


def test_a_killed_demos_run_keeps_the_next_demo_waiting(tmp_path: Path) -> None:
    """The lock belongs to the run's process too: only when both are gone is there nobody at work."""
    home = Home.at(tmp_path)
    waited: list[str] = []
    with sole_demo(home, waited.append) as descriptor:
        run = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"],
            stdin=subprocess.PIPE,
            pass_fds=(descriptor,),
        )
    assert run.stdin is not None

    def say(line: str) -> None:
        waited.append(line)
        assert run.stdin is not None
        run.stdin.close()

    with sole_demo(home, say):
        assert run.wait(PATIENCE_S) == 0
    assert len(waited) == 1


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        (
            "2026 - dagster - INFO - flight_delays - 66 - accepted_flights - round 2: write 55 records",
            "round 2: write 55 records",
        ),
        (
            "x - dagster - DEBUG - flight_delays - 66 - 21 - dead_letters - STEP_START - Started execution of "
            'step "dead_letters".',
            "dead letters",
        ),
        ("2026 - dagster - DEBUG - flight_delays - 66 - 21 - RUN_START - Started", None),
    ],
)
def test_stages_are_read_from_the_runs_log(line: str, stage: str | None) -> None:
    """A line of the log says where the run is, or nothing."""
    assert stage_of(line) == stage
