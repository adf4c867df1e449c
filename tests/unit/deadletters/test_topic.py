"""Which topic may take dead letters, and what the reason says when it may not; what a marker remembers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sharequeue.deadletters.batches import marker_group, transactional_id
from sharequeue.deadletters.outbox import Marker
from sharequeue.deadletters.topic import (
    CannotWrite,
    DeadLetterRules,
    DeadLetterTopic,
    FoundTopic,
    broker_refusal,
    name_problem,
    topic_problem,
    unanswered,
)
from sharequeue.domain.errors import InvalidTopic, TopicAuthorizationFailed, UnknownServerError
from sharequeue.domain.values import DeadLetterBatch, SharePartition

RULES = DeadLetterRules("g", "dlq.g")
ENABLED = {"errors.deadletterqueue.group.enable": "true"}


@pytest.mark.rule("R-DL-6")
@pytest.mark.parametrize(
    ("topic", "part"),
    [
        ("", "no dead-letter topic"),
        ("__dlq", "begins with `__`"),
        ("dlq.ä", "not a valid topic name"),
        ("dlq." + "x" * 246, "not a valid topic name"),
        ("letters", "does not begin with `dlq.`"),
    ],
)
def test_an_unfit_name_is_refused_with_what_to_do(topic: str, part: str) -> None:
    """Empty, internal, illegal and unprefixed names are each told apart, and the config to change is named."""
    problem = name_problem(replace(RULES, topic=topic))
    assert problem is not None
    assert part in problem
    assert "errors.deadletterqueue.topic.name" in problem


def test_a_topic_that_the_group_reads_is_refused() -> None:
    """Its dead letters would come back to it as records, without end."""
    problem = name_problem(replace(RULES, inputs=frozenset({"orders", "dlq.g"})))
    assert problem is not None
    assert "group `g` reads `dlq.g`" in problem
    assert name_problem(replace(RULES, inputs=frozenset({"orders"}))) is None


def test_an_empty_prefix_allows_any_name() -> None:
    """Kafka: "" = any."""
    assert name_problem(replace(RULES, topic="letters", prefix="")) is None


@pytest.mark.rule("R-DL-6")
def test_a_topic_must_be_opted_in() -> None:
    """Where the broker knows the config, only `true` will do."""
    assert topic_problem(RULES, FoundTopic(1, "id", ENABLED)) is None
    problem = topic_problem(RULES, FoundTopic(1, "id", {"errors.deadletterqueue.group.enable": "false"}))
    assert problem is not None
    assert "errors.deadletterqueue.group.enable=true" in problem


def test_on_a_broker_without_the_config_the_group_says_so() -> None:
    """Brokers before 4.4 do not know the topic's opt-in: a config of the group stands in for it."""
    found = FoundTopic(1, "id", {"cleanup.policy": "delete"})
    assert "sharequeue.dead.letter.topic.enable=true" in (topic_problem(RULES, found) or "")
    assert topic_problem(replace(RULES, opted_in=True), found) is None


def test_a_missing_topic_is_made_only_where_that_is_allowed() -> None:
    """Kafka's `errors.deadletterqueue.auto.create.topics.enable`."""
    assert "create it" in (topic_problem(RULES, None) or "")
    assert topic_problem(replace(RULES, auto_create=True), None) is None


def test_a_compacted_topic_is_refused() -> None:
    """It takes no record without a key, and would eat the letters of one key but the last."""
    found = FoundTopic(1, "id", {**ENABLED, "cleanup.policy": "compact,delete"})
    assert "cleanup.policy=delete" in (topic_problem(RULES, found) or "")


