"""The members of a live scenario's group on the broker.

The second part of `live_broker`: heartbeats, fetches, acknowledgements, a session's end, each one request of the wire
protocol over the member's own socket.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sharequeue.domain.settings import Settings
from tests.conformance import wire
from tests.conformance import wire_apis as apis
from tests.conformance.live_log import LiveLog, Step, error_name
from tests.conformance.replay import TYPES
from tests.conformance.service_replay import shape_of
from tests.waiting import PATIENCE_S

RELEASED_S = 1.0
"""How long the broker takes to release what a session held: its answer does not wait for that."""
BEAT_S = 15.0
"""A third of a member's session on the broker."""
LOADING_MS, EMPTY_MS = 3000, 200
"""How long a fetch waits for records. Of a broker that is busy the first ones may come late, those whose lock has
lapsed, and those that the fetch itself releases, which come when the release is written."""


class TooBusy(Exception):
    """This machine was too slow for the scenario as it is written: it is run anew."""


class LostFetch(TooBusy):
    """The first fetch of a share-partition waited in vain: a broker that is busy may acquire records then, and return
    none of them."""


@dataclass(slots=True)
class LiveMember:
    """A member: its socket, what it is assigned, its share session."""

    connection: wire.Connection
    group: str
    epoch: int = 0
    topics: Sequence[str] = ()
    share: dict[str, list[int]] = field(default_factory=dict)
    session_epoch: int = 0
    session: set[tuple[str, int]] = field(default_factory=set)
    polled: list[tuple[str, int, int, int]] = field(default_factory=list)


