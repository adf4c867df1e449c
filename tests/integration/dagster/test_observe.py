"""The sensor that observes: history, figures and fresh reports without a run, and checks for new dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from confluent_kafka import KafkaError, KafkaException, Producer
from sqlalchemy.exc import OperationalError

from sharequeue.dagster import StateResource, position, share_group_defs
from sharequeue.dagster.assets.reports import spso_and_lag_asset
from sharequeue.dagster.automation import Automation, Freshness, LagSensor
from sharequeue.dagster.names import MEMBER_TAG
from sharequeue.dagster.reports import figures
from sharequeue.dagster.resources import SettingsResource
from sharequeue.dagster.sensors import ObservedAssets, observe_sensor
from sharequeue.dagster.share_group import TOPIC_PREFIX
from sharequeue.dagster.state_checks import STATE_CHECKS
from sharequeue.database import Database
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.kafka.clients import client_config
from sharequeue.reports.history import Reports
from sharequeue.reports.read import read_figures
from sharequeue.state import State
from sharequeue.state.figures import Figures
from sharequeue.state.replicas import hear_replica
from tests import single
from tests.fixtures.dagster import share_group
from tests.fixtures.deadletters import GivenUp
from tests.fixtures.stack import MakeTopic
from tests.reported import reported_lags
from tests.waiting import PATIENCE_S, pass_time

ACCEPTED = dg.AssetKey(["g", "accepted"])
REPORT, LETTERS = dg.AssetKey(["g", "spso_and_lag"]), dg.AssetKey(["g", "dead_letters"])
ALWAYS = [each.name for each in STATE_CHECKS if not each.bound]
"""The checks that every group has."""
OBSERVED = ObservedAssets(ACCEPTED, REPORT, LETTERS, [REPORT, LETTERS], "g_checks")
STALE_AT_ONCE = Freshness.model_construct(fail_window="0.001s")
"""Shorter than a `defs.yaml` may have it."""
Tick = Callable[..., Any]


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def tick(private_database: Database, instance: dg.DagsterInstance, settings: Settings) -> Tick:
    """Give a function that is one tick, whose events the instance gets; the cursor lasts."""
    kept: list[str | None] = [None]

    def look(**given: Any) -> Any:
        home = SettingsResource(home=str(settings.home))
        resources = {"sharequeue_state": SimpleNamespace(database=private_database, settings=home)}
        group = share_group("g", **{"topics": ["t"], **given})
        with dg.build_sensor_context(instance, kept[0], resources=resources) as context:
            answer = observe_sensor(group, OBSERVED)(context)
            kept[0] = answer.cursor if isinstance(answer, dg.SensorResult) else context.cursor
        for event in getattr(answer, "asset_events", ()):
            instance.report_runless_asset_event(event)
        return answer

    return look


def events(answer: Any, kind: type) -> list[Any]:
    """The events of a kind, except those of topics."""
    found: list[Any] = [event for event in answer.asset_events if isinstance(event, kind)]
    return [event for event in found if event.asset_key.path[0] != TOPIC_PREFIX]


def test_figures_are_observed_without_a_run(
    tick: Tick, private_database: Database, at: SharePartition
) -> None:
    """Each tick is a row of history and an observation, with the figures that the report's materializations have."""
    state = State(private_database)
    for _ in range(2):
        lease = single.acquire(state, at, "member", None, 10)
        assert lease is not None
        single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
        (observation,) = events(tick(), dg.AssetObservation)
        seen = {name: value.value for name, value in observation.metadata.items()}
        expected = figures(state.figures.describe("g"), read_figures(private_database, "g"))
        # There is no topic `t`, so its records have no known age.
        assert seen.keys() >= expected.keys() - {"oldest_age_seconds"}
        assert "oldest_age_seconds" not in seen
        counted = {name: n for name, n in expected.items() if name.endswith(("_records", "_offset"))}
        assert seen.items() >= counted.items()
    assert (seen["lag_records"], seen["spso_t_0_offset"], seen["share_partition_count"]) == (980, 20, 1)
    assert reported_lags(private_database, "g") == [990, 980]


