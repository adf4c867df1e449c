"""The real engine for users' tests: a Postgres of its own, a clock that the test moves, records from a list."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.domain.errors import GroupIdNotFound, InvalidRecordState, InvalidRequest
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType
from sharequeue.spark import HandlerError, Pipeline, Reject, Release, by_row, pipeline
from sharequeue.state.calls import LeaseAcknowledgement
from sharequeue.testing import Queue, Record, TemporaryPostgres, embedded_postgres

ACCEPT = AcknowledgeType.ACCEPT
LIMIT, DLQ = "share.delivery.count.limit", "errors.deadletterqueue.topic.name"


@pytest.fixture(scope="module")
def postgres() -> Iterator[TemporaryPostgres]:
    """Give the server of this module, as a user's tests have it."""
    with embedded_postgres() as server:
        with server.queue() as queue:
            (shown,) = queue.database.rows(sa.text("show data_directory"))
        folder = Path(shown["data_directory"]).parents[1]
        assert folder.parent == Path(tempfile.gettempdir())
        yield server
    assert not folder.exists()


@pytest.fixture
def queue(postgres: TemporaryPostgres) -> Iterator[Queue]:
    """Give a queue of this test alone."""
    with postgres.queue() as fresh:
        yield fresh


def test_queues_share_nothing(postgres: TemporaryPostgres) -> None:
    """Each has a database of its own, a state of its own, and a clock of its own; none is left behind."""
    with postgres.queue() as one, postgres.queue() as other:
        one.advance(3600)
        one.group("g", ["t"])
        assert (one.state.now() - other.state.now()).total_seconds() > 3500
        assert one.state.outputs.identity().state_id != other.state.outputs.identity().state_id
        assert other.state.figures.describe() == []
        names = {each.database.engine.url.database for each in (one, other)}
        with pytest.raises(ValueError, match="only goes forward"):
            one.advance(-1)
    with postgres.queue() as later:
        rows = later.database.rows(sa.text("select datname from pg_database"))
        assert not names & {row["datname"] for row in rows}


def test_bad_input_is_refused(queue: Queue) -> None:
    """A value in place of a list, what is no record, a partition below 0, a group that was not made."""
    wrong: list[object] = ["a", b"a", [1]]
    for each in wrong:
        with pytest.raises(TypeError, match="expected"):
            queue.produce("t", each)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 or more"):
        queue.produce("t", ["a"], partition=-1)
    with pytest.raises(GroupIdNotFound, match=r"queue\.group"):
        queue.lease("g")
    queue.group("g", ["t"])
    assert queue.lease("g") == ()


def test_a_lock_that_lapses_is_fenced_and_counts(queue: Queue) -> None:
    """After its lock a lease is refused; its records come again with the next delivery count, and are dead letters
    after the last delivery."""
    queue.group("g", ["t"], {LIMIT: 2, DLQ: "dlq.t"})
    assert queue.produce("t", ["a", b"b"]) == OffsetSet.of((0, 2))
    assert queue.produce("t", [Record(None, key=b"k")]) == OffsetSet.of((2, 3))
    (first,) = queue.lease("g")
    assert [(offset, count, record.value) for offset, count, record in queue.records(first)] == [
        (0, 1, b"a"),
        (1, 1, b"b"),
        (2, 1, None),
    ]
    queue.advance(31)
    (refused,) = queue.state.acknowledge([LeaseAcknowledgement(first, {ACCEPT: first.offsets})])
    assert isinstance(refused, InvalidRecordState)
    seen = []
    for _ in range(3):  # suspects come alone the last time
        (again,) = queue.lease("g")
        seen += [(offset, count) for offset, count, _ in queue.records(again)]
        queue.advance(31)
    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert queue.lease("g") == ()
    assert [(each.offset, each.cause, each.record.key) for each in queue.write_dead_letters("g")] == [
        (0, "exhausted", None),
        (1, "exhausted", None),
        (2, "exhausted", b"k"),
    ]
    assert queue.write_dead_letters("g") == []
    assert queue.state.figures.verify() == []


def test_the_bounds_of_locks_are_the_services(postgres: TemporaryPostgres, queue: Queue) -> None:
    """15 to 60 s where nothing else is configured; `service_configs` has other bounds."""
    least = {"group.share.min.record.lock.duration.ms": "1000"}
    with postgres.queue(service_configs=least) as short:
        for each in (queue, short):
            each.group("g", ["t"])
            each.produce("t", ["a"])
        with pytest.raises(InvalidRequest, match="15000 to 60000 ms"):
            queue.lease("g", lock_duration_ms=1000)
        (lease,) = short.lease("g", lock_duration_ms=1000)
        assert lease.lock_duration_ms == 1000


