"""Kafka's admin operations on share groups over HTTP.

ShareGroupDescribe, DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets, DeleteGroups,
DescribeConfigs and IncrementalAlterConfigs of groups, for callers that cannot reach Postgres. Each runs
with the rights of the caller's principal (`callers`): a group without an ACL is open to it (unless
`allow.everyone.if.no.acl.found` is false), and a group with an ACL is closed unless the ACL names the principal. The
error of a refused group or partition is in the response and does not stop the others. The request bodies are in
`admin_bodies`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from sharequeue.database import Database
from sharequeue.database.pool import Joined
from sharequeue.deadletters.topic import warning_of_alter
from sharequeue.domain.errors import (
    GroupAuthorizationFailed,
    InvalidGroupId,
    InvalidRequest,
    ShareError,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.names import shown
from sharequeue.domain.values import ResetRow
from sharequeue.groups.acls import authorized_operations, on_behalf_of, refused_topics
from sharequeue.groups.configs import GroupConfigs, alter_and_tell
from sharequeue.groups.configs.keys import GROUP_CONFIGS
from sharequeue.groups.configs.names import known_key
from sharequeue.groups.configs.texts import as_text
from sharequeue.groups.descriptions import describe_group, groups_as_json
from sharequeue.groups.group_names import awaited_share_partitions, group_topics
from sharequeue.kafka.topics import Topics
from sharequeue.reports.remarks import joined_remarks, remarks_of
from sharequeue.service.admin_bodies import (
    AlterConfigsBody,
    AlterOffsetsBody,
    DeleteGroupsBody,
    DeleteOffsetsBody,
    DescribeBody,
    DescribeConfigsBody,
    DescribeOffsetsBody,
    TopicPartitions,
)
from sharequeue.service.answers import (
    AlterConfigsAnswer,
    AlterOffsetsAnswer,
    DeleteGroupsAnswer,
    DeleteOffsetsAnswer,
    DescribeAnswer,
    DescribeConfigsAnswer,
    DescribeOffsetsAnswer,
)
from sharequeue.service.bodies import RequestBody, described
from sharequeue.service.callers import ANONYMOUS
from sharequeue.state import State

_NO_OFFSET = -1
_NO_LEADER_EPOCH = -1
"""Kafka's value for an unknown epoch: a share-partition has no leader here."""

Answer = dict[str, Any]