def test_a_check_has_a_new_result_when_it_changes(
    tick: Tick, private_database: Database, instance: dg.DagsterInstance, at: SharePartition
) -> None:
    """The first tick has a result of each check; later ones only those that are other than the last one, which may
    be of a run."""

    def verdicts() -> dict[str, bool]:
        found = events(tick(checks={"max_lag": 995}), dg.AssetCheckEvaluation)
        return {each.check_name: each.passed for each in found}

    first = verdicts()
    assert first.pop("lag_bounded") is False
    assert first == dict.fromkeys(ALWAYS, True)
    assert verdicts() == {}
    state = State(private_database)
    lease = single.acquire(state, at, "member", None, 10)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
    assert verdicts() == {"lag_bounded": True}
    instance.report_runless_asset_event(dg.AssetCheckEvaluation(REPORT, "lag_bounded", passed=False))
    assert verdicts() == {"lag_bounded": True}


def test_a_run_that_died_with_its_machine_is_ended_and_fails_a_check(
    tick: Tick, private_database: Database, instance: dg.DagsterInstance, at: SharePartition
) -> None:
    """The tick that finds it fails the check, with the run, and ends the run; without it, the check passes again."""
    tags = {**share_group("g").run_tags, MEMBER_TAG: "gone"}
    run = instance.add_run(dg.DagsterRun("g", status=dg.DagsterRunStatus.STARTED, tags=tags))
    found = {each.check_name: each for each in events(tick(), dg.AssetCheckEvaluation)}
    assert not found["none_stuck"].passed
    assert found["none_stuck"].description is not None
    assert found["none_stuck"].description.startswith(
        f"the queue stands still, until another run begins: run {run.run_id} of g is started, but its process is "
    )
    ended = instance.get_run_by_id(run.run_id)
    assert ended is not None
    assert ended.status == dg.DagsterRunStatus.FAILURE
    assert "none_stuck passed" in tick().skip_reason.skip_message


def test_the_reason_of_a_tick_lists_what_it_recorded(
    tick: Tick, private_database: Database, at: SharePartition
) -> None:
    """The lag, the checks with another result than before, and the assets that are materialized to stay fresh."""
    given = {"checks": {"max_lag": 995}, "freshness": {"fail_window": "2h"}}
    results = ", ".join([*(f"{name} passed" for name in ALWAYS), "lag_bounded failed"])
    assert tick(**given).skip_reason.skip_message == (
        f"lag 1,000: SPSO and lag recorded; new results of checks: {results}; "
        "materialized without a run: spso_and_lag"
    )
    assert tick(**given).skip_reason.skip_message == "lag 1,000: SPSO and lag recorded"
    state = State(private_database)
    lease = single.acquire(state, at, "member", None, 1000)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
    assert tick(**given).skip_reason.skip_message == (
        "lag 0: SPSO and lag recorded; new results of checks: lag_bounded passed; "
        "materialized without a run: accepted"
    )


@pytest.mark.usefixtures("standing_clock")
def test_an_idle_queue_without_its_broker_fails_a_check(
    tick: Tick, private_database: Database, at: SharePartition
) -> None:
    """The stored lag is 0 and old: the tick has the reason, a check fails, and `accepted` is not kept fresh."""
    given = {"checks": {"max_lag": 995}, "freshness": {"fail_window": "2h"}}
    state = State(private_database)
    lease = single.acquire(state, at, "member", None, 1000)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
    hear_replica(private_database, "replica", writes_letters=True)
    assert "lag_known passed" in tick(**given).skip_reason.skip_message
    pass_time(private_database, 90)
    hear_replica(private_database, "replica", writes_letters=True)
    gone = tick(**given)
    assert gone.skip_reason.skip_message == (
        "lag 0: the service has not reached the broker for 90 s; SPSO and lag recorded; "
        "new results of checks: lag_known failed"
    )
    assert [each.asset_key for each in events(gone, dg.AssetMaterialization)] == []
    pass_time(private_database, 90)
    assert "no service was running for 90 s" in tick(**given).skip_reason.skip_message


