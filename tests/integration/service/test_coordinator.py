"""What happens by itself, on a real broker: initialisation by policy, growth, retention, deletion, two at
once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.domain.errors import (
    BrokerNotAvailable,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.groups.descriptions import describe_group
from sharequeue.groups.group_names import awaited_share_partitions
from sharequeue.groups.heartbeats import HeartbeatRequest, HeartbeatResponse, heartbeat
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import LogOffsets, Topics, TopicsFound
from sharequeue.service.coordinator import Coordinator
from sharequeue.service.coordinator.watched_topics import watched_groups
from sharequeue.state import State
from sharequeue.state.journal import Journal
from sharequeue.state.replicas import read_replicas
from tests import single
from tests.fixtures.logs import add_partitions, delete_before
from tests.waiting import PATIENCE_S, one_round, wait_until

MakeTopic = Callable[..., str]
HOUR_MS = 3_600_000


@pytest.fixture
def coordinator(private_database: Database, topics: Topics) -> Iterator[Coordinator]:
    """Give a coordinator of a database of its own, stepped by hand."""
    # A topic without a start offset is tried at each step.
    at_once = ServiceConfigs.of({"group.share.initialize.retry.interval.ms": "1"})
    yield Coordinator(private_database, topics, at_once)
    topics.close()


def produce(settings: Settings, topic: str, records: int, partition: int = 0, ago_ms: int = 0) -> None:
    """Write records, dated so many milliseconds ago."""
    producer = Producer(client_config(settings))
    stamp = int(time.time() * 1000) - ago_ms
    for number in range(records):
        producer.produce(topic, str(number).encode(), partition=partition, timestamp=stamp)
    assert producer.flush(PATIENCE_S) == 0


def join(database: Database, topic: str, reset: str = "earliest", group: str = "g") -> HeartbeatResponse:
    alter_group_configs(
        database, group, {"share.auto.offset.reset": reset, "share.assignment.interval.ms": 0}
    )
    return heartbeat(database, HeartbeatRequest(group, "m1", 0, subscribed_topic_names=(topic,)))


def starts(database: Database, group: str = "g") -> dict[int, int]:
    return {status.partition: status.spso for status in State(database).figures.describe(group)}


def test_earliest_starts_at_the_log_start(
    settings: Settings, private_database: Database, coordinator: Coordinator, make_topic: MakeTopic
) -> None:
    """A new group with `earliest` begins at the log start, is assigned at once, and sees the log end as
    lag."""
    topic = make_topic(2)
    produce(settings, topic, 5)
    assert join(private_database, topic).assignment == []
    step = one_round(coordinator)
    assert (step.initialized, step.observed) == (2, 2)
    assert starts(private_database) == {0: 0, 1: 0}
    assert [status.lag for status in State(private_database).figures.describe("g")] == [5, 0]
    told = heartbeat(private_database, HeartbeatRequest("g", "m1", 2, subscribed_topic_names=(topic,)))
    assert [assigned["partitions"] for assigned in told.assignment or ()] == [[0, 1]]


def test_latest_starts_at_the_log_end(
    settings: Settings, private_database: Database, coordinator: Coordinator, make_topic: MakeTopic
) -> None:
    """With `latest` only what is produced after initialisation is delivered; the start is kept."""
    topic = make_topic()
    produce(settings, topic, 5)
    join(private_database, topic, "latest")
    one_round(coordinator)
    produce(settings, topic, 3)
    one_round(coordinator)
    assert starts(private_database) == {0: 5}
    assert [status.lag for status in State(private_database).figures.describe("g")] == [3]


def test_a_partition_without_a_leader_is_named_and_its_lag_is_not_zero(
    settings: Settings,
    private_database: Database,
    coordinator: Coordinator,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fresh group begins with the other partition. The fault of the topic, in `/ready` and the log, names this one.
    It stays a share-partition that is awaited when the member is gone. The fault ends when a leader is there."""
    topic, ask = make_topic(2), Topics.ask

    def asked(topics: Topics, names: Iterable[str]) -> TopicsFound:
        found = ask(topics, names)
        known = {name: replace(info, leaderless=frozenset({1})) for name, info in found.known.items()}
        return TopicsFound(known, found.refused)

    monkeypatch.setattr(Topics, "ask", asked)
    join(private_database, topic)
    one_round(coordinator)
    assert starts(private_database) == {0: 0}
    assert "LEADER_NOT_AVAILABLE: Partitions without a leader: 1." in coordinator.watcher.faults[topic]
    assert "Partitions without a leader cannot start" in coordinator.waiting["g", topic]
    heartbeat(private_database, HeartbeatRequest("g", "m1", -1))
    assert awaited_share_partitions(private_database, "g") == [(topic, 1)]
    monkeypatch.undo()
    join(private_database, topic)
    one_round(coordinator)
    assert (starts(private_database), coordinator.watcher.faults) == ({0: 0, 1: 0}, {})
    assert awaited_share_partitions(private_database, "g") == []


