"""What is leased and not in the log: gaps where nothing ever was to be read, never where something was lost."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame

from sharequeue.domain.errors import UnknownTopicId
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("isolation_level", "accepted", "gaps"), [("read_committed", 20, 13), ("read_uncommitted", 30, 3)]
)
def test_offsets_that_the_log_does_not_return_are_gaps(
    group: str,
    make_topic: MakeTopic,
    settings: Settings,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    isolation_level: str,
    accepted: int,
    gaps: int,
) -> None:
    """Ten committed records, ten aborted, ten committed, and three markers: what no reader sees is
    acknowledged as gaps, and the partition is drained to its very end."""
    topic = make_topic(1)
    producer = Producer(client_config(settings, transactional_id=f"gaps-{topic}") | {"log_level": 0})
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for number in range(10):
            producer.produce(topic, str(number).encode())
        producer.flush(PATIENCE_S)
        end()
    holder = assigned(topic, share_isolation_level=isolation_level)
    report = run_job(job_of(group, topic, all_accepted), holder)
    assert (report.accepted, report.gaps, report.without_row) == (accepted, gaps, 0)
    (status,) = state.figures.describe(group)
    assert (status.spso, status.lag, status.acquired) == (33, 0, 0)


@pytest.mark.parametrize("filled", [5, 20])
def test_offsets_of_a_recreated_topic_are_no_gaps(
    filled: int,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    topics: Topics,
    state: State,
) -> None:
    """What is missing because the topic is another one now is not acknowledged, nor another topic's records at the
    same offsets; the run says what happened."""
    topic = make_topic(1)
    produce(topic, 0, range(20))

    def too_late(records: DataFrame) -> DataFrame:
        topics.delete(topic)
        make_topic(1, topic)
        produce(topic, 0, range(filled))
        return all_accepted(records)

    impatient = {"kafkaConsumer.pollTimeoutMs": "2000"}
    with pytest.raises(UnknownTopicId, match="recreated"):
        run_job(job_of(group, topic, too_late, reader_options=impatient), assigned(topic))
    assert state.outputs.counted(group, f"sink-{group}") == []
