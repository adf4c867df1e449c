"""What does a run say of a topic that was made again?"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from sharequeue.database import Database
from sharequeue.errors import UnknownTopicId
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.topics import Topics
from sharequeue.settings import Settings
from sharequeue.spark import pipeline
from sharequeue.spark.report import RunReport
from sharequeue.state import State
from tests.fixtures.pipelines import Produce, all_accepted
from tests.fixtures.stack import MakeTopic
from tests.waiting import wait_until


def test_a_topic_made_again(
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
    wait_until(lambda: bool(state.figures.lost_topics(group, [old])))
    said = f"Topic {old} was deleted and made again.*offsets reset --group {group} --topic {old} "
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
    assert f"Topic {old} was deleted and made again" in report.remark
    assert "assigned to other members" not in report.remark
