"""Groups, members and epochs as ShareGroupHeartbeat has them, on a database of each test's own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.domain.errors import CoordinatorNotAvailable, GroupIdNotFound, InvalidConfig, InvalidGroupId
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import GroupConfigs, ServiceConfigs, alter_group_configs
from sharequeue.groups.descriptions import describe_group, list_groups
from sharequeue.groups.heartbeats import (
    HeartbeatRequest,
    HeartbeatResponse,
    ensure_group,
    expire_members_of,
    heartbeat,
)
from sharequeue.kafka.topics import TopicInfo
from sharequeue.service.coordinator.watched_topics import record_topics, start_grown
from sharequeue.state import State
from sharequeue.state.replicas import hear_replica
from tests import single
from tests.waiting import set_clock

pytestmark = pytest.mark.usefixtures("standing_clock")

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
JOIN = HeartbeatRequest("g", "m1", 0, subscribed_topic_names=("t",))

INVALID_REQUEST, UNKNOWN_MEMBER_ID, GROUP_ID_NOT_FOUND = 42, 25, 69
GROUP_MAX_SIZE_REACHED, FENCED_MEMBER_EPOCH = 81, 110


@pytest.fixture
def queue(private_database: Database) -> Database:
    """Give a database where topic `t` is known with 4 partitions, nothing of it initialised, and
    assignments at once."""
    record_topics(private_database, {"t": TopicInfo(TOPIC_ID, 4)}, ["t"])
    alter_group_configs(private_database, "g", {"share.assignment.interval.ms": 0})
    return private_database


def beat(queue: Database, member: str, epoch: int, topics: list[str] | None = None) -> HeartbeatResponse:
    subscribed = None if topics is None else tuple(topics)
    return heartbeat(queue, HeartbeatRequest("g", member, epoch, subscribed_topic_names=subscribed))


def initialize(queue: Database, topic: str = "t", partitions: int = 4, topic_id: str = TOPIC_ID) -> None:
    for partition in range(partitions):
        State(queue).initialize(SharePartition("g", topic, partition), topic_id, 0, 2)


def settle(queue: Database, *members: str) -> dict[str, list[int]]:
    """Heartbeat every member until nothing moves; return what each is assigned."""
    for _ in range(3):
        for member in members:
            beat(queue, member, beat(queue, member, 0, ["t"]).member_epoch)
    return {
        member: [p for topic in beat(queue, member, 0, ["t"]).assignment or () for p in topic["partitions"]]
        for member in members
    }


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (replace(JOIN, member_id=""), "member id has 0 characters"),
        (replace(JOIN, member_id="x" * 37), "37 characters"),
        (replace(JOIN, group_id=""), "group id must not be empty"),
        (replace(JOIN, rack_id=""), "rack id must not be empty"),
        # As a broker of 4.4.0, which trims them as Java does.
        (replace(JOIN, member_id=" \t"), "member id must not be blank"),
        (replace(JOIN, group_id="  "), "group id must not be empty"),
        (replace(JOIN, rack_id=" "), "rack id must not be empty"),
        (replace(JOIN, subscribed_topic_names=None), "must subscribe"),
        (replace(JOIN, subscribed_topic_names=()), "must subscribe"),
        (replace(JOIN, member_epoch=-2), "Member epoch -2 is not valid"),
    ],
)
@pytest.mark.rule("R-GR-0")
def test_malformed_heartbeats(queue: Database, request_: HeartbeatRequest, says: str) -> None:
    """INVALID_REQUEST that says what is wrong, and nobody has joined."""
    response = heartbeat(queue, request_)
    assert response.error_code == INVALID_REQUEST
    assert says in (response.error_message or "")
    assert describe_group(queue, "g").members == ()


def test_no_group_has_a_blank_name(queue: Database) -> None:
    """However it would be made."""
    for make in (lambda: alter_group_configs(queue, " ", {}), lambda: ensure_group(queue, "  ")):
        with pytest.raises(InvalidGroupId, match="characters"):
            make()


@pytest.mark.rule("R-GR-0")
def test_an_earlier_row_answers_first(queue: Database) -> None:
    """The member id is looked at before the group id, the group id before the epoch."""
    both = HeartbeatRequest("", "", -5)
    assert "member id" in (heartbeat(queue, both).error_message or "")
    assert "group id" in (heartbeat(queue, replace(both, member_id="m")).error_message or "")


@pytest.mark.parametrize("epoch", [1, -1])
@pytest.mark.rule("R-GR-0")
def test_a_group_that_is_not_there(queue: Database, epoch: int) -> None:
    """Only epoch 0 makes a group; anything else is GROUP_ID_NOT_FOUND and makes none."""
    request = HeartbeatRequest("ghost", "m1", epoch)
    assert heartbeat(queue, request).error_code == GROUP_ID_NOT_FOUND
    with pytest.raises(GroupIdNotFound):
        describe_group(queue, "ghost")


@pytest.mark.rule("R-GR-0")
def test_a_full_group(queue: Database) -> None:
    """A full group refuses strangers at any epoch before it asks who they are; members stay."""
    small = ServiceConfigs.of({"group.share.max.size": "1"})
    assert heartbeat(queue, JOIN, small).error_code == 0
    stranger = replace(JOIN, member_id="m2")
    assert heartbeat(queue, stranger, small).error_code == GROUP_MAX_SIZE_REACHED
    assert heartbeat(queue, replace(stranger, member_epoch=5), small).error_code == GROUP_MAX_SIZE_REACHED
    assert heartbeat(queue, JOIN, small).error_code == 0


@pytest.mark.parametrize("epoch", [5, -1])
@pytest.mark.rule("R-GR-0", "R-GR-2")
def test_an_unknown_member(queue: Database, epoch: int) -> None:
    """Who is not a member can neither stay nor leave."""
    beat(queue, "m1", 0, ["t"])
    response = beat(queue, "other", epoch)
    assert (response.error_code, response.member_epoch) == (UNKNOWN_MEMBER_ID, 0)


@pytest.mark.rule("R-GR-0")
def test_epochs_too_high_and_too_low(queue: Database) -> None:
    """The epoch must be the known one or the one before (a lost response); all else is fenced."""
    beat(queue, "m1", 0, ["t"])
    initialize(queue)
    assert beat(queue, "m1", 2).member_epoch == 3
    assert beat(queue, "m1", 4).error_code == FENCED_MEMBER_EPOCH
    assert beat(queue, "m1", 2).member_epoch == 3
    assert beat(queue, "m1", 1).error_code == FENCED_MEMBER_EPOCH


@pytest.mark.rule("R-GR-4", "R-GR-6")
def test_the_epochs_of_a_groups_life(queue: Database) -> None:
    """A first member gets epoch 2, 3 once share-partitions are initialised, a second 4; each leaver adds
    one."""
    first = beat(queue, "m1", 0, ["t"])
    assert (first.member_epoch, first.assignment) == (2, [])
    initialize(queue)
    second = beat(queue, "m1", 2)
    assert second.member_epoch == 3
    assert second.assignment is not None
    assert [topic["partitions"] for topic in second.assignment] == [[0, 1, 2, 3]]
    assert (second.assignment[0]["topic_id"], second.assignment[0]["topic_name"]) == (TOPIC_ID, "t")
    assert beat(queue, "m2", 0, ["t"]).member_epoch == 4
    assert beat(queue, "m1", 3).member_epoch == 4
    assert beat(queue, "m1", -1) == HeartbeatResponse(member_id="m1", member_epoch=-1)
    assert beat(queue, "m2", 4).member_epoch == 5
    assert beat(queue, "m2", -1).member_epoch == -1
    group = describe_group(queue, "g")
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Empty", 6, 6)
    again = beat(queue, "m1", 0, ["t"])
    assert again.member_epoch == 7
    assert again.assignment


@pytest.mark.rule("R-GR-2")
def test_leaving_ignores_the_epoch_and_works_once(queue: Database) -> None:
    """A member leaves whatever epoch it is at; the second time it is unknown."""
    beat(queue, "m1", 0, ["t"])
    assert beat(queue, "m1", -1).error_code == 0
    assert beat(queue, "m1", -1).error_code == UNKNOWN_MEMBER_ID


@pytest.mark.rule("R-GR-1")
def test_joining_again_changes_no_epoch(queue: Database) -> None:
    """Epoch 0 rejoins at any time; with the same subscription the epoch stays and the assignment is told in
    full."""
    beat(queue, "m1", 0, ["t"])
    initialize(queue)
    beat(queue, "m1", 2)
    again = beat(queue, "m1", 0, ["t", "t"])
    assert again.member_epoch == 3
    assert again.assignment is not None
    assert again.assignment[0]["partitions"] == [0, 1, 2, 3]


@pytest.mark.rule("R-GR-8")
def test_the_assignment_is_sent_when_there_is_news(queue: Database) -> None:
    """Told on joining, on naming topics, and when it moved; otherwise left out."""
    beat(queue, "m1", 0, ["t"])
    initialize(queue)
    assert beat(queue, "m1", 2).assignment
    assert beat(queue, "m1", 3).assignment is None
    assert beat(queue, "m1", 3, ["t"]).assignment


@pytest.mark.rule("R-GR-8")
def test_the_assignment_is_sent_once(queue: Database) -> None:
    """A new epoch with the same share-partitions is told without them; a changed set, a join or a
    subscription with them."""
    beat(queue, "m1", 0, ["t"])
    initialize(queue)
    told = beat(queue, "m1", 2)
    assert told.assignment is not None
    # Another member of another topic: the group's epoch rises, what m1 has does not change.
    beat(queue, "m2", 0, ["other"])
    again = beat(queue, "m1", told.member_epoch)
    assert again.member_epoch > told.member_epoch
    assert again.assignment is None
    assert beat(queue, "m1", again.member_epoch, ["t"]).assignment == told.assignment
    assert beat(queue, "m1", 0, ["t"]).assignment == told.assignment
    record_topics(queue, {"t": TopicInfo(TOPIC_ID, 0)}, ["t"])
    assert beat(queue, "m1", again.member_epoch).assignment == []


@pytest.mark.rule("R-GR-8")
def test_a_repeated_heartbeat_gets_the_assignment_again(queue: Database) -> None:
    """A member that still sends its previous epoch did not receive the last response, so its assignment is
    sent again, until it has sent the new epoch once."""
    beat(queue, "m1", 0, ["t"])
    initialize(queue)
    lost = beat(queue, "m1", 2)
    assert lost.assignment
    for _ in range(2):
        assert beat(queue, "m1", 2) == lost
    assert beat(queue, "m1", lost.member_epoch).assignment is None
    assert beat(queue, "m1", 2).assignment is None
    # The epoch rises before the member has received the changed assignment.
    record_topics(queue, {"t": TopicInfo(TOPIC_ID, 0)}, ["t"])
    emptied = beat(queue, "m1", lost.member_epoch)
    assert emptied.assignment == []
    beat(queue, "m2", 0, ["other"])
    assert beat(queue, "m1", lost.member_epoch).assignment == []


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a\nb", "ä", "a/b", "x" * 250])
def test_a_name_that_is_no_topics(queue: Database, name: str) -> None:
    """A name that can be no topic's is INVALID_TOPIC_EXCEPTION, by Kafka's rule alone, and nobody has joined."""
    result = heartbeat(queue, replace(JOIN, subscribed_topic_names=("t", name)))
    assert result.error_code == 17
    assert "not legal" in (result.error_message or "")
    assert describe_group(queue, "g").members == ()


@pytest.mark.parametrize("field", ["group_id", "client_id", "rack_id"])
def test_names_have_an_end(queue: Database, field: str) -> None:
    """Group, client and rack ids have 249 characters at most; more is INVALID_REQUEST, no failure of the database."""

    def named(length: int) -> HeartbeatRequest:
        changes: dict[str, Any] = {field: "n" * length}
        return replace(JOIN, **changes)

    assert heartbeat(queue, named(249)).error_code == 0
    result = heartbeat(queue, named(250))
    assert result.error_code == INVALID_REQUEST
    assert "250 characters" in (result.error_message or "")


def test_a_held_group_answers_soon(queue: Database) -> None:
    """While somebody else's transaction holds a group, its members are told to come again, before it ends."""
    beat(queue, "m1", 0, ["t"])
    with queue.transaction() as connection:
        connection.execute(text("select from sharequeue.share_groups where group_id = 'g' for update"))
        result = beat(queue, "m1", 2)
    assert result.error_code == CoordinatorNotAvailable.code
    assert "locked by another transaction" in (result.error_message or "")


