"""What members, operators and clients get from the service in a recorded scenario, step by step.

The replay of ``replay`` on Postgres, with the product's own groups around the state: heartbeats, sessions, the
assignor, the coordinator's turns. Member ids are the scenario's; nothing of the group coordinator's results is taken
over from the broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sharequeue.domain.errors import ShareError, error_for
from sharequeue.groups.heartbeats import HeartbeatRequest, HeartbeatResponse
from tests.conformance.log import PartitionLog
from tests.conformance.operator_results import command_line
from tests.conformance.postgres_engine import PostgresEngine
from tests.conformance.recorded_topics import RecordedTopics
from tests.conformance.replay import Replay, Result, judged
from tests.conformance.scenario import CLIENT, COMMAND_LINE, COORDINATOR, ENGINE, Scenario, Step
from tests.conformance.service_engine import ServiceEngine

Assignment = dict[str, list[int]]


class ServiceReplay(Replay):
    """One scenario on Postgres and the service's groups."""

    engine: ServiceEngine
    compares = frozenset((ENGINE, COORDINATOR, COMMAND_LINE, CLIENT))

    def __init__(self, scenario: Scenario) -> None:
        assert PostgresEngine.shared is not None, "tests/conformance/conftest.py sets it"
        self.member_epochs: dict[str, int] = {}
        self.shares: dict[str, Assignment] = {}
        """What each member of a group knows to be assigned to it."""
        self.last_shape: set[tuple[str, str, int]] = set()
        super().__init__(scenario, ServiceEngine(PostgresEngine.shared))
        self.topics = RecordedTopics(self)
        self.engine.serve(self.topics)

    def carry_out(self, step: Step) -> Result | None:
        if step.op == "poll" and step.do["member"] in self.group_of:
            if not self.assigned.get(step.do["member"]):  # what was assigned there is asked for all the same
                self.assigned.pop(step.do["member"], None)
            there = set(self._initialized())
            asked = self._polled_partitions(step.do["member"], self._group(step), step)
            self.pending = {at for at in asked if at not in there}
        return super().carry_out(step)

    def _advance(self, seconds: float) -> None:
        super()._advance(seconds)
        self.engine.coordinator.settle()

    def _do_create_partitions(self, step: Step) -> None:
        topic = step.do.get("topic", "t")
        for partition in range(self.partitions[topic], step.do["total"]):
            self.logs[topic, partition] = PartitionLog()
        self.partitions[topic] = step.do["total"]

    # Members

    def join(self, member: str, group_id: str, topics: Sequence[str]) -> None:
        self._join(member, group_id, topics, settles=True)

    def _join(self, member: str, group_id: str, topics: Sequence[str], *, settles: bool) -> str:
        self.group_of[member] = group_id
        error = self._beat(member, HeartbeatRequest(group_id, member, 0, None, tuple(topics), member))
        if error == "NONE":
            self.engine.coordinator.watch()
            self._settle([*self.shares] if settles else [member])
        return error

    def _beat(self, member: str, request: HeartbeatRequest) -> str:
        """One heartbeat, and what the member learns from it; return the error's name."""
        return self._learn(member, self.engine.heartbeat(request))

    def _learn(self, member: str, response: HeartbeatResponse) -> str:
        if response.error_code:
            return error_for(response.error_code, None).name
        if response.member_epoch < 0:
            self._forget(member)
            return "NONE"
        self.member_epochs[member] = response.member_epoch
        if response.assignment is not None:
            self.shares[member] = _told(response)
        self.shares.setdefault(member, {})
        self.assigned[member] = [(t, p) for t, ps in self.shares[member].items() for p in ps]
        return "NONE"

    def _forget(self, member: str) -> None:
        self.shares.pop(member, None)
        self.assigned.pop(member, None)

    def _settle(self, members: Sequence[str]) -> None:
        """Heartbeats of these members until a round of them changes neither epochs nor assignments."""
        before = None
        while before != (self.member_epochs, self.shares):
            before = dict(self.member_epochs), dict(self.shares)
            for member in members:
                epoch = self.member_epochs[member]
                error = self._beat(
                    member, HeartbeatRequest(self.group_of[member], member, epoch, client_id=member)
                )
                assert error == "NONE", (member, error)

    def _coordinator_join(self, step: Step) -> Result:
        do, got, member = step.do, step.got, step.do["member"]
        error = self._join(
            member, do.get("group", "g"), do.get("topics", ["t"]), settles=do.get("settle", True)
        )
        ours = {
            "error": error,
            "memberEpoch": self.member_epochs.get(member),
            "assignment": self.shares[member],
        }
        return judged(got, {name: ours[name] for name in got})

    def _coordinator_hb(self, step: Step) -> Result:
        do, got, member = step.do, step.got, step.do["member"]
        known = self.member_epochs.get(member, 0)
        epoch = do["epoch"] if "epoch" in do else known + do.get("epochDelta", 0)
        group_id = str(do.get("groupId", do.get("group", self.group_of.get(member, "g")))).removeprefix("=")
        member_id = do.get("memberId", member)
        topics = tuple(do["topics"]) if "topics" in do else None
        request = HeartbeatRequest(group_id, member_id, epoch, do.get("rack"), topics, member)
        response = self.engine.heartbeat(request)
        if not response.error_code and member_id == member:
            self.group_of[member] = group_id
        error = self._learn(member_id, response)
        ours: dict[str, Any] = {
            "error": error,
            "memberEpoch": response.member_epoch,
            "assignmentInResponse": response.assignment is not None,
        }
        if response.assignment is not None:
            ours["assignment"] = _told(response)
        return judged({name: value for name, value in got.items() if name != "message"}, ours)

    def leave(self, member: str, group_id: str) -> str:
        """The last heartbeat of a member; return the error's name."""
        return self._beat(member, HeartbeatRequest(group_id, member, -1))

    def _coordinator_leave(self, step: Step) -> Result:
        error = self.leave(step.do["member"], self._group(step))
        return judged(step.got, {"error": error, "memberEpoch": -1 if error == "NONE" else 0})

    def _engine_close(self, step: Step) -> Result:
        """A session's end and a leave. There are no sessions here: what the member holds is released all the same."""
        member, got = step.do["member"], step.got
        results = self._end_session(step)
        error = self.leave(member, self._group(step))
        ours = {
            "session": {"error": "NONE", "partitions": results},
            "leave": error,
            "memberEpoch": -1 if error == "NONE" else 0,
        }
        without = got | {"session": got["session"] | {"error": "NONE"}}
        if without == ours and got["session"]["error"] != "NONE":
            return Result(got, ours, frozenset((28,)))
        return judged(got, ours)

    def _coordinator_settle(self, step: Step) -> Result:
        self.engine.coordinator.watch()
        self._settle([*self.shares])
        broker, ours = _counted(step.got["assignment"]), _counted(self.shares)
        if step.stable:
            return judged(broker, ours)
        # Which of equals the broker takes is random: the figures are not, and `shape` counts what was moved.
        return judged(_figures(broker), _figures(ours))

    def _coordinator_shape(self, step: Step) -> Result:
        ours, self.last_shape = shape_of(self.shares, self.last_shape)
        return judged(step.got, {name: ours[name] for name in step.got})

    def _engine_describe_group(self, step: Step) -> Result:
        """State, epochs, members and their assignments."""
        broker = {name: value for name, value in step.got.items() if name not in ("exception", "message")}
        try:
            found = self.engine.group(step.do.get("group", "g"))
        except ShareError as error:
            return judged(broker, {"error": error.name})
        members: dict[str, dict[str, Any]] = {}
        for member in found.members:
            names = [f"{topic['topic_name']}-{p}" for topic in member.assignment for p in topic["partitions"]]
            share = {"assignment": names} if step.do.get("assignment", True) else {"partitions": len(names)}
            told = {"clientId": member.client_id, "memberEpoch": member.member_epoch}
            members[member.member_id] = {**told, **share}
        ours = {
            "error": "NONE",
            "state": found.group_state,
            "groupEpoch": found.group_epoch,
            "assignmentEpoch": found.assignment_epoch,
            "members": members,
        }
        if "authorizedOperations" not in broker:
            return judged(broker, ours)
        operations = self.engine.authorized_operations(found.group_id)
        result = judged(broker, ours | {"authorizedOperations": operations})
        without = ours | {"authorizedOperations": [name for name in operations if name != "ALTER"]}
        return result if broker != without else Result(broker, result.ours, frozenset((32,)))

    # Operators

    def _command_line_cli(self, step: Step) -> Result:
        return command_line(self, step)