def test_the_partition_is_the_sources_modulo() -> None:
    """Destination partition = source partition mod partitions of the dead-letter topic."""
    topic = DeadLetterTopic("dlq.g", "id", 3, 1000)
    assert [topic.partition_for(partition) for partition in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_a_marker_survives_its_offset_commit() -> None:
    """Sequence, batch, topic and progress are read back as they were committed."""
    marker = Marker(3, "abc", "dlq.g", "id-1", 99)
    committed = marker.committed_at("t", 4)
    assert (committed.topic, committed.partition, committed.offset) == ("t", 4, 3)
    assert Marker.parse(committed) == marker
    assert Marker.parse(TopicPartition("t", 4, -1001)) is None


def test_a_marker_that_somebody_else_wrote_is_of_no_batch() -> None:
    """An offset committed by hand, without our metadata, vouches for nothing."""
    found = Marker.parse(TopicPartition("t", 4, 3))
    assert found is not None
    assert not found.is_of(DeadLetterBatch(SharePartition("g", "t", 4), 3, "id", ()))


def test_the_marker_of_each_group_has_a_name_that_the_client_takes() -> None:
    """Printable ASCII as it is; any other name is encoded, and never as another group's."""
    assert marker_group("a b%C3%B6'") == "sharequeue.dlq.a b%C3%B6'"
    assert marker_group("k\u00f6ln") == "sharequeue.dlq-encoded.k%C3%B6ln"
    names = ["\u00f6", "%C3%B6", "-encoded.%C3%B6", "\u202e", "\U0001f600" * 249, "~", "\x7f"]
    found = [marker_group(name) for name in names]
    assert len(set(found)) == len(names)
    assert all(name.isascii() and name.isprintable() for name in found)


def test_each_share_partition_has_a_transactional_id_of_its_own() -> None:
    """Group and topic may have dots; writers of the same id would fence one another."""
    names = [("a.b", "c"), ("a", "b.c"), ("a:b", "c"), ("a", "b-1"), ("a", "b")]
    ids = [transactional_id(SharePartition(*each, partition)) for each in names for partition in (0, 1)]
    assert len({*ids}) == len(ids)


@pytest.mark.parametrize(
    "problem",
    [
        broker_refusal(KafkaException(KafkaError(KafkaError.UNKNOWN, "EndTxn commit failed")), "grant WRITE"),
        unanswered(UnknownServerError("EndTxn commit failed"), "grant WRITE"),
    ],
)
def test_an_error_without_a_name_is_no_missing_permission(problem: CannotWrite) -> None:
    """It passes: it is tried again, drops no record, and leads to the broker's log."""
    assert not problem.lasting
    assert problem.reason == (
        "the broker returned an unknown error (EndTxn commit failed), see the broker's log: "
        "the records wait, and they are tried again."
    )


@pytest.mark.parametrize(
    "code",
    [KafkaError._FATAL, KafkaError._STATE, KafkaError.KAFKA_STORAGE_ERROR, KafkaError.FENCED_LEADER_EPOCH],
)
def test_what_is_not_known_to_last_drops_nothing(code: int) -> None:
    """Only a refusal that is known to need somebody lasts; any other is tried again."""
    assert not broker_refusal(KafkaException(KafkaError(code)), "grant WRITE").lasting


@pytest.mark.parametrize(
    "problem",
    [
        broker_refusal(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), "grant WRITE"),
        unanswered(TopicAuthorizationFailed(), "grant WRITE"),
    ],
)
def test_a_missing_permission_needs_somebody_to_act(problem: CannotWrite) -> None:
    """It lasts, and what to grant is named."""
    assert problem.lasting
    assert problem.reason.endswith("grant WRITE.")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (
            KafkaError.INVALID_TRANSACTION_TIMEOUT,
            "raise `transaction.max.timeout.ms` of the brokers to 60000",
        ),
        (KafkaError.TOPIC_EXCEPTION, "choose another name"),
        (KafkaError.POLICY_VIOLATION, "the broker has a policy for topics"),
        (KafkaError.INVALID_REPLICATION_FACTOR, "`default.replication.factor`"),
        (KafkaError.MSG_SIZE_TOO_LARGE, "raise `max.message.bytes`"),
        (KafkaError.UNSUPPORTED_VERSION, "upgrade it"),
        (KafkaError.SECURITY_DISABLED, "SHAREQUEUE_KAFKA_"),
        (KafkaError.INVALID_REQUIRED_ACKS, "see the broker's log"),
    ],
)
def test_each_refusal_has_its_own_remedy(code: int, remedy: str) -> None:
    """Only a missing permission asks for a grant, and only what creating it by hand repairs asks for that."""
    said = KafkaException(KafkaError(code))
    assert remedy in broker_refusal(said, "grant WRITE").reason
    assert "grant" not in broker_refusal(said, "grant WRITE").reason


def test_a_name_that_collides_asks_for_another() -> None:
    """The broker refuses to create `a.b` beside `a_b`: creating it by hand would be refused in the same way."""
    problem = unanswered(
        InvalidTopic("Topic 'dlq.a.b' collides with existing topics: dlq.a_b"), "grant CREATE"
    )
    assert problem.lasting
    assert "dlq.a_b" in problem.reason
    assert "choose another name" in problem.reason
    assert "grant" not in problem.reason
