"""The last epoch there is: what a group and its share-partitions say of it; members can leave all the same."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.descriptions import describe_group
from sharequeue.groups.heartbeats import HeartbeatRequest, expire_members_of, heartbeat, refresh_group
from sharequeue.kafka.topics import TopicInfo
from sharequeue.service.coordinator.watched_topics import record_topics
from sharequeue.state import State
from tests.waiting import pass_time

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
LAST = 2**31 - 1
AT = SharePartition("g", "t", 0)
SAYS = "epoch 2147483647, the highest one in Kafka's protocol"


@pytest.fixture
def queue(private_database: Database) -> Database:
    """Give a group of one member, one epoch before the last."""
    record_topics(private_database, {"t": TopicInfo(TOPIC_ID, 1)}, ["t"])
    alter_group_configs(private_database, "g", {"share.assignment.interval.ms": 0})
    assert join(private_database, "m1") == (0, None)
    with private_database.transaction() as connection:
        connection.execute(
            text("update sharequeue.share_groups set group_epoch = :epoch, assignment_epoch = :epoch"),
            {"epoch": LAST - 1},
        )
    return private_database


def join(database: Database, member: str) -> tuple[int, str | None]:
    response = heartbeat(database, HeartbeatRequest("g", member, 0, subscribed_topic_names=("t",)))
    return response.error_code, response.error_message


def test_the_last_epoch_is_told_and_the_next_one_refused(queue: Database) -> None:
    """A group comes to 2³¹ − 1 and works there; what would raise its epoch is told why it is refused; its members may
    leave, or be gone, and one that is made anew begins at its first epoch."""
    assert State(queue).initialize(AT, TOPIC_ID, 0, LAST - 1)
    assert join(queue, "m1") == (0, None)
    described = describe_group(queue, "g")
    assert (described.group_epoch, described.assignment_epoch) == (LAST, LAST)
    assert [each["topic_name"] for each in described.members[0].assignment] == ["t"]
    code, message = join(queue, "m2")
    assert code == InvalidRequest.code
    assert message is not None
    assert f"Group g is at {SAYS}" in message
    assert len(describe_group(queue, "g").members) == 1
    assert heartbeat(queue, HeartbeatRequest("g", "m1", LAST)).error_code == 0
    assert refresh_group(queue, "g") == LAST
    pass_time(queue, 300)
    assert expire_members_of(queue, "g") == ["m1"]
    assert describe_group(queue, "g").group_epoch == LAST
    administration = State(queue).administration
    with pytest.raises(InvalidRequest, match=SAYS):
        administration.reset_offsets("g", {("t", 0): 0}, {"t": TOPIC_ID}, execute=True)
    assert administration.delete_group("g")
    assert join(queue, "m1") == (0, None)
    assert describe_group(queue, "g").group_epoch == 2


def test_the_last_epoch_of_a_share_partition(queue: Database) -> None:
    """A share-partition begins at the group's last epoch; to raise its own is refused, and changes nothing."""
    assert heartbeat(queue, HeartbeatRequest("g", "m1", -1)).error_code == 0
    state = State(queue)
    assert state.initialize(AT, TOPIC_ID, 7, LAST)
    with pytest.raises(InvalidRequest, match=f"Share-partition t-0 of group g is at {SAYS}"):
        state.administration.raise_state_epochs()
    assert state.figures.describe("g")[0].spso == 7
