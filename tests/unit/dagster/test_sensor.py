"""The lag sensor's words and rules, without a server; what it does on the real state is in the integration tests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from sqlalchemy.exc import OperationalError

from sharequeue.dagster import share_group_defs, share_group_resources
from sharequeue.dagster.assets.dead_letters import WRITTEN_UNTIL, reported_until
from sharequeue.dagster.automation import LagSensor
from sharequeue.dagster.sensors import lag, lag_sensor
from sharequeue.dagster.sensors.lag import nothing_to_do, pause_after, reason_to_wait
from sharequeue.dagster.sensors.outages import LONGEST_PAUSE_SECONDS
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.reports.waiting_work import GroupWork, WaitingWork
from tests.fixtures.dagster import share_group

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ACCEPTED = dg.AssetKey(["orders", "accepted"])


def part(**given: Any) -> WaitingWork:
    """One share-partition; what is not given is 0 or None."""
    numbers = ("partition", "lag", "ready_records", "unwritten_letters", "held_letters", "waiting_records")
    offsets = (
        "acquired_records",
        "spso",
        "speo",
        "log_end",
        "delivery_complete_count",
        "highest_delivery_count",
    )
    nothing = ("waiting_until", "blocked_reason", "observed_at", "letters_written_at")
    values = dict.fromkeys((*numbers, *offsets), 0) | dict.fromkeys(nothing) | {"topic": "flights"}
    return WaitingWork(**{**values, **given})


def work(*parts: WaitingWork, members: int = 0, heard: datetime | None = None) -> GroupWork:
    return GroupWork(NOW, parts, members, heard)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """Give an instance in memory."""
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def test_letters_are_reported_after_the_clock_was_set_back(instance: dg.DagsterInstance) -> None:
    """A report up to a time that is in the future now is none, and neither is such a time of letters the last one."""
    letters = dg.AssetKey("dead_letters")
    hour = timedelta(hours=1)
    assert reported_until(instance, letters, NOW) is None
    reported = {WRITTEN_UNTIL: dg.MetadataValue.timestamp(NOW)}
    instance.report_runless_asset_event(dg.AssetMaterialization(letters, metadata=reported))
    assert reported_until(instance, letters, NOW) == NOW
    assert reported_until(instance, letters, NOW - hour) is None
    times = (NOW + hour, NOW - hour, None)
    assert work(*(part(letters_written_at=each) for each in times)).letters_written_at == NOW - hour


Tick = Callable[..., Any]
HUGE = "1" + 400 * "0"
STRANGE_CURSORS = pytest.mark.parametrize(
    "cursor",
    [
        "5",
        "[1]",
        '{"outage": 5}',
        '{"outage": {"until": "x", "failures": 1, "error": "x"}}',
        '{"outage": {"until": 99999999999, "failures": 1, "error": "from before the clock was set back"}}',
        '{"waiting_since": "x", "progress": 5, "share_partitions": 5, "topics": 5}',
        '{"share_partitions": [[1]], "topics": {"flights": "x"}}',
        f'{{"waiting_since": {HUGE}, "topics": {{"flights": {HUGE}}}}}',
        f'{{"outage": {{"until": {HUGE}, "failures": 1, "error": "x"}}}}',
        f'{{"outage": {{"until": 5, "failures": {4300 * "9"}, "error": "x"}}}}',
        '{"waiting_since": NaN, "outage": {"until": Infinity, "failures": 1, "error": "x"}}',
        100_000 * "[",
        100_000 * '{"progress":',
    ],
    ids=lambda cursor: cursor[:60],
)


@pytest.fixture
def asked_of_broker() -> list[str]:
    """Give the topics that the sensor asks the broker for."""
    return []


@pytest.fixture
def tick(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, asked_of_broker: list[str]) -> Tick:
    """Give a function that has the sensor look at `found`; the cursor lasts from tick to tick."""
    kept: list[str | None] = [None]

    def look(
        found: GroupWork | Exception, *, shown: bool = True, set_to: str | None = None, **sensor: Any
    ) -> Any:
        kept[0] = set_to or kept[0]

        def asked(database: object, group_id: str) -> GroupWork:
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(lag, "work_of", asked)
        group = share_group("orders", automation={"sensor": sensor})

        # A broker that has every topic, each with a hundred records, if it can be read.
        def first(group: ShareGroup, names: list[str], *_: object) -> list[SharePartitionStatus] | None:
            asked_of_broker.extend(names)
            if not shown:
                return None
            return [SharePartitionStatus("orders", each, 0, 0, 0, 0, 100, 100) for each in names]

        monkeypatch.setattr(lag, "awaited", first)
        resources = {
            "sharequeue_state": SimpleNamespace(database=None, settings=SimpleNamespace(load=lambda: None))
        }
        with dg.build_sensor_context(instance=instance, resources=resources, cursor=kept[0]) as context:
            answer = lag_sensor(group, [ACCEPTED])(context)
            kept[0] = answer.cursor if isinstance(answer, dg.SensorResult) else context.cursor
            return answer

    return look


def test_the_broker_is_only_queried_for_topics_without_state(tick: Tick, asked_of_broker: list[str]) -> None:
    """As the page on automation says; all else is read in Postgres. What a first run would find is lag."""
    for found in (work(part(lag=5, ready_records=5)), work(part())):
        tick(found)
    assert asked_of_broker == []
    requested = tick(work())
    assert requested.run_requests
    assert json.loads(requested.cursor)["lag_records"] == 100
    assert tick(work(members=1)).skip_message == "lag 100: the group has 1 live member"
    assert set(asked_of_broker) == {"flights"}


def test_a_broker_that_the_daemon_cannot_reach_delays_no_run(tick: Tick) -> None:
    """A run may have other rights, or another network: it is requested, and what it would find is not in the lag."""
    for found, known in ((work(), 0), (work(part(lag=5, ready_records=5, topic="other")), 5)):
        requested = tick(found, shown=False)
        assert requested.run_requests
        assert json.loads(requested.cursor)["lag_records"] == known


def test_waiting_records_request_one_run(tick: Tick) -> None:
    """One run, tagged with the group's own name, for all share-partitions."""
    answer = tick(work(part(lag=5, ready_records=5), part(lag=7, ready_records=7, partition=1)))
    (request,) = answer.run_requests
    assert request.run_key == "orders:first"
    assert request.tags == {"sharequeue/group": "orders", "sharequeue/queue": "orders"}
    assert json.loads(answer.cursor)["lag_records"] == 12


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (work(part()), "nothing to do"),
        (work(part(lag=5, acquired_records=5)), "members hold 5 records"),
        (work(part(lag=5, blocked_reason="paused: a test")), "flights: paused: a test"),
        (work(part(lag=5, held_letters=5)), "5 dead letters are held"),
        (
            work(part(lag=5, waiting_records=5, waiting_until=NOW)),
            "5 records wait for a later time, the first until 00:00:00 UTC",
        ),
        (work(part(lag=5)), "the service is writing"),
        (work(part(ready_records=5), heard=NOW - timedelta(minutes=5)), "no service was running for 300 s"),
        (
            work(part(ready_records=5, observed_at=NOW - timedelta(minutes=2)), heard=NOW),
            "not reached the broker for 120 s",
        ),
        (work(part(lag=5, unwritten_letters=5)), None),
        (work(part(ready_records=5, observed_at=NOW - timedelta(days=1))), None),
        (work(), None),
    ],
)
def test_a_tick_without_a_run_has_the_reason(found: GroupWork, says: str | None) -> None:
    """In the words that the sensor's page in the UI shows; None where a run is wanted."""
    reason = nothing_to_do(share_group("orders"), found)
    assert reason is None if says is None else says in str(reason)


