"""A lease without a block, as in a notebook: open, work, close."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.settings import Settings
from sharequeue.spark import LeasedRecords, Unacknowledged, lease
from sharequeue.spark.handler import HandlerError
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S


@pytest.fixture
def make_lease(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    settings: Settings,
    spark: SparkSession,
    state: State,
) -> Callable[[], LeasedRecords]:
    """Give a function that gives a lease of the same three records, not open."""
    topic = make_topic(1)
    produce(topic, 0, ["a", "b", "c"])
    holder = assigned(topic)
    return lambda: lease(group, topic, settings=settings, spark=spark, state=state, membership=holder)


@pytest.fixture
def leased(make_lease: Callable[[], LeasedRecords]) -> LeasedRecords:
    """Give a lease of three records that is not open."""
    return make_lease()


@pytest.fixture
def keepers() -> Callable[[], list[threading.Thread]]:
    """Give a function that gives the threads that keep leases of this test."""
    before = set(threading.enumerate())
    return lambda: [
        each for each in threading.enumerate() if each.name == "lock-keeper" and each not in before
    ]


def test_open_and_close_do_the_same_as_a_block(
    leased: LeasedRecords,
    group: str,
    state: State,
    tmp_path: Path,
    keepers: Callable[[], list[threading.Thread]],
) -> None:
    """Each may be called twice; what was not acknowledged is given back with a warning, what was is done."""
    with pytest.raises(RuntimeError, match="nothing is leased yet"):
        _ = leased.records
    assert leased.open() is leased
    assert leased.open().records.count() == 3
    assert len(state.figures.leases(group)) == 1
    with pytest.warns(Unacknowledged, match="3 records will be given back"):
        leased.close()
    leased.close()
    assert state.figures.leases(group) == []
    with pytest.raises(HandlerError, match="the lease has ended"):
        leased.write(leased.records.withColumn("outcome", fn.lit("accept")), tmp_path / "late")
    assert not (tmp_path / "late").exists()

    with warnings.catch_warnings():
        warnings.simplefilter("error", Unacknowledged)
        leased.open()  # what was given back without an outcome comes again in parts
        assert str(leased).splitlines()[0] == "leased 2 records"
        leased.records.withColumn("outcome", fn.lit("accept")).write.parquet(f"{tmp_path}/done")
        done = leased.acknowledge(tmp_path / "done")
        assert str(done).splitlines()[0] == "acknowledged 2 records; lag 1"
        leased.close()
    assert (state.figures.describe(group)[0].spso, keepers()) == (2, [])


def test_a_lease_that_nobody_closes_warns_and_lapses(
    make_lease: Callable[[], LeasedRecords],
    group: str,
    state: State,
    keepers: Callable[[], list[threading.Thread]],
) -> None:
    """Its last reference is enough: nothing is given back, and nothing is renewed any more."""
    dropped = make_lease().open()
    (held,) = state.figures.leases(group)
    (keeper,) = keepers()
    with pytest.warns(
        Unacknowledged, match="never closed: 3 records will be delivered again when the locks lapse"
    ):
        del dropped
    keeper.join(PATIENCE_S)
    assert not keeper.is_alive()
    assert [each.lease_id for each in state.figures.leases(group)] == [held.lease_id]
