"""The lag sensor on the real state: it asks for one run where one would find work, and else says why not."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import dagster as dg
import pytest

# Runs and backfills as Dagster stores them, without executing any: their records have no public names.
from dagster._core.events import AssetMaterializationPlannedData, EngineEventData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)

from sharequeue.dagster import signs_of_life
from sharequeue.dagster.definitions import share_group_defs
from sharequeue.dagster.names import CLIENT_ID_PREFIX, MEMBER_TAG
from sharequeue.dagster.resources import SettingsResource, StateResource
from sharequeue.dagster.sensors import active_runs, lag_sensor
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.signs_of_life import AT_WORK, CLOCK_SET_BACK, CLOSED
from sharequeue.database import Database
from sharequeue.domain.values import AcknowledgeType, Lease, LeaseOutput, SharePartition
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.local.stack import StackInfo
from sharequeue.outputs.manifest import PENDING
from sharequeue.reports import waiting_work
from sharequeue.state import State
from sharequeue.state.replicas import hear_replica
from tests import single
from tests.fixtures.dagster import share_group
from tests.fixtures.stack import MakeTopic
from tests.waiting import pass_time

STARTED, CANCELING = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
RECORDS = 1000
GROUP = share_group("g", topics=["t"])
ACCEPTED, DEAD_LETTERS = dg.AssetKey(["g", "accepted"]), dg.AssetKey(["g", "dead_letters"])
REPLAYED, OTHER = dg.AssetKey(["g", "replayed"]), dg.AssetKey("other")
MADE = [ACCEPTED, DEAD_LETTERS]


@pytest.fixture
def at_configs() -> Mapping[str, str | int]:
    """All records in one lease; a breaker that opens when more than half of a hundred records fail."""
    return {
        "share.partition.max.record.locks": 2_000_000,
        "sharequeue.circuit.breaker.failure.percent": 50,
        "sharequeue.circuit.breaker.open.ms": 60_000,
    }


@dataclass
class Case:
    """A group with a thousand records in its only share-partition, and an instance without runs."""

    database: Database
    at: SharePartition
    instance: dg.DagsterInstance
    cursor: str | None = None
    home: Path | None = None

    @property
    def state(self) -> State:
        return State(self.database)

    def look(self, group: ShareGroup = GROUP) -> dg.SensorResult | dg.SkipReason:
        """One tick."""
        resources = {
            "sharequeue_state": SimpleNamespace(
                database=self.database, settings=SettingsResource(home=str(self.home))
            )
        }
        with dg.build_sensor_context(self.instance, self.cursor, resources=resources) as context:
            answer = lag_sensor(group, MADE)(context)
            self.cursor = answer.cursor if isinstance(answer, dg.SensorResult) else context.cursor
        assert isinstance(answer, dg.SensorResult | dg.SkipReason)
        return answer

    def said(self) -> str | None:
        """Why a tick asks for nothing; None when it asks for exactly one run."""
        answer = self.look()
        if isinstance(answer, dg.SkipReason):
            return answer.skip_message
        assert len(answer.run_requests or ()) == 1
        return None

    def lease(self, records: int = RECORDS) -> Lease:
        """Some member leases."""
        lease = single.acquire(self.state, self.at, "member", None, records)
        assert lease is not None
        return lease

    def end(self, how: AcknowledgeType, records: int = RECORDS, wait: int = 0) -> None:
        """Records end so; what is released waits for so many seconds."""
        lease = self.lease(records)
        not_before = self.state.now() + timedelta(seconds=wait) if wait else None
        single.acknowledge(self.state, lease, {how: lease.offsets}, not_before=not_before)

    def pend(self) -> None:
        """All are accepted, and a run ended before its table of a lakehouse had them."""
        lease = self.lease()
        single.acknowledge(
            self.state,
            lease,
            {ACCEPT: lease.offsets},
            outputs=[LeaseOutput("s", f"{PENDING}/folder", RECORDS)],
        )

    def join(self, client_id: str = "") -> None:
        """A member joins."""
        request = HeartbeatRequest(
            "g", str(uuid.uuid4()), 0, subscribed_topic_names=("t",), client_id=client_id
        )
        assert heartbeat(self.database, request).error_code == 0

    def heard(self, writes: bool = False) -> None:
        """A replica of the service is at work."""
        hear_replica(self.database, "replica", writes_letters=writes)

    def run(
        self,
        status: dg.DagsterRunStatus = dg.DagsterRunStatus.QUEUED,
        job: str = "g",
        assets: frozenset[dg.AssetKey] | None = None,
        checks: frozenset[dg.AssetCheckKey] | None = None,
        tagged: bool | None = None,
        member: str | None = None,
        tags: Mapping[str, str] | None = None,
        **planned: dg.AssetKey,
    ) -> dg.DagsterRun:
        """A run as Dagster has it after it was created, of the group's job with its tags; `planned` are the assets
        that its plan makes."""

        origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "repository")
        run = self.instance.add_run(
            dg.DagsterRun(
                job,
                status=status,
                asset_selection=assets,
                asset_check_selection=checks,
                tags={
                    **(GROUP.run_tags if tagged or (tagged is None and job == GROUP.name) else {}),
                    **({} if member is None else {MEMBER_TAG: member}),
                    **(tags or {}),
                },
                remote_job_origin=RemoteJobOrigin(origin, job),
            )
        )
        for key in planned.values():
            self.instance.report_dagster_event(_planned(job, key), run.run_id)
        return run

    def backfill(self, *assets: dg.AssetKey) -> None:
        """A backfill whose next runs are not made yet."""
        self.instance.add_backfill(
            PartitionBackfill("b", BulkActionStatus.REQUESTED, False, {}, 0.0, asset_selection=assets)
        )


def _planned(job: str, key: dg.AssetKey) -> dg.DagsterEvent:
    return dg.DagsterEvent(
        dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED.value,
        job,
        event_specific_data=AssetMaterializationPlannedData(key),
    )


@pytest.fixture
def case(private_database: Database, at: SharePartition) -> Iterator[Case]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Case(private_database, at, instance)


def later(case: Case, seconds: float) -> None:
    pass_time(case.database, seconds)


SITUATIONS: dict[str, tuple[list[Callable[[Case], object]], str | None]] = {
    "records that nobody has": ([], None),
    "drained": ([lambda c: c.end(ACCEPT)], "lag 0: nothing to do"),
    "new records after that": (
        [lambda c: c.end(ACCEPT), lambda c: single.observe(c.state, c.at, "id", 0, 1001, 1001)],
        None,
    ),
    "a member holds all": ([lambda c: c.lease()], "members hold 1,000 records"),
    "its lock has lapsed": ([lambda c: c.lease(), lambda c: later(c, 60)], None),
    "paused": ([lambda c: c.state.administration.pause("g", "a test")], "paused: a test"),
    "paused, with letters to write": (
        [lambda c: c.end(REJECT, 10), lambda c: c.state.administration.pause("g", "a test")],
        None,
    ),
    "all wait for their time": (
        [lambda c: c.end(ACCEPT, 960), lambda c: c.end(RELEASE, 40, wait=60)],
        "40 records wait for a later time",
    ),
    "their time has come": (
        [lambda c: c.end(ACCEPT, 960), lambda c: c.end(RELEASE, 40, wait=60), lambda c: later(c, 61)],
        None,
    ),
    "the breaker is open": ([lambda c: c.end(RELEASE, 100)], "circuit breaker open: 100 of the last 100"),
    "it is time to probe": ([lambda c: c.end(RELEASE, 100), lambda c: later(c, 61)], None),
    "a probe is held": (
        [lambda c: c.end(RELEASE, 100), lambda c: later(c, 61), lambda c: c.lease()],
        "circuit breaker probing",
    ),
    "letters that nobody writes": ([lambda c: c.end(ACCEPT, 990), lambda c: c.end(REJECT, 10)], None),
    "letters that the service writes": (
        [lambda c: c.end(ACCEPT, 990), lambda c: c.end(REJECT, 10), lambda c: c.heard(writes=True)],
        "the service is writing",
    ),
    "letters that are held": (
        [
            lambda c: c.end(ACCEPT, 990),
            lambda c: c.end(REJECT, 10),
            lambda c: c.state.dead_letters.hold(c.at, "no such topic"),
        ],
        "10 dead letters are held",
    ),
    "rows that a table has still to take": ([lambda c: c.pend()], None),
    "the topic was deleted": (
        [lambda c: c.state.administration.note_topics({"t": None})],
        "t: topic t was deleted: group",
    ),
    "the topic was made anew": (
        [lambda c: single.observe(c.state, c.at, "another id", 0, 5, 5)],
        "t: topic t was deleted and created again. The state of group",
    ),
    "a member is at work": ([lambda c: c.join()], "the group has 1 live member"),
    "its session has expired": ([lambda c: c.join(), lambda c: later(c, 60)], None),
    "the service is at work": ([lambda c: c.heard()], None),
    "the service is silent": (
        [lambda c: c.heard(), lambda c: later(c, 1000)],
        "no service was running for 10",
    ),
    "the broker is silent": (
        [lambda c: later(c, 1000), lambda c: c.heard()],
        "the service has not reached the broker for 10",
    ),
    "a run of the job is queued": ([lambda c: c.run()], "of g is queued"),
    "a run of the job is being cancelled": (
        [lambda c: c.run(dg.DagsterRunStatus.CANCELING)],
        "of g is canceling",
    ),
    "the UI's run": (
        [lambda c: c.run(job="__ASSET_JOB", assets=frozenset([ACCEPTED]))],
        "of __ASSET_JOB is queued",
    ),
    "another job's run over the assets": (
        [lambda c: c.run(dg.DagsterRunStatus.STARTED, job="nightly", a=OTHER, b=DEAD_LETTERS)],
        "of nightly is started",
    ),
    "another job's run elsewhere": ([lambda c: c.run(job="nightly", a=OTHER)], None),
    "another location's job of the same name": ([lambda c: c.run(tagged=False, a=OTHER)], None),
    "a tagged run": ([lambda c: c.run(job="g_redrive", tagged=True)], "of g_redrive is queued"),
    "a run of a replay": ([lambda c: c.run(job="r", assets=frozenset([REPLAYED]), tagged=True)], None),
    "a replay's job": ([lambda c: c.run(job="g_replay", tagged=True, a=REPLAYED)], None),
    "a run of checks alone": (
        [lambda c: c.run(job="c", checks=frozenset([dg.AssetCheckKey(DEAD_LETTERS, "x")]), tagged=True)],
        None,
    ),
    "a backfill": ([lambda c: c.backfill(OTHER, ACCEPTED)], "backfill b is requested"),
    "a backfill elsewhere": ([lambda c: c.backfill(OTHER)], None),
    "a run whose member is gone": ([lambda c: c.run(STARTED, member="gone")], None),
    "its member holds a lock": (
        [lambda c: c.lease(10), lambda c: c.run(STARTED, member="member")],
        "of g is started",
    ),
    "a run that joined under its name, and whose session has expired": (
        [lambda c: c.join(CLIENT_ID_PREFIX + c.run(STARTED).run_id), lambda c: later(c, 60)],
        None,
    ),
    "a run that has ended": ([lambda c: c.run(dg.DagsterRunStatus.SUCCESS)], None),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_run_is_requested_where_one_would_find_work(case: Case, situation: str) -> None:
    steps, says = SITUATIONS[situation]
    for step in steps:
        step(case)
    said = case.said()
    assert said is None if says is None else says in str(said)


def test_a_missing_topic_requests_no_run(case: Case, stack: StackInfo, make_topic: MakeTopic) -> None:
    """Nor again and again a failed one: a run is requested as soon as the topic is there, or other work is."""
    case.home, missing = stack.home, f"missing-{uuid.uuid4().hex}"
    group = share_group("g", topics=["t", missing])
    assert isinstance(case.look(group), dg.SensorResult)
    case.end(ACCEPT)
    case.run(dg.DagsterRunStatus.FAILURE)
    answer = case.look(group)
    assert isinstance(answer, dg.SkipReason)
    assert f"the broker has no topic {missing}" in str(answer.skip_message)
    assert isinstance(case.look(share_group("g", topics=["t", make_topic(1)])), dg.SensorResult)


def test_one_backlog_has_one_run(case: Case) -> None:
    """A tick that is repeated asks for the same run; one after a run that has changed nothing, for none."""
    first, repeated = case.look(), case.look()
    assert isinstance(first, dg.SensorResult)
    assert isinstance(repeated, dg.SensorResult)
    keys = [request.run_key for tick in (first, repeated) for request in tick.run_requests or ()]
    assert keys == ["g:first", "g:first"]
    run = case.run(dg.DagsterRunStatus.STARTED)
    assert run.run_id in str(case.said())
    case.instance.handle_run_event(run.run_id, _ended(run))
    assert "changed nothing" in str(case.said())
    case.end(ACCEPT, 10)
    assert case.said() is None


@pytest.mark.parametrize(
    "tags",
    [{}, share_group("g", topics=["t"], key_prefix=["west", "g"]).run_tags],
    ids=["of theirs", "of ours"],
)
def test_a_job_of_the_same_name_in_another_location_delays_no_run(
    case: Case, tags: Mapping[str, str]
) -> None:
    """Neither a failed run of it, nor an active one; also if it is of a queue with the same group id, in another
    Kafka cluster. It is not ended either: its member is in another state."""
    failed, active = (case.run(STARTED, tagged=False, tags=tags, member="theirs") for _ in range(2))
    case.instance.report_run_failed(failed)
    answer = case.look()
    assert status(case, active) == STARTED
    assert isinstance(answer, dg.SensorResult)
    assert [request.run_key for request in answer.run_requests or ()] == ["g:first"]


def sign(case: Case, run: dg.DagsterRun, message: str, seconds_ago: float) -> None:
    """A run has given a sign of life so long ago."""
    event = dg.DagsterEvent(
        dg.DagsterEventType.ENGINE_EVENT.value,
        run.job_name,
        message=message,
        event_specific_data=EngineEventData(),
    )
    case.instance.report_dagster_event(event, run.run_id, timestamp=time.time() - seconds_ago)


def status(case: Case, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    """The status of a run now."""
    now = case.instance.get_run_by_id(run.run_id)
    assert now is not None
    return now.status


def test_a_run_whose_machine_went_down_is_ended_and_followed(case: Case) -> None:
    """Its status stays what it was, and Dagster does not look; the first tick without a sign of life ends it with the
    reason, and requests the next run. A second death in a row is followed by a pause."""
    run = case.run(STARTED)
    sign(case, run, AT_WORK, 60)
    assert "of g is started" in str(case.said())
    assert status(case, run) == STARTED
    other = case.run(CANCELING, job="g_replay", tags=GROUP.replay_tags)
    dead = case.run(STARTED)
    for each in (other, dead):
        sign(case, each, AT_WORK, 300)
    assert "of g is started" in str(case.said())
    assert status(case, run) == STARTED
    assert (status(case, dead), status(case, other)) == (
        dg.DagsterRunStatus.FAILURE,
        dg.DagsterRunStatus.CANCELED,
    )
    case.instance.handle_run_event(run.run_id, _ended(run))
    case.run(STARTED, member="gone")
    assert "changed nothing" not in str(case.said())


def test_the_reason_of_a_run_that_was_ended_is_shown(case: Case) -> None:
    """In its own log, and in the ticks of the pause after a second one."""
    for _ in range(2):
        run = case.run(STARTED, member="gone")
        said = case.said()
    assert status(case, run) == dg.DagsterRunStatus.FAILURE
    assert "as did the one before it; the next one is requested in" in str(said)
    assert (
        "ended by a sensor or the schedule of its share group: its process is gone: its member gone does not live"
        in str(said)
    )


def test_a_schedule_ends_a_run_whose_process_is_gone(
    private_database: Database, at: SharePartition, tmp_path: Path
) -> None:
    """A queue may have no sensor that is on: the tick ends the run, whose place in the pool is then free."""
    group = share_group("g", topics=["t"], automation={"schedule": {"cron": "*/5 * * * *"}})
    (schedule,) = share_group_defs(group).schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)
    resources = {"sharequeue_state": SimpleNamespace(database=private_database)}
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        case = Case(private_database, at, instance)
        alive, dead = case.run(STARTED), case.run(STARTED)
        sign(case, alive, AT_WORK, 60)
        sign(case, dead, AT_WORK, 300)
        with dg.build_schedule_context(instance=instance, resources=resources) as context:
            assert alive.run_id in str(schedule.evaluate_tick(context).skip_message)
        assert (status(case, alive), status(case, dead)) == (STARTED, dg.DagsterRunStatus.FAILURE)


def test_after_the_clock_was_set_back_a_run_has_time_to_show_that_it_lives(case: Case) -> None:
    """Its last sign is in the future: it is not ended before it has given none for as long as any other run."""
    run = case.run(STARTED)
    sign(case, run, AT_WORK, -3600)
    assert run.run_id in str(case.said())
    assert run.run_id in str(case.said())
    messages = [entry.message for entry in case.instance.all_logs(run.run_id)]
    assert messages.count(CLOCK_SET_BACK) == 1
    with mock.patch.object(signs_of_life, "GONE_AFTER_SECONDS", -1.0):
        assert case.said() is None
    assert status(case, run) == dg.DagsterRunStatus.FAILURE


def test_a_run_that_began_before_the_clock_was_set_back_delays_others_no_longer_than_any(case: Case) -> None:
    """It has opened nothing yet, and its last event is in the future."""
    run = case.run(STARTED, job="nightly", b=DEAD_LETTERS)
    sign(case, run, "of another", -3600)
    assert run.run_id in str(case.said())
    with mock.patch.object(active_runs, "QUIET_SECONDS", -1.0):
        assert case.said() is None
    assert status(case, run) == STARTED


def test_a_run_that_is_quiet_in_a_step_of_others_is_not_ended(case: Case) -> None:
    """It has closed the state, so it may be at work elsewhere; it delays no other run for ever."""
    run = case.run(STARTED, job="nightly", a=OTHER, b=DEAD_LETTERS)
    sign(case, run, AT_WORK, 300)
    sign(case, run, CLOSED, 200)
    assert "of nightly is started" in str(case.said())
    with mock.patch.object(active_runs, "QUIET_SECONDS", -1.0):
        assert case.said() is None
    assert status(case, run) == STARTED


def test_a_retry_of_a_run_that_died_is_not_taken_for_it(case: Case) -> None:
    """It has inherited the tag of a member that is gone."""
    dead = case.run(STARTED, member="gone")
    retry = case.instance.add_run(
        dg.DagsterRun("g", status=STARTED, tags=dead.tags, parent_run_id=dead.run_id, root_run_id=dead.run_id)
    )
    assert f"run {retry.run_id} of g is started" in str(case.said())
    assert status(case, dead) == dg.DagsterRunStatus.FAILURE


def _ended(run: dg.DagsterRun) -> dg.DagsterEvent:
    return dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, run.job_name)


def test_a_timeout_of_the_database_is_one_line(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that takes too long is ended, the tick says so, and the next one does not even ask."""
    with case.database.transaction() as connection, monkeypatch.context() as short:
        short.setattr(waiting_work, "STATEMENT_TIMEOUT_MS", 50)
        connection.exec_driver_sql("lock table sharequeue.share_partitions in access exclusive mode")
        assert "canceling statement due to statement timeout; next attempt in 60 s" in str(case.said())
    assert "the state could not be read" in str(case.said())
    case.cursor = None
    assert case.said() is None


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql+psycopg2://nobody@127.0.0.1:9/nothing", "connection to server at"),
        ("", "SHAREQUEUE_DATABASE_URL"),
    ],
)
def test_without_a_server_or_an_address_no_tick_fails(
    url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the resource that a code location has: nothing is opened before the sensor asks."""
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
    queue = StateResource(settings=SettingsResource(home=str(tmp_path)))
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance, resources={"sharequeue_state": queue}) as context,
    ):
        data = lag_sensor(GROUP, MADE).evaluate_tick(context)
    assert data.skip_message is not None
    assert data.skip_message.startswith("the state cannot be read: ")
    assert says in data.skip_message


def test_no_sensor_is_on_by_default() -> None:
    """Lag and observation are switched on by who wants them."""
    defs = share_group_defs(GROUP)
    assert {each.name: each.default_status.value for each in defs.sensors or ()} == {
        "g_lag": "STOPPED",
        "g_observe": "STOPPED",
    }