class Admin:
    """The admin operations of one principal. Each takes a validated body and returns the response."""

    def __init__(self, database: Database, topics: Topics, principal: str = ANONYMOUS) -> None:
        self._database, self._topics, self._principal = database, topics, principal

    def groups(self, states: Iterable[str]) -> str:
        """ListGroups: return the groups in these states that the caller may DESCRIBE, by name, as JSON."""
        with on_behalf_of(self._database, self._principal) as connection:
            return groups_as_json(Joined(connection), states)

    def describe(self, body: DescribeBody) -> Answer:
        """ShareGroupDescribe: return state, epochs and members of groups, and the caller's allowed operations."""

        def one(group_id: str) -> Answer:
            allowed = self.require(group_id, "DESCRIBE")
            found = describe_group(self._database, group_id)
            self._require_topics(
                {topic["topic_name"] for member in found.members for topic in member.assignment}
            )
            return {
                **described(found),
                "authorized_operations": allowed if body.include_authorized_operations else None,
            }

        nothing = {
            "group_state": "",
            "group_epoch": 0,
            "assignment_epoch": 0,
            "assignor_name": "",
            "members": [],
            "authorized_operations": None,
        }
        return {"groups": _each("group_id", body.group_ids, one, nothing)}

    def describe_offsets(self, body: DescribeOffsetsBody) -> Answer:
        """DescribeShareGroupOffsets: return start offsets and lag; -1 if there is none. A group need not exist."""

        def one(group_id: str, topics: Sequence[TopicPartitions] | None) -> Answer:
            self.require(group_id, "DESCRIBE")
            found = {
                (each.topic, each.partition): each
                for each in State(self._database).figures.describe(group_id)
            }
            remarks = joined_remarks(remarks_of(self._database, group_id, found.values()))
            awaited = awaited_share_partitions(self._database, group_id)
            named: list[tuple[str, int]] = sorted({*found, *awaited})
            if topics is not None:
                named = [(topic.topic_name, part) for topic in topics for part in topic.partitions]
            refused = self._refused({topic for topic, _ in named}, "DESCRIBE")
            if topics is None:
                named = [at for at in named if at[0] not in refused]

            def one_of(at: tuple[str, int]) -> Answer:
                return _offsets(at[1], found.get(at), remarks.get(at), refused.get(at[0]))

            return {"topics": _by_topic(named, one_of)}

        answers: list[Answer] = []
        for each in body.groups:
            answers += _each("group_id", [each.group_id], partial(one, topics=each.topics), {"topics": []})
        return {"groups": answers}

    def alter_offsets(self, body: AlterOffsetsBody) -> Answer:
        """AlterShareGroupOffsets: set the start offsets of a group, and create it if needed. Refused while it has
        members."""
        done = {(row.topic, row.partition): row for row in self.reset_offsets(body, execute=True)}

        def one(at: tuple[str, int]) -> Answer:
            return {"partition_index": at[1], **_error_fields(done[at].error)}

        return {**_error_fields(None), "responses": _by_topic(sorted(done), one)}

    def reset_offsets(self, body: AlterOffsetsBody, *, execute: bool) -> list[ResetRow]:
        """Reset offsets as `alter_offsets` does, or only plan the reset; return a row for each partition.

        The row of a refused partition contains the error.
        """
        self.require(body.group_id, "READ")
        if not body.topics:
            return []  # as in Kafka: an empty request creates no group
        named = [(each.topic_name, part.partition_index) for each in body.topics for part in each.partitions]
        for (topic_name, index), times in Counter(named).items():
            if times > 1:
                raise InvalidRequest(
                    f"partition {index} of topic {shown(topic_name)} is named twice: give it one start offset"
                )
        refused = self._refused({each.topic_name for each in body.topics}, "READ")
        ids = dict(self._topics.ask({each.topic_name for each in body.topics}).known)
        starts: dict[tuple[str, int], int] = {}
        errors: dict[tuple[str, int], ResetRow] = {}
        for topic in body.topics:
            for each in topic.partitions:
                at = (topic.topic_name, each.partition_index)
                known = ids.get(topic.topic_name)
                error = refused.get(topic.topic_name)
                if error is None and (known is None or not 0 <= each.partition_index < known.partitions):
                    error = UnknownTopicOrPartition()
                if error is None:
                    starts[at] = each.start_offset
                else:
                    errors[at] = ResetRow(*at, None, each.start_offset, None, error)
        with self._acting() as state:
            done = state.administration.reset_offsets(
                body.group_id, starts, {name: info.topic_id for name, info in ids.items()}, execute=execute
            )
        found = {**{(row.topic, row.partition): row for row in done}, **errors}
        return [found[at] for at in sorted(found)]

    def delete_offsets(self, body: DeleteOffsetsBody) -> Answer:
        """DeleteShareGroupOffsets: delete a group's state of topics. Refused while it has members."""
        self.require(body.group_id, "DELETE")
        names = dict.fromkeys(each.topic_name for each in body.topics)
        refused = self._refused(names, "READ")
        deleted: dict[str, int] = {}
        for topic in (name for name in names if name not in refused):
            # One transaction each: all transactions lock share-partitions in the same order.
            with self._acting() as state:
                deleted[topic] = state.administration.delete_offsets(body.group_id, topic)
        absent = UnknownTopicOrPartition("There is no offset information to delete.")
        responses = [
            {"topic_name": topic, **_error_fields(refused.get(topic) or (None if deleted[topic] else absent))}
            for topic in (each.topic_name for each in body.topics)
        ]
        return {**_error_fields(None), "responses": responses}

    def delete_groups(self, body: DeleteGroupsBody) -> Answer:
        """DeleteGroups: delete each group with all its data except its configs. Refused while it has members."""

        def one(group_id: str) -> Answer:
            # First, so that the answer about a closed group is the same whether there is such a group or not.
            self.require(group_id, "DELETE")
            with self._acting() as state:
                describe_group(self._database, group_id)
                state.administration.delete_group(group_id)
            return {}

        return {"results": _each("group_id", body.groups_names, one, {})}

    def describe_configs(self, body: DescribeConfigsBody) -> Answer:
        """DescribeConfigs of groups: return each value, and whether the group has set it.

        An unknown name is refused, as in all operations here; Kafka silently leaves it out of the response.
        """

        def one(group_id: str) -> Answer:
            self.require(group_id, "DESCRIBE_CONFIGS")
            for name in body.names or ():
                known_key(name, GROUP_CONFIGS)
            found = GroupConfigs.load(self._database, group_id)
            return {
                "configs": [
                    {"name": name, "value": as_text(value), "is_default": name not in found.own}
                    for name, value in found.values.items()
                    if body.names is None or name in body.names
                ]
            }

        return {"groups": _each("group_id", body.group_ids, one, {"configs": []})}

    def alter_configs(self, body: AlterConfigsBody) -> Answer:
        """IncrementalAlterConfigs of a group: make all changes or, after an error, none. Null removes a value."""
        if not body.group_id:
            raise InvalidGroupId()
        self.require(body.group_id, "ALTER_CONFIGS")
        with on_behalf_of(self._database, self._principal) as connection:
            configs, late = alter_and_tell(Joined(connection), body.group_id, body.configs)
        # After the transaction, because the broker may be slow.
        held = warning_of_alter(self._topics.settings, self._database, configs, body.configs)
        warnings = [warning for warning in (late, held) if warning is not None]
        return {**_error_fields(None), "warnings": warnings}

    def require(self, group_id: str, operation: str) -> list[str]:
        """Return the caller's operations on a group. Raises GroupAuthorizationFailed if this one is not allowed."""
        with on_behalf_of(self._database, self._principal) as connection:
            allowed = authorized_operations(Joined(connection), group_id)
        if operation not in allowed:
            raise GroupAuthorizationFailed(f"{self._principal} may not {operation} group {shown(group_id)}")
        return allowed

    def require_whole(self, group_id: str) -> None:
        """Raise an authorization error unless the caller may describe the group and all its topics.

        InvalidGroupId for an id that no group can have, GroupAuthorizationFailed for the group,
        TopicAuthorizationFailed for a topic that it reads or subscribes to.
        """
        if "\x00" in group_id:
            raise InvalidGroupId("The group id has a NUL character: no group can have such an id.")
        self.require(group_id, "DESCRIBE")
        self._require_topics(group_topics(self._database, group_id))

    def _refused(self, topics: Iterable[str], operation: str) -> dict[str, ShareError]:
        """Return the errors of the topics for which the caller may not do this."""
        with on_behalf_of(self._database, self._principal) as connection:
            refused = refused_topics(Joined(connection), topics, operation)
        return {
            topic: TopicAuthorizationFailed(f"{self._principal} may not {operation} topic {shown(topic)}")
            for topic in sorted(refused)
        }

    def _require_topics(self, topics: Iterable[str]) -> None:
        """Raise TopicAuthorizationFailed if the caller may not describe one of a group's topics; it names none: the
        caller has not named them either."""
        if self._refused(topics, "DESCRIBE"):
            raise TopicAuthorizationFailed(
                f"The group has topics that {self._principal} may not DESCRIBE: ask their owner for an ACL"
            )

    @contextmanager
    def _acting(self) -> Iterator[State]:
        """Yield the state in one transaction in which the database's access rules are those of the caller."""
        with on_behalf_of(self._database, self._principal) as connection:
            yield State(Joined(connection))


