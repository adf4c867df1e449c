"""What a consumer is told when its topic is deleted, or made again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from confluent_kafka import KafkaError, KafkaException

from sharequeue import AcknowledgeType, Database, Settings, ShareConsumer, State
from sharequeue.kafka.topics import Topics
from tests.fixtures.stack import MakeTopic
from tests.integration.consumer.share_group import Work, poll_some, seen, wait_until, work_on


@pytest.fixture
def work(settings: Settings, private_database: Database, group: str) -> Iterator[Work]:
    """Give a group with a coordinator at work, in a database of its own."""
    with work_on(settings, private_database, group) as work:
        yield work


def refused(consumer: ShareConsumer) -> KafkaError:
    """The error of the next polls; the member asks for news meanwhile."""
    errors: list[KafkaError] = []

    def raised() -> bool:
        consumer._member.membership._wake.set()
        try:
            consumer.poll(0.1)
        except KafkaException as error:
            errors.append(error.args[0])
        return bool(errors)

    wait_until(raised)
    return errors[0]


def test_a_topic_deleted_and_made_again(work: Work, topics: Topics, make_topic: MakeTopic) -> None:
    """A commit and a poll say UNKNOWN_TOPIC_ID, with what to do; the other topic goes on. When the old one's state is
    removed the new one's records are delivered, and none of the old one's."""
    topic, other = make_topic(), make_topic()
    work.produce(topic, 3)
    with work.consumer(topic, other, explicit=True) as consumer:
        for message in poll_some(consumer, 3):
            consumer.acknowledge(message)
        topics.delete(topic)

        def lost() -> bool:
            consumer._member.membership._wake.set()
            return topic in consumer._member.lost_topics

        wait_until(lost)
        [error] = consumer.commit_sync().values()
        assert error is not None
        assert error.args[0].code() == KafkaError.UNKNOWN_TOPIC_ID
        assert f"Topic {topic} was deleted: group {work.group} has no records" in refused(consumer).str()

        topics.create(topic, 4)
        said = refused(consumer).str()
        assert f"Topic {topic} was deleted and created again" in said
        assert f"sharequeue offsets reset --group {work.group} --topic {topic}" in said
        work.produce(topic, 2)
        work.produce(other, 1)
        held = poll_some(consumer)
        assert seen(held) == [(0, 1)]
        consumer.acknowledge(held[0], AcknowledgeType.ACCEPT)
        assert list(consumer.commit_sync().values()) == [None]
        with work.consumer(topic) as second:
            assert refused(second).str() == said

        State(work.database).administration.remove_deleted_topics(timedelta(0), execute=True)
        assert [message.value() for message in poll_some(consumer, 2)] == [b"0", b"1"]