@pytest.mark.rule("R-GR-3", "R-GR-4")
def test_a_changed_subscription(queue: Database) -> None:
    """Another subscription is another epoch; what is no longer subscribed is taken, an empty list takes
    all."""
    record_topics(queue, {"u": TopicInfo("BBBBBBBBBBBBBBBBBBBBBB", 2)}, ["u"])
    beat(queue, "m1", 0, ["t"])
    initialize(queue)
    epoch = beat(queue, "m1", 2).member_epoch
    changed = beat(queue, "m1", epoch, ["u"])
    assert (changed.member_epoch, changed.assignment) == (epoch + 1, [])
    initialize(queue, "u", 2, "BBBBBBBBBBBBBBBBBBBBBB")
    given = beat(queue, "m1", epoch + 1)
    assert given.assignment is not None
    assert [(topic["topic_name"], topic["partitions"]) for topic in given.assignment] == [("u", [0, 1])]
    none = beat(queue, "m1", epoch + 2, [])
    assert (none.member_epoch, none.assignment) == (epoch + 3, [])


@pytest.mark.rule("R-GR-7")
def test_members_share_and_take_over(queue: Database) -> None:
    """Two members have two share-partitions each; when one leaves, the other gets all and keeps what it
    had."""
    initialize(queue)
    shared = settle(queue, "m1", "m2")
    assert sorted(shared["m1"] + shared["m2"]) == [0, 1, 2, 3]
    assert len(shared["m1"]) == 2
    beat(queue, "m2", -1)
    assert settle(queue, "m1") == {"m1": [0, 1, 2, 3]}