def test_a_materialization_without_a_run_has_results_of_all_checks(
    tick: Tick, instance: dg.DagsterInstance, at: SharePartition
) -> None:
    """Dagster shows no results of an earlier materialization."""
    tick()
    assert events(tick(), dg.AssetCheckEvaluation) == []
    fresh = tick(freshness={"fail_window": "2h"})
    assert [each.asset_key for each in events(fresh, dg.AssetMaterialization)] == [REPORT]
    names = [each.check_name for each in events(fresh, dg.AssetCheckEvaluation)]
    assert names == ALWAYS


def test_results_that_a_run_has_hidden_are_recorded_again(
    tick: Tick, instance: dg.DagsterInstance, at: SharePartition
) -> None:
    """A result that was recorded during a run is older than the run's materialization, and not shown with it."""

    @dg.asset(key=REPORT)
    def report() -> None:
        pass

    tick()
    assert dg.materialize([report], instance=instance).success
    names = [each.check_name for each in events(tick(), dg.AssetCheckEvaluation)]
    assert names == ALWAYS


def test_a_check_of_the_invariants_that_takes_too_long_costs_no_other_figure(
    tick: Tick, private_database: Database, at: SharePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history has its row, and all other checks have results."""

    class Cancelled(Exception):
        pgcode = "57014"

    def verify(*_: object) -> list[str]:
        raise OperationalError("verify", None, Cancelled())

    monkeypatch.setattr(Figures, "verify", verify)
    verdicts = {each.check_name for each in events(tick(), dg.AssetCheckEvaluation)}
    assert verdicts == {*ALWAYS} - {"state_verified"}
    assert len(reported_lags(private_database, "g")) == 1


def test_a_check_that_an_active_run_has_planned_has_no_further_result(
    tick: Tick, instance: dg.DagsterInstance, at: SharePartition
) -> None:
    """The run's own result would count as the earlier one. A run that fails before its checks leaves none."""

    @dg.asset_check(asset=REPORT, name="state_verified")
    def planned() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    selected = dg.AssetSelection.checks(planned)
    defs = dg.Definitions(
        assets=[dg.AssetSpec(REPORT)],
        asset_checks=[planned],
        jobs=[dg.define_asset_job("checks", selection=selected)],
    )
    assert "state_verified" in [each.check_name for each in events(tick(), dg.AssetCheckEvaluation)]
    run = instance.create_run_for_job(defs.resolve_job_def("checks"))
    key = dg.AssetCheckKey(REPORT, "state_verified")
    latest = instance.get_latest_asset_check_evaluation_record(key)
    assert latest is not None
    assert latest.run_id == run.run_id
    assert events(tick(), dg.AssetCheckEvaluation) == []
    instance.report_run_failed(run)
    assert [each.check_name for each in events(tick(), dg.AssetCheckEvaluation)] == ["state_verified"]


def test_an_idle_queue_stays_fresh(tick: Tick, instance: dg.DagsterInstance, at: SharePartition) -> None:
    """The report is materialized where its last materialization is older than a third of the window, with its table
    and its picture; without a policy it is not."""
    assert not events(tick(), dg.AssetMaterialization)
    hours = {"freshness": {"fail_window": "2h"}}
    (made,) = events(tick(**hours), dg.AssetMaterialization)
    assert made.asset_key == REPORT, "the queue is not empty, so `accepted` is not fresh"
    assert {"lag_records", "share_partitions"} <= set(made.metadata)
    assert next(iter(made.metadata)) == "report"
    assert Path(str(made.metadata["report_file"].value)).read_text().startswith("<!doctype html>")
    assert not events(tick(**hours), dg.AssetMaterialization)
    assert events(tick(freshness=STALE_AT_ONCE), dg.AssetMaterialization)


def test_accepted_is_fresh_while_nothing_waits(
    tick: Tick, private_database: Database, instance: dg.DagsterInstance, at: SharePartition
) -> None:
    """Without a run, it is materialized only for an empty queue: one with records needs a run that succeeds."""
    hours, state = {"freshness": {"fail_window": "2h"}}, State(private_database)
    assert ACCEPTED not in [each.asset_key for each in events(tick(**hours), dg.AssetMaterialization)]
    lease = single.acquire(state, at, "member", None, 1000)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
    (made,) = events(tick(**hours), dg.AssetMaterialization)
    assert (made.asset_key, made.metadata["lag_records"].value) == (ACCEPTED, 0)
    assert not events(tick(**hours), dg.AssetMaterialization)
    # What Dagster's catalog shows of the last run stays; the number of rows may have changed since.
    of_run: dict[str, Any] = {"dagster/uri": "file:///output", "dagster/row_count": 5}
    instance.report_runless_asset_event(dg.AssetMaterialization(ACCEPTED, metadata=of_run))
    again = events(tick(freshness=STALE_AT_ONCE), dg.AssetMaterialization)
    (metadata,) = [each.metadata for each in again if each.asset_key == ACCEPTED]
    assert metadata["dagster/uri"].value == "file:///output"
    assert "dagster/row_count" not in metadata


def test_accepted_is_not_fresh_while_the_broker_cannot_be_read(
    tick: Tick, private_database: Database, at: SharePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows then whether records wait in a topic without state."""
    state = State(private_database)
    lease = single.acquire(state, at, "member", None, 1000)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})

    def refused(*_: object) -> list[SharePartitionStatus]:
        raise KafkaException(KafkaError(KafkaError.BROKER_NOT_AVAILABLE))

    monkeypatch.setattr(position, "first_run_statuses", refused)
    given = {"topics": ["t", "new"], "freshness": {"fail_window": "2h"}}
    (made,) = events(tick(**given), dg.AssetMaterialization)
    assert made.asset_key == REPORT
    limits = {"max_lag": 5, "max_age": "1h"}
    verdicts = events(tick(**given, checks=limits), dg.AssetCheckEvaluation)
    assert not {"lag_bounded", "oldest_record_bounded"} & {each.check_name for each in verdicts}


def test_an_outage_of_the_broker_ends_no_alarm(
    tick: Tick, at: SharePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the broker no age is known: the check keeps its result."""
    monkeypatch.setattr(position, "read_ages", lambda *_: {("t", 0): 7200.0})
    limits = {"checks": {"max_age": "1h"}}

    def verdicts() -> dict[str, bool]:
        found = events(tick(**limits), dg.AssetCheckEvaluation)
        return {each.check_name: each.passed for each in found}

    assert verdicts()["oldest_record_bounded"] is False
    monkeypatch.setattr(position, "read_ages", lambda *_: {})
    assert verdicts() == {}
    monkeypatch.setattr(position, "read_ages", lambda *_: {("t", 0): 60.0})
    assert verdicts() == {"oldest_record_bounded": True}


def test_new_partitions_are_seen_and_unknown_topics_are_named(
    tick: Tick, private_database: Database, at: SharePartition
) -> None:
    """What has come since the last tick is named once; a topic that no member has asked for is not known."""
    tick()
    State(private_database).initialize(SharePartition("g", "t", 1), "id", 0, 2)
    (observation,) = events(tick(topics=["t", "new"]), dg.AssetObservation)
    assert observation.metadata["new_share_partitions"].value == "t-1"
    assert observation.metadata["unknown_topics"].value == "new: known after the next run"
    (observation,) = events(tick(), dg.AssetObservation)
    assert not {"new_share_partitions", "unknown_topics"} & set(observation.metadata)


def test_a_group_without_state_and_topics_is_skipped(tick: Tick) -> None:
    """Before the first run there is nothing to observe, unless the broker has a topic."""
    assert "the broker shows none of its topics" in tick(topics=["nothing-of-this-name"]).skip_message


@pytest.mark.parametrize(("reset", "lag"), [("earliest", 9), ("latest", 0), ("by_duration:PT1H", 4)])
def test_before_the_first_run_the_lag_is_what_it_would_find(
    tick: Tick,
    make_topic: MakeTopic,
    settings: Settings,
    private_database: Database,
    reset: str,
    lag: int,
) -> None:
    """By the reset policy that the run will set: in the observation, the checks, and the materialized report."""
    topic, now = make_topic(2), time.time()
    producer = Producer(client_config(settings))
    for at in range(9):
        age = 7200 if at < 5 else 600
        producer.produce(topic, b"x", partition=0, timestamp=int((now - age) * 1000))
    assert producer.flush(PATIENCE_S) == 0
    answer = tick(
        topics=[topic],
        configs={"share.auto.offset.reset": reset},
        checks={"max_lag": 8, "max_age": "1h"},
        freshness={"fail_window": "2h"},
    )
    (observation,) = events(answer, dg.AssetObservation)
    (report, *_) = events(answer, dg.AssetMaterialization)
    assert report.asset_key == REPORT
    for seen in (observation, report):
        assert seen.metadata["lag_records"].value == lag
    verdicts = {each.check_name: each.passed for each in events(answer, dg.AssetCheckEvaluation)}
    assert (verdicts["lag_bounded"], verdicts["oldest_record_bounded"]) == (lag <= 8, lag <= 8)
    ages = {"earliest": 7200, "by_duration:PT1H": 600}
    seconds = observation.metadata["oldest_age_seconds"].value
    assert seconds == (pytest.approx(ages[reset], abs=60) if reset in ages else None)
    assert State(private_database).figures.describe("g") == []


def test_history_is_removed_after_its_retention(
    tick: Tick, private_database: Database, at: SharePartition
) -> None:
    """What is older goes with the next reports, in bounded parts, from both tables, and of this group alone."""
    state, reports = State(private_database), Reports(private_database)
    other = SharePartition("other", "t", 0)
    ensure_group(private_database, "other")
    state.initialize(other, "id", 0, 1)
    lease = single.acquire(state, at, "member", None, 10)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
    for _ in range(3):
        reports.record("g")
    reports.record("other")
    pass_time(private_database, timedelta(days=91).total_seconds())
    assert reports.remove("g", timedelta(days=90), most=1) == 2
    tick()
    counted = sa.text(
        "select sp.group_id, count(*) as rows from sharequeue.{} h"
        " join sharequeue.share_partitions sp using (share_partition_id) group by 1 order by 1"
    )
    for table in ("share_partition_history", "delivery_count_history"):
        rows = private_database.rows(sa.text(str(counted).format(table)))
        assert {row["group_id"]: row["rows"] for row in rows}["g"] == 1
    assert len(reported_lags(private_database, "other")) == 1
    pass_time(private_database, timedelta(days=8).total_seconds())
    tick(automation={"observe": {"keep": "1w"}})
    assert len(reported_lags(private_database, "g")) == 1


def test_letters_that_the_service_wrote_are_checked_once(
    given_up: Callable[..., GivenUp], settings: Settings
) -> None:
    """While no run is at work, new letters ask for a run of the checks, which reports them; that is all it makes."""
    case = given_up(partitions=1, copy=True)
    case.produce(6)
    case.reject({0: OffsetSet.of((0, 3))})
    group = share_group(case.group, topics=[case.topic])
    base = SettingsResource(home=str(settings.home))
    resources = dg.Definitions(
        resources={
            "sharequeue_settings": base,
            "sharequeue_state": StateResource(settings=base),
            "sharequeue_spark": object(),
            "sharequeue_io_manager": dg.mem_io_manager,
        }
    )
    defs = dg.Definitions.merge(share_group_defs(group), resources)
    with dg.DagsterInstance.ephemeral() as instance:
        assert asked(case, defs, instance) == []
        case.writer().write()
        (request,) = asked(case, defs, instance)
        assert [again.run_key for again in asked(case, defs, instance)] == [request.run_key]
        letters = dg.AssetKey([group.name, "dead_letters"])
        job = defs.resolve_job_def(f"{group.name}_checks")
        made = job.execute_in_process(instance=instance)
        assert [e.asset_key for e in made.get_asset_materialization_events()] == [letters]
        verdicts = {each.check_name: each.passed for each in made.get_asset_check_evaluations()}
        assert verdicts["reconciled_with_state"]
        assert asked(case, defs, instance) == []
        case.produce(1)
        case.reject({0: OffsetSet.of((6, 7))})
        case.writer().write()
        (later,) = asked(case, defs, instance)
        assert later.run_key != request.run_key
        # A run that fails is followed by another one after a pause; Dagster would skip its own key.
        failed = ended(instance, f"{group.name}_checks", group.run_tags, fails=True)
        waiting = answered(case, defs, instance)
        assert not waiting.run_requests
        assert f"new dead letters are not checked yet: run {failed} failed" in str(waiting.skip_reason)
        impatient = group.model_copy(
            update={"automation": Automation(sensor=LagSensor(pause_after_failure_seconds=0))}
        )
        soon = dg.Definitions.merge(share_group_defs(impatient), resources)
        (repeated,) = asked(case, soon, instance)
        assert repeated.run_key == f"{later.run_key}:after:{failed}"
        # Also when it has made its report, and no check after that.
        assert job.execute_in_process(instance=instance).success
        assert asked(case, soon, instance) == []
        failed = ended(instance, f"{group.name}_checks", group.run_tags, fails=True)
        assert [str(each.run_key).rpartition(":")[2] for each in asked(case, soon, instance)] == [failed]
        ended(instance, f"{group.name}_checks", group.run_tags, fails=False)
        assert asked(case, soon, instance) == []


def ended(instance: dg.DagsterInstance, job: str, tags: dict[str, str], fails: bool) -> str:
    """A run that has ended without a result of a check."""
    run = instance.add_run(dg.DagsterRun(job, status=dg.DagsterRunStatus.STARTED, tags=tags))
    if fails:
        instance.report_run_failed(run)
    else:
        success = dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, job)
        instance.report_dagster_event(success, run.run_id)
    return run.run_id


def asked(case: GivenUp, defs: dg.Definitions, instance: dg.DagsterInstance) -> list[dg.RunRequest]:
    """What a tick of the group's sensor asks for."""
    return list(answered(case, defs, instance).run_requests or ())


def answered(case: GivenUp, defs: dg.Definitions, instance: dg.DagsterInstance) -> dg.SensorResult:
    """What a tick of the group's sensor returns."""
    sensor = defs.resolve_sensor_def(f"{share_group(case.group).name}_observe")
    queue = SimpleNamespace(database=case.database, settings=SimpleNamespace(load=lambda: case.settings))
    with dg.build_sensor_context(instance, resources={"sharequeue_state": queue}) as context:
        answer = sensor(context)
    assert isinstance(answer, dg.SensorResult)
    return answer


def test_a_run_records_and_removes_history(
    private_database: Database, at: SharePartition, tmp_path: Path
) -> None:
    """A run records, and removes what is old, also where nobody observes."""
    reports = Reports(private_database)
    reports.record("g")
    pass_time(private_database, timedelta(days=100).total_seconds())
    home = SettingsResource(home=str(tmp_path))
    queue = SimpleNamespace(
        database=private_database, reports=reports, state=State(private_database), settings=home
    )
    asset = spso_and_lag_asset(dg.AssetSpec(REPORT), share_group("g", topics=["t"]))
    assert dg.materialize([asset], resources={"sharequeue_state": queue}).success
    assert len(reported_lags(private_database, "g")) == 1


def test_a_topic_is_observed_when_it_has_new_offsets(
    tick: Tick, private_database: Database, at: SharePartition
) -> None:
    """The first tick has its partitions and offsets; later ones only what has changed."""

    def topics() -> list[dg.AssetObservation]:
        return [event for event in tick().asset_events if event.asset_key == dg.AssetKey([TOPIC_PREFIX, "t"])]

    (first,) = topics()
    (status,) = State(private_database).figures.describe("g")
    assert first.metadata["partitions"].value == 1
    assert first.metadata["written_offsets"].value == status.log_end
    assert topics() == []
    single.observe(State(private_database), at, "id", 0, status.log_end + 5, status.log_end + 5)
    (again,) = topics()
    assert again.metadata["written_offsets"].value == status.log_end + 5
