"""What a run says of a topic that was deleted, or made again."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from sharequeue.database import Database
from sharequeue.domain.errors import UnknownTopicId, UnknownTopicOrPartition
from sharequeue.domain.results.runs import RunReport
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.topics import Topics
from sharequeue.spark import lease, pipeline
from sharequeue.state import State
from tests.fixtures.pipelines import Produce, all_accepted
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S, wait_until


def test_a_recreated_topic_is_named_and_others_are_processed(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    topics: Topics,
    database: Database,
    service: str,
    settings: Settings,
    spark: SparkSession,
    state: State,
) -> None:
    """A run over it alone ends at once with its name and what to do; one over another topic, too, does its work and
    remarks it."""
    old, other = make_topic(), make_topic()
    alter_group_configs(database, group, {"share.auto.offset.reset": "earliest"})
    produce(old, 0, ["before"])
    alone, both = (
        pipeline(group=group, topics=topics_of, sink=f"sink-{group}")(all_accepted)
        for topics_of in ([old], [old, other])
    )
    wait_until(lambda: both.run(settings, spark=spark, progress=False).accepted == 1)
    topics.delete(old)
    topics.create(old, 1)
    produce(old, 0, ["after", "after"])
    produce(other, 0, ["goes on"])
    wait_until(lambda: "created again" in str(state.figures.lost_topics(group, [old])))
    said = f"Topic {old} was deleted and created again.*offsets reset --group {group} --topic {old} "
    with pytest.raises(UnknownTopicId, match=said):
        alone.run(settings, spark=spark, progress=False)
    reports: list[RunReport] = []

    def works() -> bool:
        reports.append(both.run(settings, spark=spark, progress=False))
        return reports[-1].accepted == 1

    # The first runs may find the other topic not assigned yet.
    wait_until(works)
    report = reports[-1]
    assert report.remark is not None
    assert f"Topic {old} was deleted and created again" in report.remark
    assert "assigned to other members" not in report.remark


def test_a_deleted_topic_is_named_and_others_are_processed(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    topics: Topics,
    database: Database,
    service: str,
    settings: Settings,
    spark: SparkSession,
    state: State,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Runs, jobs that follow, trials and blocks over another topic, too, work on that one, and name the deleted one;
    over it alone they end with what happened to it. A topic of which the group knows nothing is missing."""
    old, other = make_topic(), make_topic()
    alter_group_configs(database, group, {"share.auto.offset.reset": "earliest"})
    produce(old, 0, ["before"])
    alone, both, misspelt = (
        pipeline(group=group, topics=topics_of, sink=f"sink-{group}", name=group)(all_accepted)
        for topics_of in ([old], [old, other], [old, f"{other}-misspelt"])
    )
    wait_until(lambda: both.run(settings, spark=spark, progress=False).accepted == 1)
    topics.delete(old)
    wait_until(lambda: bool(state.figures.lost_topics(group, [old])))
    produce(other, 0, ["goes on"])
    said = f"Topic {old} was deleted: group {group} has no records of it left"
    for over in (alone.run, alone.follow):
        with pytest.raises(UnknownTopicId, match=said):
            over(settings, spark=spark, progress=False, max_seconds=PATIENCE_S)
    with pytest.raises(UnknownTopicOrPartition, match=f"There is no topic '{other}-misspelt'"):
        misspelt.run(settings, spark=spark, progress=False)

    assert both.try_on(settings=settings, spark=spark).records == 1
    report = both.run(settings, spark=spark, progress=False)
    assert report.accepted == 1
    assert said in str(report.remark)

    produce(other, 0, ["is followed"])
    caplog.clear()
    done = both.follow(settings, spark=spark, progress=False, max_rounds=1, max_seconds=PATIENCE_S)
    assert done.accepted == 1
    assert said in caplog.text

    produce(other, 0, ["is leased"])
    with lease(group, [old, other], settings=settings, spark=spark) as leased:
        assert leased.count == 1
        leased.write(all_accepted(leased.records), f"{settings.output}/{group}")
        leased.acknowledge()
    with lease(group, [old, other], settings=settings, spark=spark) as leased:
        assert said in str(leased.why_nothing)
    with pytest.raises(UnknownTopicId, match=said):
        lease(group, [old], settings=settings, spark=spark).open()