@pytest.mark.rule("R-GR-5")
def test_the_assignment_waits_for_its_interval(queue: Database) -> None:
    """Within share.assignment.interval.ms of the last one, a joiner gets the old epoch and nothing
    yet."""
    alter_group_configs(queue, "g", {"share.assignment.interval.ms": 15_000})
    initialize(queue)
    assert beat(queue, "m1", 0, ["t"]).member_epoch == 2
    waiting = beat(queue, "m2", 0, ["t"])
    assert (waiting.member_epoch, waiting.assignment) == (2, [])
    set_clock(queue, timedelta(seconds=16))
    assert beat(queue, "m2", 2).member_epoch == 3


@pytest.mark.rule("R-GR-4")
def test_grown_metadata_raises_the_epoch(queue: Database) -> None:
    """A subscribed topic with more partitions is another group epoch; its new share-partitions
    start at 0."""
    beat(queue, "m1", 0, ["t"])
    initialize(queue)
    beat(queue, "m1", 2)
    record_topics(queue, {"t": TopicInfo(TOPIC_ID, 6)}, ["t"])
    assert start_grown(queue, "g") == 2
    by_partition = {status.partition: status for status in State(queue).figures.describe("g")}
    assert [(by_partition[p].spso, by_partition[p].state_epoch) for p in (4, 5)] == [(0, 4), (0, 4)]
    grown = beat(queue, "m1", 3)
    partitions = [p for topic in grown.assignment or () for p in topic["partitions"]]
    assert (grown.member_epoch, partitions) == (4, [0, 1, 2, 3, 4, 5])


