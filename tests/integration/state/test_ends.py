"""What is left when something ends: offsets that are reset, a group, a topic."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.domain.errors import GroupIdNotFound, InconsistentClusterId
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, LogSeen, SharePartition
from sharequeue.groups.configs import GroupConfigs, ServiceConfigs, alter_group_configs
from sharequeue.groups.configs.published import publish_service_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, ensure_group, heartbeat
from sharequeue.kafka.topics import Topics
from sharequeue.service.coordinator import Coordinator
from sharequeue.state import State
from tests import single
from tests.integration.state.state_calls import audited
from tests.waiting import PATIENCE_S, one_round, pass_time, wait_for_locks

AT = SharePartition("g", "t", 0)


@pytest.fixture
def state(private_database: Database) -> State:
    """Group g, with a dead-letter topic and 100 records."""
    state = State(private_database)
    ensure_group(private_database, "g")
    alter_group_configs(private_database, "g", {"errors.deadletterqueue.topic.name": "dlq.g"})
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, 100, 100)
    return state


def count(database: Database, table: str) -> int:
    rows = database.rows(sa.text(f"select count(*) as n from sharequeue.{table}"))  # noqa: S608 - names below
    return int(rows[0]["n"])


def test_a_reset_leaves_nothing_of_the_dead_letters_before_it(
    state: State, private_database: Database
) -> None:
    """Attempts of records, the open batch, and why it was held are of before the reset: they go with it."""
    lease = single.acquire(state, AT, "m", None, 10)
    assert lease is not None
    single.acknowledge(state, lease, {AcknowledgeType.REJECT: OffsetSet.of((0, 5))})
    assert state.dead_letters.open(AT, 10) is not None
    state.dead_letters.hold(AT, "the topic is not there")
    tables = ("failed_attempts", "held_dead_letters", "dead_letter_batches")
    assert [count(private_database, table) > 0 for table in tables] == [True, True, True]
    single.alter_offsets(state, AT, "id", 0)
    assert {table: count(private_database, table) for table in tables} == dict.fromkeys(tables, 0)


def test_a_group_that_comes_back_is_configured_as_before(state: State, private_database: Database) -> None:
    """Deleting a group leaves its configs, as on a broker: it starts where its own reset policy says."""
    alter_group_configs(
        private_database, "g", {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": 3}
    )
    assert state.administration.delete_group("g")
    joined = heartbeat(private_database, HeartbeatRequest("g", "m1", 0, subscribed_topic_names=("t",)))
    assert joined.error_code == 0
    configs = GroupConfigs.load(private_database, "g")
    assert (configs.auto_offset_reset, configs.delivery_count_limit) == ("earliest", 3)
    limits = sa.text("select delivery_count_limit from sharequeue.group_settings where group_id = 'g'")
    assert private_database.rows(limits)[0]["delivery_count_limit"] == 3


def removed(state: State, minutes: float, *, execute: bool = True) -> int:
    found = state.administration.remove_deleted_topics(timedelta(minutes=minutes), execute=execute)
    return sum(each.share_partitions for each in found)


def test_the_state_of_a_deleted_topic_goes_after_the_broker_has_said_so_for_long_enough(state: State) -> None:
    """Not before the time has passed, not when the broker was silent in between, not of another topic id. What went
    is in the audit log."""
    state.initialize(SharePartition("g", "other", 0), "its id", 0, 1)
    state.administration.note_topics({"t": None, "other": "its id"})
    assert removed(state, 15) == 0
    pass_time(state.database, 10 * 60)
    assert removed(state, 0) == 0
    for _ in range(32):
        state.administration.note_topics({"t": None, "other": "its id"})
        pass_time(state.database, 30)
    assert removed(state, 17) == 0
    assert removed(state, 15, execute=False) == 1
    assert removed(state, 15) == 1
    assert [status.topic for status in state.figures.describe("g")] == ["other"]
    assert audited(state) == ["remove_deleted_topic"]
    assert (removed(state, 0), count(state.database, "gone_topics")) == (0, 0)
    assert state.figures.verify() == []


def test_a_topic_that_is_there_again_or_not_spoken_of_keeps_its_state(state: State) -> None:
    """The same id again takes it back; a topic that the broker says nothing of is not gone."""
    state.administration.note_topics({"t": None})
    state.administration.note_topics({"t": "id"})
    assert removed(state, 0) == 0
    state.administration.note_topics({})
    state.administration.note_topics({"somebody else's": None})
    assert removed(state, 0) == 0
    state.administration.note_topics({"t": "another id"})
    assert removed(state, 0) == 1


def test_a_group_begins_anew_on_a_topic_made_again(
    private_database: Database, topics: Topics, make_topic: Callable[..., str]
) -> None:
    """The watch does it by itself: state of the old topic is removed, and the new one starts by the reset policy."""
    topic = make_topic()
    configs = ServiceConfigs.of({"deleted.topics.retention.ms": "0"})
    coordinator = Coordinator(private_database, topics, configs)
    alter_group_configs(private_database, "w", {"share.auto.offset.reset": "earliest"})
    heartbeat(private_database, HeartbeatRequest("w", "m1", 0, subscribed_topic_names=(topic,)))
    one_round(coordinator)
    [before] = State(private_database).figures.describe("w")
    topics.delete(topic)
    one_round(coordinator)
    assert State(private_database).figures.describe("w") == []
    made = topics.create(topic, 1)
    one_round(coordinator)
    [after] = State(private_database).figures.describe("w")
    assert (after.topic_id, after.status, before.topic_id != after.topic_id) == (
        made.topic_id,
        "active",
        True,
    )


def test_another_cluster_is_refused_until_the_owner_says_otherwise(
    state: State, private_database: Database, topics: Topics
) -> None:
    """With both ids and what to do; the watch then touches nothing, though all topics are gone there."""
    state.administration.check_cluster("one")
    state.administration.check_cluster("one")
    with pytest.raises(
        InconsistentClusterId, match=r"belongs to Kafka cluster two, but the state to cluster one.*rebind"
    ):
        state.administration.check_cluster("two")
    heartbeat(private_database, HeartbeatRequest("g", "m1", 0, subscribed_topic_names=("t",)))
    configs = ServiceConfigs.of({"deleted.topics.retention.ms": "0"})
    coordinator = Coordinator(private_database, topics, configs)
    with pytest.raises(InconsistentClusterId):
        coordinator.watch()
    assert [status.topic for status in state.figures.describe("g")] == ["t"]
    rebound = sa.text("select sharequeue.rebind_cluster(:cluster) as before")
    assert private_database.rows(rebound, cluster=topics.cluster_id())[0]["before"] == "one"
    assert audited(state)[-1] == "rebind_cluster"
    coordinator.watch()
    assert state.figures.describe("g") == []


def test_every_process_has_the_services_dead_letter_rules(
    state: State, private_database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prefix and the making of topics come from the database, whatever the environment of a writer says."""
    publish_service_configs(
        private_database,
        ServiceConfigs.of(
            {
                "errors.deadletterqueue.topic.name.prefix": "letters.",
                "errors.deadletterqueue.auto.create.topics.enable": "true",
            }
        ),
    )
    monkeypatch.setenv("SHAREQUEUE_ERRORS_DEADLETTERQUEUE_TOPIC_NAME_PREFIX", "mine.")
    configs = GroupConfigs.load(private_database, "g")
    rules = DeadLetterWriter(settings, state, "g", configs).rules
    assert (rules.prefix, rules.auto_create) == ("letters.", True)