class LiveMembers(LiveLog):
    """The members of one group, by name."""

    def __init__(
        self,
        settings: Settings,
        topics: Mapping[str, int],
        groups: Mapping[str, Mapping[str, Any]],
        topic_configs: Mapping[str, Mapping[str, str]],
    ) -> None:
        super().__init__(settings, topics, groups, topic_configs)
        self.members: dict[str, LiveMember] = {}
        self.alive_until = time.monotonic() + BEAT_S
        self.last_shape: set[tuple[str, str, int]] = set()
        self.loaded: set[tuple[str, int]] = set()
        """Share-partitions that have returned records: the broker has their state."""
        self.waited = False
        """Whether a lock may have lapsed since the last fetch."""

    def __exit__(self, *raised: object) -> None:
        for member in self.members.values():
            member.connection.close()
        super().__exit__(*raised)

    def _member(self, do: Step) -> LiveMember:
        name = do["member"]
        if name not in self.members:
            connection = wire.Connection(self.settings.bootstrap_servers, name)
            self.members[name] = LiveMember(connection, do.get("group", "g"))
        return self.members[name]

    def _beat(
        self, name: str, member: LiveMember, epoch: int, topics: Sequence[str] | None
    ) -> dict[str, Any]:
        told = member.connection.ask(
            apis.HEARTBEAT,
            group=self.prefix + member.group,
            member=name,
            epoch=epoch,
            topics=None if topics is None else [self.prefix + topic for topic in topics],
        )
        if not told["error"]:
            member.epoch = told["epoch"]
            member.topics = member.topics if topics is None else topics
            if told["assignment"] is not None:
                shares = told["assignment"]["topics"]
                member.share = {self.names[t["topic_id"]]: sorted(t["partitions"]) for t in shares}
        return told

    def keep_alive(self) -> None:
        """A heartbeat of everybody now and then: a long scenario takes longer than a member's session."""
        if time.monotonic() < self.alive_until:
            return
        self.alive_until = time.monotonic() + BEAT_S
        for name, member in self.members.items():
            if member.epoch > 0:
                self._beat(name, member, member.epoch, None)

    def _join(self, do: Step) -> dict[str, Any]:
        name, member = do["member"], self._member(do)
        told = self._beat(name, member, 0, do.get("topics", ["t"]))
        if not told["error"]:
            member.session_epoch, member.session = 0, set()
            self._stand_still()
        if do.get("quiet"):
            return {"error": error_name(told)}
        return {"error": error_name(told), "memberEpoch": member.epoch, "assignment": dict(member.share)}

    def _stand_still(self) -> None:
        """Heartbeats of all until epochs and assignments stand still, and every partition is somebody's: the group
        coordinator learns of a new one a while after it was made."""
        still = 0
        deadline = time.monotonic() + PATIENCE_S
        while still < 3:
            before = [(member.epoch, dict(member.share)) for member in self.members.values()]
            for name, member in self.members.items():
                if member.epoch > 0:
                    self._beat(name, member, member.epoch, None)
            after = [(member.epoch, dict(member.share)) for member in self.members.values()]
            still = still + 1 if before == after and self._all_are_assigned() else 0
            assert time.monotonic() < deadline, after
            time.sleep(0.02)

    def _all_are_assigned(self) -> bool:
        there = [member for member in self.members.values() if member.epoch > 0]
        wanted = {(t, p) for member in there for t in member.topics for p in range(self.partitions.get(t, 0))}
        return wanted <= {(t, p) for member in there for t, share in member.share.items() for p in share}

    def _hb(self, do: Step) -> dict[str, Any]:
        member = self._member(do)
        epoch = do["epoch"] if "epoch" in do else member.epoch + do.get("epochDelta", 0)
        told = self._beat(str(do.get("memberId", do["member"])), member, epoch, do.get("topics"))
        got: dict[str, Any] = {
            "error": error_name(told),
            "memberEpoch": told["epoch"],
            "assignmentInResponse": told["assignment"] is not None,
        }
        return got | ({"assignment": dict(member.share)} if told["assignment"] is not None else {})

    def _settle(self, do: Step) -> dict[str, Any]:
        self._stand_still()
        return {"assignment": self._shares()}

    def _shares(self) -> dict[str, dict[str, list[int]]]:
        return {name: dict(member.share) for name, member in self.members.items() if member.epoch > 0}

    def _shape(self, do: Step) -> dict[str, Any]:
        shape, self.last_shape = shape_of(self._shares(), self.last_shape)
        return shape

    def _leave(self, do: Step) -> dict[str, Any]:
        member = self._member(do)
        told = self._beat(do["member"], member, -1, None)
        return {"error": error_name(told), "memberEpoch": told["epoch"]}

    def _close(self, do: Step) -> dict[str, Any]:
        member = self._member(do)
        session = self._acknowledge(member, do["member"], do.get("acks", []), epoch=-1)
        left = self._leave(do)
        member.connection.close()
        del self.members[do["member"]]
        time.sleep(RELEASED_S)
        return {"session": session, "leave": left["error"], "memberEpoch": left["memberEpoch"]}

    def _drop(self, do: Step) -> dict[str, Any]:
        member = self._member(do)
        member.connection.close()
        member.connection = wire.Connection(self.settings.bootstrap_servers, do["member"])
        member.session_epoch, member.session = 0, set()
        time.sleep(RELEASED_S)
        return {"error": "NONE"}

    def _ack_topics(
        self, acks: Iterable[Sequence[Any]], also: Iterable[tuple[str, int]] = ()
    ) -> list[dict[str, Any]]:
        """Acknowledgements, and share-partitions without any, as a request has them."""
        named: dict[str, dict[int, list[dict[str, Any]]]] = {}
        for topic, partition in also:
            named.setdefault(topic, {}).setdefault(partition, [])
        for ack in acks:
            topic, partition, first, last, kinds = ack if len(ack) == 5 else ("t", *ack)
            types = [TYPES.get(kind, kind) for kind in (kinds if isinstance(kinds, list) else [kinds])]
            into = named.setdefault(topic, {}).setdefault(partition, [])
            into.append({"first": first, "last": last, "types": types})
        return [
            {
                "topic_id": self.ids[topic],
                "partitions": [{"partition": p, "acks": batches} for p, batches in partitions.items()],
            }
            for topic, partitions in named.items()
        ]

    def _poll(self, do: Step) -> dict[str, Any]:
        member = self._member(do)
        wanted = {(t, p) for t, ps in member.share.items() for p in ps}
        if "partitions" in do:
            wanted = {("t", p) if isinstance(p, int) else (p[0], p[1]) for p in do["partitions"]}
        acks = do.get("acks", [])
        renews = any("renew" in (ack[-1] if isinstance(ack[-1], list) else [ack[-1]]) for ack in acks)
        most, began = do.get("max", 0), time.monotonic()
        late, self.waited = acks or self.waited or not wanted <= self.loaded, False
        told = member.connection.ask(
            apis.FETCH,
            group=self.prefix + member.group,
            member=do["member"],
            epoch=member.session_epoch,
            wait_ms=0 if renews else do.get("waitMs", LOADING_MS if late else EMPTY_MS),
            min_bytes=0 if renews else 1,
            max_bytes=0 if renews else 50_000_000,
            max_records=most,
            batch_size=do.get("batchSize") or most,
            mode=1 if do.get("mode") == "record_limit" else 0,
            renews=renews,
            topics=self._ack_topics(acks, sorted(wanted - member.session)),
            forgotten=self._named(member.session - wanted),
        )
        member.polled = []
        got: dict[str, Any] = {"error": error_name(told)}
        if told["error"]:
            return got
        member.session_epoch, member.session = member.session_epoch + 1, wanted
        names = {self._at(ack) for ack in acks}
        got |= {
            "acquired": [],
            "gaps": [],
            "partitionErrors": {},
            "ackErrors": {n: {"error": "NONE"} for n in names},
        }
        for topic in told["topics"]:
            for answered in topic["partitions"]:
                self._take(member, self.names[topic["topic_id"]], answered, got)
        if got["acquired"]:
            self.locked_at = time.monotonic()
            self.lapses_at = began + self.locks.get(member.group, 30_000) / 1000
        elif not wanted <= self.loaded and "waitMs" not in do and not got["partitionErrors"]:
            raise LostFetch
        return got

    def _take(self, member: LiveMember, topic: str, answered: dict[str, Any], got: dict[str, Any]) -> None:
        partition = answered["partition"]
        at = f"{topic}-{partition}"
        data = {o for _, _, offsets in wire.data_offsets(answered["records"] or b"") for o in offsets}
        for run in answered["acquired"]:
            first, last, count = run["first"], run["last"], run["count"]
            got["acquired"].append([topic, partition, first, last, count])
            member.polled.append((topic, partition, first, last))
            self.loaded.add((topic, partition))
            gone = [o for o in range(first, last + 1) if o not in data]
            got["gaps"] += [[topic, partition, offset, offset, count] for offset in gone]
        if answered["error"]:
            got["partitionErrors"][at] = {"error": error_name(answered)}
        if at in got["ackErrors"]:
            got["ackErrors"][at] = {"error": error_name({"error": answered["ack_error"]})}

    def _named(self, partitions: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
        named: dict[str, list[int]] = {}
        for topic, partition in sorted(partitions):
            named.setdefault(self.ids[topic], []).append(partition)
        return [{"topic_id": topic_id, "partitions": found} for topic_id, found in named.items()]

    def _at(self, ack: Sequence[Any]) -> str:
        return f"{ack[0]}-{ack[1]}" if len(ack) == 5 else f"t-{ack[0]}"

    def _acknowledge(
        self, member: LiveMember, name: str, acks: Sequence[Sequence[Any]], epoch: int, renews: bool = False
    ) -> dict[str, Any]:
        told = member.connection.ask(
            apis.ACKNOWLEDGE,
            group=self.prefix + member.group,
            member=name,
            epoch=epoch,
            renews=renews,
            topics=self._ack_topics(acks),
        )
        got: dict[str, Any] = {"error": error_name(told), "partitions": {}}
        if not told["error"]:
            member.session_epoch += 1
        for topic in told["topics"]:
            for each in topic["partitions"]:
                got["partitions"][f"{self.names[topic['topic_id']]}-{each['partition']}"] = error_name(each)
        if renews:
            got["acquisitionLockTimeoutMs"] = told["lock_ms"]
            self.locked_at = time.monotonic()
        return got

    def _ack(self, do: Step) -> dict[str, Any]:
        member = self._member(do)
        kinds = [kind for ack in do["acks"] for kind in (ack[-1] if isinstance(ack[-1], list) else [ack[-1]])]
        renews = "renew" in kinds and do.get("renew", True)
        return self._acknowledge(member, do["member"], do["acks"], member.session_epoch, renews)

    def _release_all(self, do: Step) -> dict[str, Any]:
        member = self._member(do)
        if not member.polled:
            return {"error": "NOTHING_HELD"}
        acks = [[*run, "release"] for run in member.polled]
        return self._acknowledge(member, do["member"], acks, member.session_epoch)