def test_a_deleted_topic_is_assigned_to_nobody(queue: Database) -> None:
    """A topic that the broker no longer has is taken from its members."""
    beat(queue, "m1", 0, ["t"])
    initialize(queue)
    beat(queue, "m1", 2)
    record_topics(queue, {}, ["t"])
    assert beat(queue, "m1", 3).assignment == []


@pytest.mark.rule("R-GR-9", "R-SS-6")
def test_silence_ends_a_session(queue: Database) -> None:
    """After the session timeout without a heartbeat a member is out, its records come back, the epoch has
    risen."""
    beat(queue, "m1", 0, ["t"])
    initialize(queue)
    epoch = beat(queue, "m1", 2).member_epoch
    beat(queue, "m2", 0, ["t"])
    state = State(queue)
    at = SharePartition("g", "t", 0)
    single.observe(state, at, TOPIC_ID, 0, 10, 10)
    lease = single.acquire(state, at, "m1", epoch, 10, lock_duration_ms=600_000)
    assert lease is not None
    set_clock(queue, timedelta(seconds=25))
    assert expire_members_of(queue, "g") == []
    beat(queue, "m2", 0, ["t"])
    set_clock(queue, timedelta(seconds=46))
    assert expire_members_of(queue, "g") == ["m1"]
    assert beat(queue, "m1", epoch).error_code == UNKNOWN_MEMBER_ID
    assert state.figures.leases("g") == []
    assert [status.available for status in state.figures.describe("g") if status.partition == 0] == [10]
    assert [member.member_id for member in describe_group(queue, "g").members] == ["m2"]