def test_a_few_records_wait_until_they_are_old(tick: Tick) -> None:
    """Below `min_lag` a run is requested once they have waited for `max_age_seconds` since they were seen."""
    few, wanted = work(part(lag=5, ready_records=5)), {"min_lag": 10, "max_age_seconds": 0.001}
    assert "5 records wait; a run is requested from 10 on" in tick(few, min_lag=10).skip_message
    assert tick(few, **wanted).run_requests
    assert tick(work(part()), **wanted).skip_message == "lag 0: nothing to do"
    assert "a run is requested from 10 on" in tick(few, min_lag=10, max_age_seconds=60).skip_message


def ended(*statuses: dg.DagsterRunStatus) -> list[Any]:
    """Runs that have ended, the newest first."""
    return [
        SimpleNamespace(dagster_run=SimpleNamespace(run_id="r", status=status), end_time=1000.0)
        for status in statuses
    ]


def test_a_run_that_changed_nothing_is_followed_by_a_pause(instance: dg.DagsterInstance) -> None:
    """A failed run, a cancelled one, and one that changed nothing are followed by a pause; progress is not."""
    given = LagSensor(pause_after_failure_seconds=300)
    status = dg.DagsterRunStatus

    def reason(runs: list[Any], unchanged: bool, now: float) -> str | None:
        return reason_to_wait(instance, given, runs, unchanged, now)

    assert reason(ended(status.FAILURE), False, 1001) == "run r failed; the next one is requested in 299 s"
    assert "was cancelled" in str(reason(ended(status.CANCELED), False, 1001))
    assert "changed nothing" in str(reason(ended(status.SUCCESS), True, 1001))
    assert reason(ended(status.SUCCESS), False, 1001) is None
    assert reason(ended(status.FAILURE), True, 1300) is None
    assert reason([], True, 1001) is None