@dataclass(frozen=True, slots=True)
class Operation:
    """An admin operation: its path, the name of Kafka's request, and its types."""

    path: str
    body: type[RequestBody]
    do: Callable[[Admin, Any], Answer]
    answer: type[Any]


OPERATIONS = (
    Operation("/v1/share-group-describe", DescribeBody, Admin.describe, DescribeAnswer),
    Operation(
        "/v1/describe-share-group-offsets", DescribeOffsetsBody, Admin.describe_offsets, DescribeOffsetsAnswer
    ),
    Operation("/v1/alter-share-group-offsets", AlterOffsetsBody, Admin.alter_offsets, AlterOffsetsAnswer),
    Operation("/v1/delete-share-group-offsets", DeleteOffsetsBody, Admin.delete_offsets, DeleteOffsetsAnswer),
    Operation("/v1/delete-groups", DeleteGroupsBody, Admin.delete_groups, DeleteGroupsAnswer),
    Operation("/v1/describe-configs", DescribeConfigsBody, Admin.describe_configs, DescribeConfigsAnswer),
    Operation("/v1/incremental-alter-configs", AlterConfigsBody, Admin.alter_configs, AlterConfigsAnswer),
)


def _each(key: str, names: Sequence[str], one: Callable[[str], Answer], nothing: Answer) -> list[Answer]:
    """Return the response for each name, also for one that is there twice; if it fails, the error with the values of
    `nothing`."""
    answers: dict[str, Answer] = {}
    for name in dict.fromkeys(names):
        try:
            if not name:
                raise InvalidGroupId()
            answers[name] = {key: name, **_error_fields(None), **one(name)}
        except ShareError as error:
            answers[name] = {key: name, **_error_fields(error), **nothing}
    return [answers[name] for name in names]


def _error_fields(error: ShareError | None) -> Answer:
    return {
        "error_code": error.code if error else 0,
        "error_message": error.message if error else None,
    }


def _by_topic(named: Sequence[tuple[str, int]], one: Callable[[tuple[str, int]], Answer]) -> list[Answer]:
    topics: dict[str, list[Answer]] = {}
    for at in named:
        topics.setdefault(at[0], []).append(one(at))
    return [{"topic_name": topic, "partitions": partitions} for topic, partitions in topics.items()]


def _offsets(
    partition: int, found: SharePartitionStatus | None, remark: str | None, refused: ShareError | None = None
) -> Answer:
    if refused is not None:
        found = remark = None
    return {
        "partition_index": partition,
        "start_offset": found.spso if found else _NO_OFFSET,
        "leader_epoch": _NO_LEADER_EPOCH,
        "lag": found.lag if found else _NO_OFFSET,
        "remark": remark,
        **_error_fields(refused),
    }