def _told(response: HeartbeatResponse) -> Assignment:
    return {topic["topic_name"]: topic["partitions"] for topic in response.assignment or ()}


def shape_of(
    shares: Mapping[str, Assignment], before: set[tuple[str, str, int]]
) -> tuple[dict[str, Any], set[tuple[str, str, int]]]:
    """What of an assignment does not hang on random choices: sizes, sharers, and how many pairs of member and
    share-partition were kept, taken, and added since ``before``; and the pairs themselves."""
    pairs = {(m, t, p) for m, share in shares.items() for t, ps in share.items() for p in ps}
    counted = _counted(shares)
    shape = {
        "members": len(shares),
        "partitionsPerMemberSorted": sorted(counted["partitionsPerMember"].values()),
        "perTopicSorted": {
            topic: sorted(Counter(member for member, name, _ in pairs if name == topic).values())
            for topic in sorted({topic for _, topic, _ in pairs})
        },
        "membersPerPartition": counted["membersPerPartition"],
        "pairsKept": len(before & pairs),
        "pairsTakenFromRemainingMembers": sum(pair[0] in shares for pair in before - pairs),
        "pairsAdded": len(pairs - before),
    }
    return shape, pairs


def _counted(shares: Mapping[str, Assignment]) -> dict[str, Any]:
    """An assignment with its figures, in the words of a recorded `settle`."""
    told = {member: {t: ps for t, ps in share.items() if ps} for member, share in shares.items()}
    pairs = [f"{topic}-{p}" for share in told.values() for topic, ps in share.items() for p in ps]
    return {
        "assignment": told,
        "partitionsPerMember": {member: sum(map(len, share.values())) for member, share in told.items()},
        "membersPerPartition": dict(Counter(pairs)),
    }


def _figures(counted: Mapping[str, Any]) -> list[Any]:
    """What does not hang on which of equals was taken."""
    return [sorted(counted["partitionsPerMember"].values()), counted["membersPerPartition"]]