def checked(record: dict[str, object]) -> dict[str, object]:
    """Reject what is bad, release what is early, accept the rest."""
    text = bytes(record["value"]).decode()  # type: ignore[call-overload]
    if text == "bad":
        raise Reject("it is bad")
    if text == "early":
        raise Release("it is early")
    return {"text": text, "deliveries": record["delivery_count"]}


def job(**options: object) -> Pipeline:
    handler = by_row(checked, "text string, deliveries int")
    return pipeline(group="g", topics=["t"], sink="t", **options)(handler)  # type: ignore[arg-type]


def test_a_pipeline_obeys_order_by_key(queue: Queue, spark: SparkSession) -> None:
    """A key waits behind its first record that is not accepted, without a delivery, until that one's back-off has
    passed or its dead letter is closed; other keys go on."""
    order = {"sharequeue.order": "key", "sharequeue.order.on.dead.letter": "hold"}
    queue.group("g", ["t"], {LIMIT: 2, DLQ: "dlq.t", "share.record.lock.duration.ms": 60_000, **order})
    values = ("good", "early", "later"), ("good", "bad", "after")
    queue.produce(
        "t",
        [Record(text.encode(), key) for key, some in zip((b"a", b"b"), values, strict=True) for text in some],
    )

    def handled() -> dict[int, str]:
        return {row.offset: row.outcome for row in queue.handle(job(), spark).rows}

    assert handled() == {0: "accept", 1: "release", 2: "hold", 3: "accept", 4: "reject", 5: "hold"}
    assert handled() == {}
    assert [each.offset for each in queue.write_dead_letters("g")] == [4]
    assert handled() == {}, "the dead letter holds its key"
    assert queue.state.dead_letters.close_letters(queue.state.dead_letters.holding()).records == 1
    assert handled() == {5: "accept"}
    queue.advance(3600)
    assert handled() == {1: "release"}, "the held record comes when that one is finished"
    assert [(each.offset, each.cause) for each in queue.write_dead_letters("g")] == [(1, "exhausted")]
    queue.state.dead_letters.close_letters(queue.state.dead_letters.holding())
    (last,) = queue.handle(job(), spark).rows
    assert (last.offset, last.outcome, last.deliveries) == (2, "accept", 1)
    assert queue.state.figures.verify() == []


def test_a_pipeline_is_handled_as_in_a_run(queue: Queue, spark: SparkSession) -> None:
    """The outcomes of the handler become acknowledgements; a released record waits for the back-off of its group, and
    is given up after the last delivery."""
    queue.group("g", ["t"], {LIMIT: 2, DLQ: "dlq.t"})
    queue.produce("t", ["good", "bad"])
    queue.produce("t", ["early"], partition=1)
    done = queue.handle(job(), spark)
    assert (done.accepted, done.released, done.given_up) == (1, 1, 1)
    assert sorted((row.outcome, row.text, row.error) for row in done.rows) == [
        ("accept", "good", None),
        ("reject", None, "Reject: it is bad"),
        ("release", None, "Release: it is early"),
    ]
    assert queue.handle(job(), spark).rows == ()
    queue.advance(3600)
    done = queue.handle(job(), spark)
    assert (done.released, done.given_up) == (0, 1)
    letters = queue.write_dead_letters("g")
    assert [(each.partition, each.offset, each.cause, each.delivery_count) for each in letters] == [
        (0, 1, "rejected", 1),
        (1, 0, "exhausted", 2),
    ]
    assert {each.lag for each in queue.state.figures.describe("g")} == {0}


def test_a_handler_that_breaks_its_contract_gives_its_lease_back(queue: Queue, spark: SparkSession) -> None:
    """A record without a row is an error unless the job says what it gets; what was leased has then been given
    back."""
    queue.produce("t", ["a", "b"])

    def drops(records: DataFrame) -> DataFrame:
        return records.filter("offset = 0").withColumn("outcome", fn.lit("accept"))

    strict = pipeline(group="g", topics=["t"], sink="t")(drops)
    with pytest.raises(HandlerError, match=r"1 record .* got no outcome"):
        queue.handle(strict, spark)
    (status,) = queue.state.figures.describe("g")
    assert (status.acquired, status.available) == (0, 2)
    mild = pipeline(group="g", topics=["t"], sink="t", without_row="reject")(drops)
    done = [queue.handle(mild, spark) for _ in range(2)]  # the two come again one by one
    assert sum(each.accepted for each in done) == 1
    assert sum(each.given_up for each in done) == 1