@pytest.mark.rule("R-GR-2")
def test_leaving_keeps_the_locks(queue: Database) -> None:
    """Who leaves releases nothing: its records wait for their lock, as in Kafka."""
    beat(queue, "m1", 0, ["t"])
    initialize(queue)
    epoch = beat(queue, "m1", 2).member_epoch
    state = State(queue)
    single.observe(state, SharePartition("g", "t", 0), TOPIC_ID, 0, 10, 10)
    single.acquire(state, SharePartition("g", "t", 0), "m1", epoch, 10)
    beat(queue, "m1", -1)
    assert [lease.records for lease in state.figures.leases("g")] == [10]


def test_an_outage_ends_no_session(queue: Database) -> None:
    """While no replica was there to hear anybody, a session's time stands still; it goes on with what was left."""
    silence = timedelta(seconds=10)
    beat(queue, "m1", 0, ["t"])
    assert hear_replica(queue, "a", silence) is None
    set_clock(queue, timedelta(seconds=15))
    hear_replica(queue, "a")
    set_clock(queue, timedelta(seconds=315))
    assert hear_replica(queue, "b", silence) is not None
    assert hear_replica(queue, "c", silence) is None
    set_clock(queue, timedelta(seconds=325))
    assert expire_members_of(queue, "g") == []
    set_clock(queue, timedelta(seconds=360))
    assert expire_members_of(queue, "g") == ["m1"]


def test_a_replica_beside_others_lengthens_nothing(queue: Database) -> None:
    """A replica that starts again and again beside another one keeps no silent member alive; nor does one alone that
    is back at once."""
    beat(queue, "m1", 0, ["t"])
    for second in range(5, 35, 5):
        set_clock(queue, timedelta(seconds=second))
        hear_replica(queue, "steady")
        hear_replica(queue, f"crashing {second}", timedelta(seconds=10))
        assert expire_members_of(queue, "g") == []
    for second in range(33, 52, 3):
        set_clock(queue, timedelta(seconds=second))
        hear_replica(queue, f"crashing {second}", timedelta(seconds=10))
    assert expire_members_of(queue, "g") == ["m1"]