def test_by_duration_starts_at_a_young_record(
    settings: Settings, private_database: Database, coordinator: Coordinator, make_topic: MakeTopic
) -> None:
    """With `by_duration` a partition begins at its first record that is young enough; without one it
    waits."""
    topic = make_topic(2)
    produce(settings, topic, 4, ago_ms=2 * HOUR_MS)
    produce(settings, topic, 2)
    join(private_database, topic, "by_duration:PT1H")
    one_round(coordinator)
    assert starts(private_database) == {0: 4}
    assert "Partitions: 1." in coordinator.waiting["g", topic]
    produce(settings, topic, 3, partition=1, ago_ms=2 * HOUR_MS)
    produce(settings, topic, 1, partition=1)
    one_round(coordinator)
    assert starts(private_database) == {0: 4, 1: 3}
    assert coordinator.waiting == {}


def test_by_duration_reaches_no_further_than_the_first_record(
    settings: Settings, private_database: Database, coordinator: Coordinator, make_topic: MakeTopic
) -> None:
    """A duration that reaches behind 1970 is a time before every record, and no number that means something else to
    the broker: the group begins with the first."""
    topic = make_topic(1)
    produce(settings, topic, 2)
    join(private_database, topic, "by_duration:PT1000000000H")
    one_round(coordinator)
    assert starts(private_database) == {0: 0}
    assert coordinator.waiting == {}


@pytest.mark.rule("R-GR-10")
def test_a_topic_without_a_start_is_tried_again_after_the_interval(
    settings: Settings, private_database: Database, topics: Topics, make_topic: MakeTopic
) -> None:
    """`group.share.initialize.retry.interval.ms`: until it has passed, the broker is not asked again."""
    topic, moved = make_topic(), [0.0]
    configs = ServiceConfigs.of({"group.share.initialize.retry.interval.ms": "20000"})
    coordinator = Coordinator(private_database, topics, configs, now=lambda: time.time() + moved[0])
    join(private_database, topic, "by_duration:PT1H")
    one_round(coordinator)
    produce(settings, topic, 1)
    one_round(coordinator)
    assert starts(private_database) == {}
    assert "Partitions: 0." in coordinator.waiting["g", topic]
    moved[0] = 21.0
    one_round(coordinator)
    assert starts(private_database) == {0: 0}


def test_partitions_added_later_start_at_zero(
    settings: Settings,
    private_database: Database,
    coordinator: Coordinator,
    make_topic: MakeTopic,
    topics: Topics,
) -> None:
    """A topic that the group knows grows from 0 whatever the policy; a group that comes later starts by
    policy."""
    topic = make_topic()
    produce(settings, topic, 2)
    join(private_database, topic, "latest")
    one_round(coordinator)
    add_partitions(topics, topic, 2)
    produce(settings, topic, 3, partition=1)
    join(private_database, topic, "latest", "late")
    one_round(coordinator)
    assert starts(private_database) == {0: 2, 1: 0}
    assert starts(private_database, "late") == {0: 2, 1: 3}


def test_growth_while_a_partition_still_waits(
    settings: Settings,
    private_database: Database,
    coordinator: Coordinator,
    make_topic: MakeTopic,
    topics: Topics,
) -> None:
    """A partition that waits for a young record is not taken for one added later."""
    topic = make_topic(2)
    produce(settings, topic, 1)
    produce(settings, topic, 4, partition=1, ago_ms=2 * HOUR_MS)
    join(private_database, topic, "by_duration:PT1H")
    one_round(coordinator)
    add_partitions(topics, topic, 3)
    one_round(coordinator)
    assert starts(private_database) == {0: 0, 2: 0}
    produce(settings, topic, 1, partition=1)
    one_round(coordinator)
    assert starts(private_database) == {0: 0, 1: 4, 2: 0}


def test_a_topic_that_comes_later(
    private_database: Database, coordinator: Coordinator, topic: str, make_topic: MakeTopic
) -> None:
    """Subscribing to a topic that is not there waits, with the reason, and starts once the topic is made."""
    join(private_database, topic)
    one_round(coordinator)
    assert "no such topic" in coordinator.waiting["g", topic]
    make_topic(1, topic)
    one_round(coordinator)
    assert starts(private_database) == {0: 0}


