"""What a run does not do with the records of somebody who made a mistake."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.domain.errors import UnknownTopicOrPartition
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.topics import Topics
from sharequeue.spark.handler import HandlerError, MostFailed
from sharequeue.spark.leased_records import Unacknowledged, lease
from sharequeue.state import State
from tests import single
from tests.fixtures.pipelines import Assigned, Holder, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic
from tests.waiting import pass_time

Handler = Callable[[DataFrame], DataFrame]


def outcomes(expression: str, error: str = "no good") -> Handler:
    """A handler that gives each record the outcome that an SQL expression makes of it."""

    def handler(records: DataFrame) -> DataFrame:
        kept = records.select("topic", "partition", "offset", "lease_id")
        return kept.withColumns({"outcome": fn.expr(expression), "error": fn.lit(error)})

    return handler


def delivered(state: State, group: str) -> list[tuple[int, int, int]]:
    """Available records, how many of them wait, and the highest delivery count, by share-partition."""
    return [(s.available, s.waiting, s.highest_delivery_count) for s in state.figures.describe(group)]


@pytest.mark.parametrize("deliveries", [1, 3])
def test_a_run_leases_a_record_that_it_released_as_often_as_its_job_says(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    deliveries: int,
) -> None:
    """Without any back-off a record that was released comes again in a later run, or as often as the job asks for; a
    run until drained ends with only those left, and says so."""
    topic = make_topic(1)
    produce(topic, 0, range(30))
    third = outcomes("if(offset % 3 = 0, 'release', 'accept')")
    job = job_of(group, topic, third, deliveries_per_run=deliveries)
    holder = assigned(topic)
    report = run_job(job, holder, max_records=12)
    assert report.drained
    assert (report.accepted, report.released) == (20, 10 * deliveries)
    assert delivered(state, group) == [(10, 0, deliveries)]
    assert "10 records are released by this run" in str(report.remark)
    assert run_job(job, holder, max_rounds=1).leased == 10


def test_a_released_record_waits_for_the_back_off_of_its_delivery(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    private_database: Database,
    topics: Topics,
) -> None:
    """A minute unless the group says otherwise, twice as long after each delivery, up to the maximum and a fifth
    more; what the handler says itself wins."""
    state = State(private_database)
    topic = make_topic(1)
    produce(topic, 0, range(10))
    alter_group_configs(private_database, group, {"share.auto.offset.reset": "earliest"})
    at = SharePartition(group, topic, 0)
    state.initialize(at, topics.describe([topic])[topic].topic_id, 0, 1)
    holder = _holder(at)

    def released(records: DataFrame) -> DataFrame:
        late = fn.when(fn.col("offset") == 0, fn.current_timestamp() + fn.expr("interval 1 hour"))
        return outcomes("'release'")(records).withColumn("not_before", late)

    job = job_of(group, topic, released, failed_share=None)
    for count, wait in ((1, 60), (2, 120)):
        began = state.now()
        report = run_job(job, holder, state=state)
        ended = state.now()
        assert report.leased == (10 if count == 1 else 9)
        assert delivered(state, group) == [(10, 10, count)]
        times = {
            str(row["offsets"]): row["not_before"]
            for row in private_database.rows(
                sa.text("select offsets::text as offsets, not_before from sharequeue.in_flight_offsets")
            )
        }
        assert times["{[0,1)}"] > ended + timedelta(minutes=40)
        again = times["{[1,10)}"]
        assert began + timedelta(seconds=wait) <= again <= ended + timedelta(seconds=wait * 1.2 + 1)
        soonest = f"{again:%Y-%m-%d %H:%M:%S} UTC"
        assert (
            f"10 records are waiting for the time from which they may be delivered again (the first from {soonest}"
            in (str(report.remark))
        )
        assert state.figures.describe(group)[0].waiting_until == again
        pass_time(state.database, 75)


def test_a_run_in_which_most_records_fail_stops(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
) -> None:
    """The error, how often, and an example; no delivery is lost, nothing is a suspect, nothing counts. Smaller rounds
    and a job that says so go on."""
    topic = make_topic(1)
    produce(topic, 0, range(200))
    holder = assigned(topic)
    bad = outcomes("if(offset % 2 = 0, 'reject', 'accept')", "KeyError: 'id'")
    with pytest.raises(MostFailed) as failed:
        run_job(job_of(group, topic, bad), holder)
    for words in ("100 of 200", "100 times", "KeyError: 'id'", f"{topic}-0 offset 0"):
        assert words in str(failed.value)
    assert delivered(state, group) == [(200, 0, 0)]
    assert state.outputs.counted(group, f"sink-{group}") == []
    assert state.figures.verify(group) == []
    small = run_job(job_of(group, topic, bad), holder, max_records=99, max_rounds=1)
    assert (small.rejected, small.accepted) == (50, 49)
    assert run_job(job_of(group, topic, bad, failed_share=None), holder).rejected == 50


def test_a_handler_that_raises_for_every_record_ends_the_run_and_loses_nothing(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """The first run ends with the error itself, which may be one record's fault; from the second on all parts fail
    alike, and the run says so. Only the first failure costs a delivery, and the mended handler gets all records."""
    topic = make_topic(1)
    produce(topic, 0, range(8))
    holder = assigned(topic, errors_deadletterqueue_topic_name=f"dlq.{topic}")
    broken = job_of(group, topic, outcomes("cast(raise_error('no value in ' || offset) as string)"))
    with pytest.raises(Exception, match="no value in") as first:
        run_job(broken, holder)
    assert not isinstance(first.value, MostFailed)
    with pytest.raises(MostFailed, match=r"the same error.*no value in"):
        run_job(broken, holder)
    assert delivered(state, group) == [(8, 0, 1)]
    assert state.outputs.counted(group, broken.sink) == []
    report = run_job(job_of(group, topic, all_accepted), holder)
    assert (report.accepted, report.drained) == (8, True)
    assert state.dead_letters.written(group) == []
    assert state.figures.verify(group) == []


def test_a_handler_is_tried_before_anything_is_leased(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """A column that is not there costs no record anything, and one who must not be tried is not."""
    topic = make_topic(1)
    produce(topic, 0, range(5))
    holder = assigned(topic)
    typo: Handler = lambda records: all_accepted(records).withColumn("id", fn.col("idd"))  # noqa: E731
    with pytest.raises(Exception, match="idd"):
        run_job(job_of(group, topic, typo, try_empty=True), holder)
    assert delivered(state, group) == [(0, 0, 0)]
    with pytest.raises(Exception, match="idd"):
        run_job(job_of(group, topic, typo, try_empty=False), holder)
    assert delivered(state, group) == [(5, 0, 0)]


def test_a_handler_whose_last_run_succeeded_is_not_tried_again(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """In one session a run calls it once for each round, until a run has failed; that run's records come again."""
    topic = make_topic(1)
    holder = assigned(topic)
    calls = []
    columns = ["0"]

    def counted(records: DataFrame) -> DataFrame:
        calls.append(columns[-1])
        return records.selectExpr("*", "'accept' as outcome", f"{columns[-1]} as more")

    job = job_of(group, topic, counted, try_empty=True)
    for runs, expected in ((1, 2), (2, 3)):
        produce(topic, 0, range(5))
        assert run_job(job, holder, max_rounds=1).accepted == 5
        assert len(calls) == expected, runs
    produce(topic, 0, range(5))
    columns.append("nothing")
    for _ in range(2):
        with pytest.raises(HandlerError, match="nothing"):
            run_job(job, holder)
    assert (len(calls), delivered(state, group)) == (5, [(5, 0, 0)])
    columns.append("1")
    assert run_job(job, holder, max_rounds=1).accepted == 5
    assert len(calls) == 7


