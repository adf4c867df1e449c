"""When a followed job runs, what it waits out, and what ends it."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Unpack

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException
from sqlalchemy.exc import OperationalError

from sharequeue.domain.errors import (
    BrokerNotAvailable,
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    UnknownTopicId,
)
from sharequeue.domain.results.runs import RoundReport, RunReport, total
from sharequeue.domain.values import SharePartition
from sharequeue.reports.waiting_work import GroupWork, WaitingWork
from sharequeue.spark import MostFailed, SparkNotReady, following
from sharequeue.spark.following import Follower
from sharequeue.spark.job import RunBounds, ShareGroupJob
from sharequeue.spark.leasing.renewal import LockLost
from sharequeue.spark.progress import Progress, ProgressCallback
from tests.waiting import PATIENCE_S, wait_until

AT = datetime(2026, 1, 1, tzinfo=UTC)
NOTHING = WaitingWork("orders", 0, 0, 0, 0, 0, 0, None, 0, None, 5, 5, 5, 0, 0, AT, None)
READY = replace(NOTHING, ready_records=3, lag=3, log_end=8)
OURS = SharePartition("g", "orders", 0)
ROUND = RoundReport(number=1, lease_ids=(1,), leased=3, accepted=3, lag=0, stage_seconds={})


@dataclass
class Member:
    """A membership that says what it was asked."""

    assignment: list[SharePartition] = field(default_factory=lambda: [OURS])
    lost: threading.Event = field(default_factory=threading.Event)
    member_id: str = "m"
    joins: list[Exception | None] = field(default_factory=list)
    """What the next joins raise."""
    joined: int = 0

    def join(self, timeout: float) -> None:
        self.joined += 1
        self.lost.clear()
        error = self.joins.pop(0) if self.joins else None
        if error is not None:
            raise error


class Clock:
    """Time that passes as far as somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Woken(threading.Event):
    """Who waits for it passes the time of a clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            self.clock.sleep(timeout or 0.0)
        return self.is_set()


class World:
    """What waits, by turns; and what each run does: leases, does nothing, or raises."""

    def __init__(self, woken: threading.Event) -> None:
        self.waits: list[WaitingWork | Exception] = []
        self.runs: list[RunReport | Exception] = []
        self.ran: list[ShareGroupJob] = []
        self.bounds: list[RunBounds] = []
        self.looks = 0
        self.woken = woken
        self.told: list[Progress] = []
        self.reports: list[RunReport] = []
        self.member = Member()
        self.follower = Follower(
            ShareGroupJob("g", ("orders",), lambda frame: frame, "orders"),
            self.member,  # type: ignore[arg-type]
            self.run,
            self.look,
            self.woken,
            lambda: True,
            progress=self.told.append,
            on_run=self.reports.append,
        )

    def look(self) -> GroupWork:
        self.looks += 1
        found = self.waits.pop(0) if self.waits else NOTHING
        if isinstance(found, Exception):
            raise found
        return GroupWork(AT, [found], 1, AT)

    def run(
        self, job: ShareGroupJob, *, progress: ProgressCallback, **bounds: Unpack[RunBounds]
    ) -> RunReport:
        self.ran.append(job)
        self.bounds.append(bounds)
        done = self.runs.pop(0) if self.runs else report(ROUND)
        if isinstance(done, Exception):
            raise done
        for each in done.rounds:
            progress(Progress(each.number, "done", each.leased, each.leased, 1, 0))
        return done


def report(*rounds: RoundReport) -> RunReport:
    figures: dict[str, Any] = total(rounds)
    return RunReport(group="g", rounds=rounds, drained=True, **figures)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Give a world of which nobody waits for the time."""
    clock = Clock()
    monkeypatch.setattr(following, "time", clock)
    made = World(Woken(clock))
    made.follower._began_at = clock.now
    return made


def test_a_follower_runs_only_when_records_wait(world: World) -> None:
    """The first run tries the handler, whatever waits; then a look decides, and no run finds nothing."""
    world.waits = [NOTHING, NOTHING, NOTHING, READY, NOTHING, READY]
    world.runs = [report()]
    done = world.follower.go({"max_rounds": 2, "max_seconds": 3600, "replaces": "another"})
    assert (done.runs, done.rounds, done.leased, len(world.ran)) == (2, 2, 6, 3)
    assert [each["replaces"] for each in world.bounds] == ["another", None, None]
    assert [each.round for each in world.told if each.stage == "done"] == [1, 2]
    assert {each.stage for each in world.told} == {"done", "waiting"}
    assert len(world.reports) == 2
    assert "6" in str(done)


