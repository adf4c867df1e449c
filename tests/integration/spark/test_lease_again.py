"""An acknowledgement of a lease that failed can be sent again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn
from sqlalchemy.exc import OperationalError

from sharequeue.domain.errors import InvalidRecordState, ShareError
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Acknowledged
from sharequeue.spark import LeasedRecords, Unacknowledged, lease
from sharequeue.spark.handler import HandlerError
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement
from tests.fixtures.pipelines import Assigned, Produce
from tests.fixtures.stack import MakeTopic

Call = Callable[..., list[Acknowledged | ShareError]]


@pytest.fixture
def leased(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    settings: Settings,
    spark: SparkSession,
    state: State,
) -> LeasedRecords:
    """Give a lease of three records of each of two partitions that is not open."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, range(3))
    return lease(group, topic, settings=settings, spark=spark, state=state, membership=assigned(topic))


def once(monkeypatch: pytest.MonkeyPatch, failing: Callable[[Call], Call]) -> None:
    """Have the next call of `State.acknowledge` be another one."""
    real = State.acknowledge

    def call(state: State, given: Sequence[LeaseAcknowledgement], **more: object) -> object:
        monkeypatch.setattr(State, "acknowledge", real)
        bound = real.__get__(state)
        return failing(bound)(given, **more)

    monkeypatch.setattr(State, "acknowledge", call)


def not_sent(_: Call) -> Call:
    """Fail before anything is sent."""

    def call(*_: object, **__: object) -> list[Acknowledged | ShareError]:
        raise OperationalError("", {}, Exception("the server is gone"))

    return call


def reply_lost(real: Call) -> Call:
    """Fail after the commit."""

    def call(*given: object, **more: object) -> list[Acknowledged | ShareError]:
        real(*given, **more)
        raise OperationalError("", {}, Exception("the server is gone"))

    return call


def one_refused(real: Call) -> Call:
    """Acknowledge the first lease, and refuse the others."""

    def call(given: Sequence[LeaseAcknowledgement], **more: object) -> list[Acknowledged | ShareError]:
        return [*real(given[:1], **more), *(InvalidRecordState("refused") for _ in given[1:])]

    return call


@pytest.mark.parametrize("failing", [not_sent, reply_lost])
def test_an_acknowledgement_that_failed_is_sent_again(
    failing: Callable[[Call], Call],
    leased: LeasedRecords,
    group: str,
    state: State,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether it has committed or not: each record counts once, the retry returns the counts of all, and the block
    ends without a warning. A third one is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Unacknowledged)
        with leased:
            leased.write(leased.records.withColumn("outcome", fn.lit("accept")), tmp_path)
            once(monkeypatch, failing)
            with pytest.raises(OperationalError):
                leased.acknowledge()
            done = leased.acknowledge()
            assert (done.leased, done.accepted, done.lag) == (6, 6, 0)
            with pytest.raises(HandlerError, match="already acknowledged"):
                leased.acknowledge()
    assert [(each.spso, each.lag) for each in state.figures.describe(group)] == [(3, 0), (3, 0)]


def test_a_retry_sends_only_what_is_not_acknowledged(
    leased: LeasedRecords,
    group: str,
    state: State,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a retry, the warning at the end names the records that are given back, and only them."""

    def fail() -> None:
        leased.write(leased.records.withColumn("outcome", fn.lit("accept")), tmp_path)
        once(monkeypatch, one_refused)
        with pytest.raises(InvalidRecordState):
            leased.acknowledge()

    with pytest.warns(Unacknowledged, match="3 records will be given back"), leased:
        fail()
    assert sorted(each.lag for each in state.figures.describe(group)) == [0, 3]
    with leased:  # what was given back without an outcome comes again in parts
        leased.write(leased.records.withColumn("outcome", fn.lit("accept")), tmp_path)
        assert leased.acknowledge().accepted == leased.count