def test_only_a_task_that_ran_makes_suspects(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """A failure on the driver gives the deliveries back; one of a task has cost the delivery, and its records are
    suspects."""
    topic = make_topic(1)
    produce(topic, 0, range(16))
    holder = assigned(topic)

    def broken(records: DataFrame) -> DataFrame:
        raise RuntimeError("the driver's own")

    job = job_of(group, topic, broken)
    with pytest.raises(RuntimeError, match="own"):
        run_job(job, holder)
    assert delivered(state, group) == [(16, 0, 0)]
    raising = fn.raise_error(fn.concat(fn.lit("task's own "), fn.col("offset"))).cast("string")
    fatal: Handler = lambda records: all_accepted(records).withColumn("x", raising)  # noqa: E731
    with pytest.raises(Exception, match="task's own"):
        run_job(job_of(group, topic, fatal), holder)
    assert delivered(state, group) == [(16, 0, 1)]
    (apart,) = run_job(job_of(group, topic, all_accepted), holder, max_rounds=1).rounds
    assert len(apart.lease_ids) > 1


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (
            lambda records: all_accepted(records.where("offset % 4 <> 1")),
            r"3 records \(.*-0 1, 5, 9\) got no",
        ),
        (
            outcomes("if(offset > 6, 'acept', 'accept')"),
            r"5 records .* 7-11\) .*'acept'",
        ),
        (outcomes("if(offset > 0, 'accept', null)"), r"1 record .*-0 0\) .*'null'"),
    ],
)
def test_records_without_an_outcome_are_an_error_that_names_them(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    handler: Handler,
    said: str,
) -> None:
    """Dropped, misspelt or null: which records, and nothing was acknowledged or lost."""
    topic = make_topic(1)
    produce(topic, 0, range(12))
    with pytest.raises(HandlerError, match=said):
        run_job(job_of(group, topic, handler), assigned(topic))
    assert delivered(state, group) == [(12, 0, 0)]
    assert state.figures.verify(group) == []