def test_a_notification_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the next look where the state has sent word; what is assigned anew is looked at, too."""
    monkeypatch.setattr(following, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(following, "LOOK_SECONDS", 3600.0)
    world = World(threading.Event())
    world.runs = [report()]
    at_work = threading.Thread(
        target=world.follower.go, args=({"max_rounds": 2, "max_seconds": 240.0},), daemon=True
    )
    at_work.start()
    wait_until(lambda: world.looks >= 2)
    world.waits = [READY]
    world.woken.set()
    wait_until(lambda: len(world.ran) == 2)
    wait_until(lambda: world.told[-1].stage == "waiting")
    world.waits = [READY]
    world.member.assignment = [OURS, SharePartition("g", "orders", 1)]
    at_work.join(PATIENCE_S)
    assert not at_work.is_alive()
    assert len(world.ran) == 3


def test_records_assigned_to_other_members_start_no_run(world: World) -> None:
    """Records of a share-partition that is not assigned to the member start no run."""
    world.runs = [report()]
    world.waits = [NOTHING, *[replace(READY, partition=1)] * 4]
    world.follower.go({"max_seconds": 300})
    assert len(world.ran) == 1
    assert not world.waits


def test_a_run_that_leased_nothing_is_not_repeated_at_once(world: World) -> None:
    """A run that leased nothing is not repeated on the same figures before the next look in its own time."""
    world.waits = [READY] * 30
    world.runs = [report()] * 30
    world.follower.go({"max_seconds": 3.5 * following.LOOK_SECONDS})
    assert (len(world.ran), world.looks) == (4, 8)


@pytest.mark.parametrize(
    "outage",
    [
        BrokerNotAvailable("no broker"),
        OperationalError("select 1", {}, Exception("the database system is starting up")),
        LockLost("the lock on orders-0"),
        Py4JError("Job aborted due to stage failure"),
    ],
)
def test_an_outage_and_its_end_are_logged_once(
    world: World, outage: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage and its end are each logged once."""
    world.waits = [READY, READY, OperationalError("select 2", {}, Exception("no")), READY]
    world.runs = [outage, outage, report(ROUND)]
    with caplog.at_level(logging.WARNING):
        assert world.follower.go({"max_rounds": 1, "max_seconds": 3600}).leased == 3
    said = [record.getMessage() for record in caplog.records if record.name == following.__name__]
    lost = str(getattr(outage, "orig", outage)).splitlines()[0]
    assert len([line for line in said if lost in line]) == 1, said
    assert said[-1] == "group g: recovered"


def test_an_expired_member_joins_again(world: World) -> None:
    """Also when the service is away at first: nothing is leased before it has joined."""
    world.member.lost.set()
    world.member.joins = [CoordinatorNotAvailable("no service"), CoordinatorNotAvailable("no service")]
    world.waits = [READY]
    assert world.follower.go({"max_rounds": 1, "max_seconds": 3600}).rounds == 1
    assert (world.member.joined, world.looks) == (3, 1)


def test_a_follower_waits_for_unavailable_servers_at_its_start(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a reboot: nothing is opened twice, a service that comes last is waited for too, and one line says
    what is away."""
    outages: list[Exception] = [BrokerNotAvailable("no broker"), BrokerNotAvailable("no broker")]
    begun: list[int] = []

    def begin() -> None:
        begun.append(1)
        if outages:
            raise outages.pop()

    world.follower.begin = begin
    world.member.joins = [CoordinatorNotAvailable("no service"), CoordinatorNotAvailable("no service")]
    world.waits = [READY]
    with caplog.at_level(logging.WARNING):
        assert world.follower.go({"max_rounds": 1, "max_seconds": 3600}).rounds == 1
    said = [record.getMessage() for record in caplog.records if record.name == following.__name__]
    assert said == [
        "group g: no broker; trying again until it works",
        "group g: no service; trying again until it works",
        "group g: recovered",
    ]
    assert (len(begun), world.member.joined, len(world.ran)) == (3, 3, 1)


def test_a_mistake_ends_a_follower_only_at_its_start(world: World) -> None:
    """Later the same error is an outage: the name server may be away."""
    world.follower.mistaken = lambda error: "host" in str(error)
    world.member.joins = [CoordinatorNotAvailable("no such host")]
    with pytest.raises(CoordinatorNotAvailable):
        world.follower.go({"max_rounds": 1, "max_seconds": 3600})
    world.runs = [BrokerNotAvailable("no such host"), report(ROUND)]
    world.waits = [READY, READY]
    assert world.follower.go({"max_rounds": 1, "max_seconds": 3600}).rounds == 1


@pytest.mark.parametrize(
    "error",
    [
        MostFailed("half of them"),
        GroupAuthorizationFailed("no ACL"),
        AnalysisException("no such column"),
        ValueError("a mistake"),
        SparkNotReady("the session has ended"),
    ],
)
def test_an_error_that_needs_an_action_ends_a_follower(world: World, error: Exception) -> None:
    """As it ends a run."""
    world.runs = [error]
    with pytest.raises(type(error)):
        world.follower.go({"max_rounds": 1, "max_seconds": 3600})
    assert len(world.ran) == 1


def test_a_lost_topic_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """And again where it was there in between."""
    lost = {"orders": UnknownTopicId("orders was made again")}
    looks = [{}, lost, lost, {}, lost]
    world.follower.lost = lambda: looks.pop(0) if looks else {}
    world.runs = [report()]
    with caplog.at_level(logging.WARNING):
        world.follower.go({"max_seconds": 5 * following.LOOK_SECONDS})
    said = [record.getMessage() for record in caplog.records if record.name == following.__name__]
    assert said == ["group g: orders was made again"] * 2