def test_many_members_join_at_once(queue: Database) -> None:
    """Joins side by side leave one group, every member in it, and every share-partition with its sharers."""
    initialize(queue)
    names = [f"m{i}" for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda name: beat(queue, name, 0, ["t"]), names))
    assert {result.error_code for result in results} == {0}
    settled = settle(queue, *names)
    assert sorted(p for partitions in settled.values() for p in partitions) == [0, 0, 1, 1, 2, 2, 3, 3]
    group = describe_group(queue, "g")
    assert group.group_epoch == group.assignment_epoch


@pytest.mark.rule("R-AD-6")
def test_configs_of_a_group(queue: Database) -> None:
    """Configs are set, read back as values, and removed; one wrong among several changes none."""
    alter_group_configs(
        queue, "h", {"share.delivery.count.limit": 7, "share.renew.acknowledge.enable": False}
    )
    configs = GroupConfigs.load(queue, "h")
    assert (configs.delivery_count_limit, configs.renew_acknowledge_enable) == (7, False)
    with pytest.raises(InvalidConfig):
        alter_group_configs(queue, "h", {"share.delivery.count.limit": 3, "share.isolation.level": "no"})
    assert GroupConfigs.load(queue, "h").delivery_count_limit == 7
    alter_group_configs(queue, "h", {"share.delivery.count.limit": None})
    assert GroupConfigs.load(queue, "h").delivery_count_limit == 5
    with pytest.raises(InvalidGroupId):
        alter_group_configs(queue, "", {})


@pytest.mark.rule("R-AD-6")
def test_sessions_must_outlast_heartbeats(queue: Database) -> None:
    """A session timeout that is not above the heartbeat interval is refused, also set one after the other."""
    wide = ServiceConfigs.of(
        {"group.share.min.session.timeout.ms": "1000", "group.share.max.heartbeat.interval.ms": "15000"}
    )
    alter_group_configs(queue, "g", {"share.heartbeat.interval.ms": 15_000}, wide)
    with pytest.raises(InvalidConfig, match="longer than the heartbeat interval"):
        alter_group_configs(queue, "g", {"share.session.timeout.ms": 15_000}, wide)


def test_sql_and_python_agree_on_defaults(queue: Database, no_environment: pytest.MonkeyPatch) -> None:
    """The defaults that the SQL functions fall back on are those of the configs."""
    ensure_group(queue, "plain")
    values = GroupConfigs.of("plain", {}).values
    for name in (
        "share.delivery.count.limit",
        "share.record.lock.duration.ms",
        "share.isolation.level",
        "share.partition.max.record.locks",
        "share.renew.acknowledge.enable",
        "errors.deadletterqueue.topic.name",
        "sharequeue.circuit.breaker.failure.percent",
        "sharequeue.circuit.breaker.min.records",
        "sharequeue.circuit.breaker.window.records",
        "sharequeue.circuit.breaker.probe.records",
        "sharequeue.circuit.breaker.open.ms",
        "sharequeue.cancelled.run.refund.enable",
    ):
        found = queue.rows(
            text("select sharequeue_internal.group_config('plain', :name) as value"), name=name
        )
        assert found[0]["value"] == str(values[name]).lower()


def test_groups_in_a_list(queue: Database) -> None:
    """A group is Empty without members and Stable with some."""
    beat(queue, "m1", 0, ["t"])
    ensure_group(queue, "empty")
    states = {group.group_id: (group.group_state, group.members) for group in list_groups(queue)}
    assert states == {"g": ("Stable", 1), "empty": ("Empty", 0)}