def test_a_lease_without_an_acknowledgement_warns(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    settings: Settings,
    spark: SparkSession,
) -> None:
    """A warning with the number of records; none where nothing was leased."""
    topic = make_topic(1)
    produce(topic, 0, range(7))
    holder = assigned(topic)
    given = {"settings": settings, "spark": spark, "membership": holder}
    with pytest.warns(Unacknowledged, match="7 records"), lease(group, [topic], **given) as leased:  # type: ignore[arg-type]
        assert leased.records.count() == 7


def test_a_run_that_leases_nothing_gives_the_reason(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    settings: Settings,
    spark: SparkSession,
    database: Database,
    state: State,
    topics: Topics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A group that starts at the end of the log, a topic that is not there, records that others hold, a pause."""
    topic = make_topic(1)
    produce(topic, 0, range(7))
    holder = assigned(topic)
    job = job_of(group, topic, all_accepted)
    for words, arguments in (("1 or more", {"max_records": 0}), ("1 or more", {"max_records": -1})):
        with pytest.raises(ValueError, match=words):
            run_job(job, holder, **arguments)
    typo = topic[:-1] + "_"
    with pytest.raises(UnknownTopicOrPartition, match=f"Did you mean .*{topic}"):
        run_job(job_of(group, typo, all_accepted), holder)
    with (
        pytest.raises(UnknownTopicOrPartition, match=topic),
        lease(group, [typo], settings=settings, spark=spark, membership=holder),
    ):
        pass

    (at,) = holder.assignment
    state.administration.pause(group, "stock-taking")
    paused = run_job(job, holder)
    assert "stock-taking" in str(paused.remark)
    assert "stock-taking" in caplog.text
    state.administration.pause(group, None)
    held = single.acquire(state, at, "another", None, 100)
    assert held is not None
    assert "7 records are leased by other members" in str(run_job(job, holder).remark)
    single.release(state, held, refund=True)
    assert run_job(job, holder).remark is None
    nobody = run_job(job, Holder([]))
    assert not nobody.drained
    assert "has not joined" in str(nobody.remark)

    late = f"{group}-late"
    alter_group_configs(database, late, {"share.auto.offset.reset": "latest"})
    there = SharePartition(late, topic, 0)
    state.initialize(there, topics.describe([topic])[topic].topic_id, 7, 1)
    with pytest.warns(UserWarning, match=f"offsets reset --group {late}"):
        alter_group_configs(database, late, {"share.auto.offset.reset": "earliest"})
    with pytest.warns(UserWarning, match="has already started"):
        alter_group_configs(database, late, {"share.auto.offset.reset": "latest"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alter_group_configs(database, late, {"share.auto.offset.reset": "latest"})
    remark = str(run_job(job_of(late, topic, all_accepted), _holder(there)).remark)
    assert "7 offsets are before it" in remark
    assert f"sharequeue offsets reset --group {late} --topic {topic} --to-earliest --execute" in remark


def test_a_result_that_is_not_a_dataframe_is_refused(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """A list, or nothing: what came, what was expected, and nothing was leased."""
    topic = make_topic(1)
    produce(topic, 0, range(3))
    holder = assigned(topic)
    for handler, said in (
        (lambda records: all_accepted(records).collect(), "type list: expected the DataFrame"),
        (lambda records: None, "type NoneType: expected the DataFrame"),
    ):
        with pytest.raises(HandlerError, match=said):
            run_job(job_of(group, topic, handler, try_empty=True), holder)  # type: ignore[arg-type]
    assert delivered(state, group) == [(0, 0, 0)]


def _holder(at: SharePartition) -> Holder:
    return Holder([at])