def test_a_run_that_ended_in_the_future_delays_nothing(instance: dg.DagsterInstance) -> None:
    """The clock was set back since: the pause is not longer by as much."""
    runs, given = ended(dg.DagsterRunStatus.FAILURE), LagSensor(pause_after_failure_seconds=300)
    assert reason_to_wait(instance, given, runs, False, 1000 - 30)
    assert reason_to_wait(instance, given, runs, False, 1000 - 3600) is None


@STRANGE_CURSORS
def test_a_cursor_set_by_hand_stops_no_sensor(tick: Tick, cursor: str) -> None:
    """What is not of ours in it is left out, and the next cursor is ours again."""
    found = work(part(ready_records=5))
    requested = tick(found, set_to=cursor, min_lag=10, max_age_seconds=60)
    assert requested.skip_message.startswith("lag 0: 5 records wait; a run is requested from 10 on")


@STRANGE_CURSORS
@pytest.mark.parametrize("name", ["orders_lag", "orders_observe", "orders_history"])
def test_all_sensors_read_their_cursors_alike(
    name: str, cursor: str, instance: dg.DagsterInstance, tmp_path: Path, no_environment: pytest.MonkeyPatch
) -> None:
    """Whatever is in it, a tick of each gets as far as the state, which is away here, and stores that."""
    group = share_group("orders", backfill={"start": "2013-01-01"})
    sensors = {each.name: each for each in share_group_defs(group).sensors or ()}
    resources = dict(share_group_resources(home=str(tmp_path)).resources or {})
    with dg.build_sensor_context(instance=instance, resources=resources, cursor=cursor) as context:
        answer: Any = sensors[name](context)
        assert answer.skip_message.startswith("the state cannot be read: ")
        assert json.loads(context.cursor or "")["outage"]["failures"] >= 1


def test_records_that_wait_since_a_time_in_the_future_are_old(tick: Tick) -> None:
    """The clock was set back since they were first seen."""
    few, ahead = work(part(lag=5, ready_records=5)), {"waiting_since": time.time() + 3600}
    assert tick(few, set_to=json.dumps(ahead), min_lag=10, max_age_seconds=60).run_requests


def test_each_further_failure_doubles_the_pause(instance: dg.DagsterInstance) -> None:
    """Up to an hour, or the configured pause if that is longer; a run that did not fail ends the series."""
    given, status = LagSensor(pause_after_failure_seconds=300), dg.DagsterRunStatus
    assert [pause_after(given, n) for n in range(7)] == [300, 300, 600, 1200, 2400, 3600, 3600]
    assert pause_after(LagSensor(pause_after_failure_seconds=7200), 5) == 7200
    thrice = ended(status.FAILURE, status.FAILURE, status.FAILURE, status.SUCCESS, status.FAILURE)
    assert "r failed, as did the 2 before it; the next one is requested in 1199 s" in str(
        reason_to_wait(instance, given, thrice, False, 1001)
    )