def test_group_configs_are_checked_by_what_the_service_published(
    state: State, private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds and values come from the database in every process, whatever its environment says."""
    published = {"group.share.max.delivery.count.limit": "20", "group.share.session.timeout.ms": "50000"}
    publish_service_configs(private_database, ServiceConfigs.of(published))
    monkeypatch.setenv("SHAREQUEUE_GROUP_SHARE_SESSION_TIMEOUT_MS", "60000")
    alter_group_configs(private_database, "g", {"share.delivery.count.limit": 15})
    configs = GroupConfigs.load(private_database, "g")
    assert (configs.delivery_count_limit, configs.session_timeout_ms) == (15, 50_000)
    joined = heartbeat(private_database, HeartbeatRequest("g", "m1", 0, subscribed_topic_names=("t",)))
    assert joined.session_timeout_ms == 50_000


def test_configs_that_the_service_changes_are_logged(
    private_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Old value, new value, who set the old one: a warning for each config, and none where nothing differs."""
    prefix = "errors.deadletterqueue.topic.name.prefix"
    with private_database.transaction() as connection:
        connection.exec_driver_sql("delete from sharequeue.service_configs")
    for wanted, told in (
        ({}, []),
        ({prefix: "letters."}, [f"{prefix} is letters. now; it was dlq., set by "]),
        ({prefix: "letters."}, []),
        (
            {prefix: "mine.", "group.share.delivery.count.limit": "4"},
            [
                f"{prefix} is mine. now; it was letters., set by ",
                "group.share.delivery.count.limit is 4 now; it was 5, set by ",
            ],
        ),
    ):
        caplog.clear()
        publish_service_configs(private_database, ServiceConfigs.of(wanted))
        assert len(caplog.messages) == len(told)
        assert all(any(each in message for message in caplog.messages) for each in told)


def test_the_command_removes_what_is_left_of_deleted_topics(
    state: State, private_database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says first, does it with --execute, and has nothing to do afterwards."""
    monkeypatch.setenv("SHAREQUEUE_HOME", str(settings.home))
    url = private_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)

    def removing(*options: str) -> str:
        result = CliRunner().invoke(command, ["state", "remove-deleted-topics", *options])
        assert result.exit_code == 0, result.output
        return result.output

    assert removing().startswith("no topic has been gone from the broker for 0:15:00\n")
    state.administration.note_topics({"t": None})
    assert "no topic has been gone" in removing("--execute", "--yes")
    assert removing("--gone-for", "PT0S").startswith(
        "would remove 1 share-partitions of group g: topic t (id id) has been gone since "
    )
    assert len(state.figures.describe("g")) == 1
    assert removing("--gone-for", "PT0S", "--execute", "--yes").startswith(
        "removed 1 share-partitions of group g"
    )
    assert state.figures.describe("g") == []
    assert "no topic has been gone" in removing("--gone-for", "PT0S", "--execute", "--yes")


def test_a_compaction_of_a_group_that_is_just_being_deleted(state: State, private_database: Database) -> None:
    """It waits for the deletion, and is refused by name."""
    began = sa.text("select sharequeue.begin_compaction(gen_random_uuid(), 'g', 'sink', '/folder')")
    with ThreadPoolExecutor(1) as pool:
        with private_database.transaction() as connection:
            connection.execute(sa.text("select sharequeue.delete_group('g')"))
            compaction = pool.submit(private_database.call, began)
            wait_for_locks(private_database)
            assert not compaction.done()
        with pytest.raises(GroupIdNotFound, match="there is no share group g"):
            compaction.result(PATIENCE_S)


@pytest.mark.parametrize("ends", [(100,), (200,), (100, 100)])
def test_a_group_that_is_deleted_while_its_topic_is_observed(
    state: State, private_database: Database, ends: tuple[int, ...]
) -> None:
    """The look at a log that has not grown or has, and at one that was looked at before without a change, waits for
    the deletion, and finds nothing."""
    seen = [LogSeen(AT, "id", 0, end, end) for end in ends]
    for each in seen[:-1]:
        state.observe([each])
    with ThreadPoolExecutor(1) as pool:
        with private_database.transaction() as connection:
            connection.execute(sa.text("select sharequeue.delete_group('g')"))
            observed = pool.submit(state.observe, [seen[-1]])
            wait_for_locks(private_database)
        assert observed.result(PATIENCE_S) in ({AT: None}, {AT: "active"})
    assert count(private_database, "observations") == 0


def test_a_report_of_a_group_that_nobody_knows(state: State) -> None:
    """An error by name, not a report of nothing; a group without share-partitions has an empty one."""
    record = sa.text("select sharequeue.record_report(:group) as at")
    with pytest.raises(GroupIdNotFound, match="there is no share group nobody"):
        state.database.call(record, group="nobody")
    ensure_group(state.database, "empty")
    assert state.database.call(record, group="empty")[0]["at"] is not None