def test_records_deleted_from_the_log(
    settings: Settings, private_database: Database, coordinator: Coordinator, make_topic: MakeTopic
) -> None:
    """A log start that moves past the SPSO takes it along at the next look."""
    topic = make_topic()
    produce(settings, topic, 10)
    join(private_database, topic)
    one_round(coordinator)
    delete_before(settings, topic, 4)
    one_round(coordinator)
    assert starts(private_database) == {0: 4}


def test_a_deleted_and_a_recreated_topic(
    settings: Settings,
    private_database: Database,
    coordinator: Coordinator,
    make_topic: MakeTopic,
    topics: Topics,
) -> None:
    """A deleted topic is assigned to nobody; made again it is another topic, and its state is marked, not
    mixed."""
    topic = make_topic()
    join(private_database, topic)
    one_round(coordinator)
    topics.delete(topic)
    one_round(coordinator)
    assert [member.assignment for member in describe_group(private_database, "g").members] == [[]]
    make_topic(1, topic)
    one_round(coordinator)
    assert [status.status for status in State(private_database).figures.describe("g")] == ["topic_recreated"]
    assert "created again" in coordinator.waiting["g", topic]


def test_a_topic_that_is_taken_over_during_a_look_is_not_taken_for_empty(
    settings: Settings,
    private_database: Database,
    coordinator: Coordinator,
    make_topic: MakeTopic,
    topics: Topics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The groups were read before somebody began one anew on the topic of now."""
    topic = make_topic()
    join(private_database, topic)
    one_round(coordinator)
    topics.delete(topic)
    make_topic(1, topic)
    produce(settings, topic, 3)

    looks: list[object] = []

    def and_then_taken_over(database: Database, turn: int) -> object:
        groups = watched_groups(database, turn)
        looks.append(groups)
        if len(looks) == 1:
            return groups  # what is assigned; the ends of the logs are the second question
        single.alter_offsets(
            State(private_database), SharePartition("g", topic, 0), topics.info(topic).topic_id, 2
        )
        return groups

    monkeypatch.setattr("sharequeue.service.coordinator.watch.watched_groups", and_then_taken_over)
    heartbeat(private_database, HeartbeatRequest("g", "m1", -1))
    one_round(coordinator)
    [status] = State(private_database).figures.describe("g")
    assert (status.status, status.spso, status.log_end, status.lag) == ("active", 2, 3, 1)


def test_a_step_ends_sessions_and_locks(
    settings: Settings, private_database: Database, coordinator: Coordinator, make_topic: MakeTopic
) -> None:
    """A step expires silent members and sweeps lapsed locks, and remaining members get what is free."""
    topic = make_topic(2)
    produce(settings, topic, 5)
    join(private_database, topic)
    one_round(coordinator)
    state = State(private_database)
    single.acquire(state, SharePartition("g", topic, 0), "bare", None, 5)
    heartbeat(private_database, HeartbeatRequest("g", "m2", 0, subscribed_topic_names=(topic,)))
    private_database.rows(text("select sharequeue.set_clock_offset(interval '35 s')"))
    heartbeat(private_database, HeartbeatRequest("g", "m2", 0, subscribed_topic_names=(topic,)))
    assert one_round(coordinator).swept_leases == 1
    private_database.rows(text("select sharequeue.set_clock_offset(interval '50 s')"))
    assert one_round(coordinator).expired == 1
    members = describe_group(private_database, "g").members
    assert [(m.member_id, [t["partitions"] for t in m.assignment]) for m in members] == [("m2", [[0, 1]])]


@pytest.mark.rule("R-GR-10")
def test_two_coordinators_side_by_side(
    settings: Settings, private_database: Database, make_topic: MakeTopic, topics: Topics
) -> None:
    """Two coordinators that run at once initialise every share-partition exactly once, by the policy."""
    topic = make_topic(6)
    produce(settings, topic, 3)
    stop = threading.Event()
    pair = [Coordinator(private_database, topics, interval=0.05, watch_interval=0.05) for _ in range(2)]
    threads = [threading.Thread(target=each.run, args=(stop,)) for each in pair]
    for thread in threads:
        thread.start()
    try:
        join(private_database, topic, "latest")
        wait_until(lambda: len(starts(private_database)) == 6)
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert starts(private_database) == {0: 3, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0}
    assert [each.faults for each in pair] == [{}, {}]


def test_without_a_broker_sessions_still_end(
    settings: Settings, private_database: Database, make_topic: MakeTopic
) -> None:
    """A broker that is away stops the watch, which says so and goes on trying, and nothing else."""
    lost = Topics(settings.replace(bootstrap_servers="127.0.0.1:1"), timeout=1)
    coordinator = Coordinator(private_database, lost, interval=0.05, watch_interval=0.05)
    join(private_database, "t")
    stop = threading.Event()
    thread = threading.Thread(target=coordinator.run, args=(stop,))
    thread.start()
    try:
        wait_until(lambda: "watch" in coordinator.faults)
        assert "127.0.0.1:1" in coordinator.faults["watch"]
        private_database.rows(text("select sharequeue.set_clock_offset(interval '5 min')"))
        wait_until(lambda: describe_group(private_database, "g").members == ())
        assert "sweep" not in coordinator.faults
        wait_until(lambda: read_replicas(private_database).alive == 1)
    finally:
        stop.set()
        thread.join(PATIENCE_S)
        lost.close()
    assert read_replicas(private_database).alive == 0  # it was stopped in order


def test_what_the_broker_says(settings: Settings, topic: str) -> None:
    """Topics gives ids, partitions, offsets, offsets by time, and Kafka's errors by name."""
    with Topics(settings) as topics:
        made = topics.create(topic, 2)
        try:
            produce(settings, topic, 3)
            assert topics.describe([topic, "absent"]) == {topic: made}
            assert topics.offsets(topic) == {0: LogOffsets(0, 3, 3), 1: LogOffsets(0, 0, 0)}
            assert topics.offsets_for_times(topic, 0) == {0: 0, 1: None}
            with pytest.raises(TopicAlreadyExists):
                topics.create(topic)
            with pytest.raises(InvalidTopic):
                topics.create("no spaces")
        finally:
            topics.delete(topic)
        assert topics.describe([topic]) == {}
        with pytest.raises(UnknownTopicOrPartition):
            topics.offsets(topic)


def test_open_transactions_hold_the_stable_offset(settings: Settings, make_topic: MakeTopic) -> None:
    """The last stable offset stays before an open transaction while the log end passes it."""
    topic = make_topic()
    producer = Producer(client_config(settings, transactional_id=f"id-{topic}"))
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(PATIENCE_S)
    with Topics(settings) as topics:
        assert topics.offsets(topic) == {0: LogOffsets(0, 1, 0)}
        producer.commit_transaction(PATIENCE_S)
        # The broker answers the commit before it has written the marker.
        wait_until(lambda: topics.offsets(topic) == {0: LogOffsets(0, 2, 2)})


def test_a_broker_that_is_away(settings: Settings) -> None:
    """No broker is BROKER_NOT_AVAILABLE within the time limit, with the address that was tried."""
    with (
        Topics(settings.replace(bootstrap_servers="127.0.0.1:1"), timeout=1) as topics,
        pytest.raises(BrokerNotAvailable, match=r"127\.0\.0\.1:1 does not answer"),
    ):
        topics.describe(["t"])


def test_the_journal_is_kept_short(private_database: Database, topics: Topics) -> None:
    """A snapshot where a share-partition has changed often enough, partitions for the days ahead, old days dropped;
    as the service's configs say."""
    configs = ServiceConfigs.of(
        {
            "share.coordinator.snapshot.update.records.per.snapshot": "3",
            "journal.retention.minutes": str(2 * 24 * 60),
        }
    )
    keeper = Coordinator(private_database, topics, configs)
    state, journal = State(private_database), Journal(private_database)
    keeper.keep()
    days = [partition.day for partition in journal.partitions()]
    assert len(days) >= 3
    with private_database.transaction() as connection:
        connection.execute(text("insert into sharequeue.share_groups (group_id) values ('g')"))
    at = SharePartition("g", "t", 0)
    state.initialize(at, "id", 0, 1)
    single.observe(state, at, "id", 0, 100, 100)
    for _ in range(3):
        lease = single.acquire(state, at, "m", None, 10)
        assert lease is not None
        single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets})
    assert keeper.keep().snapshots == 1
    assert len(journal.snapshots(at)) == 2
    assert journal.verify() == []
    with private_database.transaction() as connection:
        connection.execute(text("select sharequeue.set_clock_offset(interval '5 days')"))
    dropped = keeper.keep().dropped
    assert days[0] in dropped
    assert journal.verify() == []