def test_a_tick_has_the_reason_of_the_failed_run(instance: dg.DagsterInstance) -> None:
    """That of the step that failed, in one line; a failure that the run itself describes, in its own words."""

    @dg.op
    def fails() -> None:
        raise ValueError("no such column\nand a long explanation")

    @dg.op
    def describes() -> None:
        raise dg.Failure("the pipeline is for another group", allow_retries=False)

    for op, expected in (
        (fails, "ValueError: no such column"),
        (describes, "the pipeline is for another group"),
    ):
        made = dg.GraphDefinition("orders", node_defs=[op]).to_job(tags=share_group("orders").run_tags)
        done = made.execute_in_process(instance=instance, raise_on_error=False)
        (record, *_) = instance.get_run_records(dg.RunsFilter(run_ids=[done.run_id]))
        reason = reason_to_wait(instance, LagSensor(), [record], False, (record.end_time or 0) + 1)
        assert str(reason).endswith(f". The reason: {expected}")


def test_an_unknown_topic_is_tried_once_an_hour(
    tick: Tick, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run makes a group's share-partitions; one that found no topic is not repeated at every tick, but
    after an hour, or after the clock was set back."""
    assert tick(work()).run_requests

    @dg.job(name="orders")
    def job() -> None: ...

    tags = share_group("orders").run_tags
    instance.create_run_for_job(job, status=dg.DagsterRunStatus.SUCCESS, tags=tags)
    assert "topic flights has no state" in tick(work()).skip_message
    monkeypatch.setattr("time.time", lambda before=time.time: before() - 1800)
    assert tick(work()).run_requests


def test_every_run_of_the_groups_jobs_has_its_tag() -> None:
    """However it is launched: the UI and a repetition take the job's tags, daemons and `execute_in_process` those for
    its runs. By the tag a run is told from that of another job with the same name."""
    group = share_group("orders")
    defs = dg.Definitions.merge(share_group_defs(group), share_group_resources())
    for name in ("orders", "orders_checks", "orders_redrive"):
        job = defs.resolve_job_def(name)
        assert job.tags.items() >= group.run_tags.items() <= job.run_tags.items()


def test_a_schedule_requests_no_run_beside_an_active_one(tmp_path: Path, no_environment: Any) -> None:
    """The tick is skipped, with the run as the reason; also while the state cannot be read."""

    @dg.job(name="orders")
    def job() -> None:
        pass

    def tick(instance: dg.DagsterInstance) -> Any:
        group = share_group("orders", automation={"schedule": {"cron": "*/5 * * * *"}})
        (schedule,) = share_group_defs(group).schedules or ()
        assert isinstance(schedule, dg.ScheduleDefinition)
        resources = dict(share_group_resources(home=str(tmp_path)).resources or {})
        with dg.build_schedule_context(instance=instance, resources=resources) as context:
            return schedule.evaluate_tick(context)

    tags = share_group("orders").run_tags
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        (request,) = tick(instance).run_requests
        assert request.tags.items() >= tags.items()
        run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=tags)
        assert tick(instance).skip_message == f"run {run.run_id} of orders is started"


def test_an_outage_is_one_line_and_its_pauses_grow(tick: Tick, monkeypatch: pytest.MonkeyPatch) -> None:
    """While Postgres is away, nothing is asked before its time; then it is, and all is forgotten when it is back."""
    away, now = OperationalError("select", {}, Exception("no route\nto host")), [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    pauses = []
    for _ in range(6):
        said = tick(away).skip_message
        assert said.startswith("the state cannot be read: no route; next attempt in")
        pauses.append(int(said.split()[-2]))
        assert "could not be read: no route" in tick(RuntimeError("asked too early")).skip_message
        now[0] += pauses[-1]
    assert pauses == [60, 120, 240, 480, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]
    assert tick(work(part())).skip_message == "lag 0: nothing to do"
    assert tick(away).skip_message.endswith("in 60 s")
